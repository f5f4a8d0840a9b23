"""Planted mistakes over steps: depth that does nothing, states drawn from nowhere, taps that disturb."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import loopwright as lw
from loopwright.model.parts.state import NoiseState
from loopwright.model.passes import Pass
from loopwright.model.taps import Tap
from tests.evaluation.foreign import Foreign

LOOP_ROWS = ("depth honesty", "last step answers", "one sweep")
STEP_ROWS = ("initial state", *LOOP_ROWS, "tap on = tap off")  # the others have nothing to do with what is planted here


def looped(kind: type[lw.LoopedForCausalLM], name: str = "ouro-1.4b-tiny", **changes: Any) -> lw.LoopedForCausalLM:
    torch.manual_seed(0)
    return kind(lw.preset(name, **changes)).eval()


def detail(report: lw.CheckReport, name: str) -> str:
    return next(row.detail for row in report.rows if row.name == name)


def test_a_depth_argument_that_does_nothing_fails() -> None:
    class Deaf(Foreign):
        def steps(self, depth: int) -> int:
            return 3

    report = lw.check(Deaf())
    assert report.failed == ("depth honesty",)
    assert "depth 1 and 2" in detail(report, "depth honesty")


def test_a_depth_argument_that_stops_short_fails() -> None:
    class Short(Foreign):
        def steps(self, depth: int) -> int:
            return min(depth, 2)

    report = lw.check(Short())
    assert report.failed == ("depth honesty",) and "depth 2 and 3" in detail(report, "depth honesty")


def test_our_loop_with_a_depth_that_does_nothing_fails() -> None:
    class Deaf(lw.LoopedForCausalLM):
        def unroll(self, e: Tensor, depth: int, p: Pass, **options: Any) -> Iterator[Tensor]:
            return super().unroll(e, self.config.depth, p, **options)

    report = lw.check(looped(Deaf), names=["depth honesty"])
    assert "depth honesty" in report.failed
    assert "depth 1 ran steps [0, 1, 2, 3]" in detail(report, "depth honesty")


def test_one_step_too_many_fails() -> None:
    class Eager(lw.LoopedForCausalLM):
        def unroll(self, e: Tensor, depth: int, p: Pass, **options: Any) -> Iterator[Tensor]:
            return super().unroll(e, depth + 1, p, **options)

    assert lw.check(looped(Eager), names=["depth honesty"]).failed


def test_a_continuation_that_starts_again_at_step_zero_fails() -> None:
    class Forgetful(lw.LoopedForCausalLM):
        def unroll(self, e: Tensor, depth: int, p: Pass, *, state: Tensor | None = None, first_step: int = 0) -> Iterator[Tensor]:
            return super().unroll(e, depth, p, state=state)

    report = lw.check(looped(Forgetful, "asura-tiny"), names=STEP_ROWS)
    assert report.failed == ("depth honesty",) and "1 steps, then" in detail(report, "depth honesty")


def test_answering_with_an_earlier_step_fails() -> None:
    def first(module: nn.Module, args: tuple, output: lw.LoopedOutput) -> None:
        if output.step_logits is not None:
            output.logits = output.step_logits[0]

    model = looped(lw.LoopedForCausalLM)
    model.register_forward_hook(first)
    report = lw.check(model, names=STEP_ROWS)
    assert report.failed == ("one sweep",) and "its last step" in detail(report, "one sweep")


def test_logits_that_are_not_the_last_state_s_fail() -> None:
    def blur(module: nn.Module, args: tuple, output: lw.LoopedOutput) -> None:
        output.logits = output.logits * 1.001

    model = looped(lw.LoopedForCausalLM)
    model.register_forward_hook(blur)
    assert lw.check(model, names=LOOP_ROWS).failed == LOOP_ROWS[1:]


def test_a_sweep_in_the_wrong_order_fails() -> None:
    def turn(module: nn.Module, args: tuple, output: lw.LoopedOutput) -> None:
        if output.states is not None:
            output.states = output.states[::-1]

    model = looped(lw.LoopedForCausalLM)
    model.register_forward_hook(turn)
    report = lw.check(model, names=STEP_ROWS)
    assert report.failed == ("one sweep",) and "state of step 0" in detail(report, "one sweep")


def test_a_tap_that_changes_the_path_fails() -> None:
    class Watched(lw.LoopedForCausalLM):
        def embed(self, input_ids: Tensor | None = None, *, tap: Tap | None = None, **options: Any) -> tuple[Tensor, Pass]:
            e, p = super().embed(input_ids, tap=tap, **options)
            return (e if tap is None else e * (1 + 1e-6)), p

    report = lw.check(looped(Watched), names=["tap on = tap off", "last step answers"])
    assert "tap on = tap off" in report.failed and "last step answers" not in report.failed


def test_a_point_the_tap_never_sees_fails() -> None:
    def hide(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        tap = kwargs.get("tap")
        if tap is None:
            return args, kwargs
        return args, {**kwargs, "tap": lambda name, value, **at: value if name == "key" else tap(name, value, **at)}

    model = looped(lw.LoopedForCausalLM)
    model.register_forward_pre_hook(hide, with_kwargs=True)
    report = lw.check(model, names=STEP_ROWS)
    assert report.failed == ("tap on = tap off",) and "never saw key" in detail(report, "tap on = tap off")


def test_a_random_state_drawn_from_the_global_generator_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NoiseState, "forward", lambda self, e, positions, seed: torch.randn_like(e) * 0.1)
    report = lw.check(looped(lw.LoopedForCausalLM, "huginn-tiny"), names=["initial state", "cached = uncached"])
    assert "initial state" in report.failed and "cached = uncached" in report.failed
    assert "global generator" in detail(report, "initial state")


def test_a_random_state_drawn_in_sequence_from_a_seed_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def sequential(self: NoiseState, e: Tensor, positions: Tensor, seed: int | Tensor | None) -> Tensor:
        first = int(seed.flatten()[0]) if isinstance(seed, Tensor) else seed or 0
        return torch.randn(e.shape, generator=torch.Generator().manual_seed(first)) * 0.1

    monkeypatch.setattr(NoiseState, "forward", sequential)
    report = lw.check(looped(lw.LoopedForCausalLM, "huginn-tiny"), names=["initial state", "batch invariance", "cached = uncached"])
    assert {"initial state", "batch invariance", "cached = uncached"} <= set(report.failed)
    assert "no batch mates" in detail(report, "initial state")


def test_a_foreign_random_state_fails() -> None:
    class Random(Foreign):
        def start(self, x: Tensor) -> Tensor:
            return torch.randn_like(x)

    assert lw.check(Random(), names=["initial state"]).failed


def test_an_initial_state_that_is_ignored_fails() -> None:
    model = looped(lw.LoopedForCausalLM)
    model.register_forward_pre_hook(lambda m, args, kwargs: (args, {**kwargs, "initial_state": None}), with_kwargs=True)
    report = lw.check(model, names=STEP_ROWS)
    assert report.failed == ("initial state",) and "another initial_state" in detail(report, "initial state")


def test_a_foreign_state_argument_is_tried() -> None:
    class WithState(Foreign):
        honest = True

        def forward(self, input_ids: Tensor, input_states: Tensor | None = None) -> Tensor:
            self.given = input_states if self.honest else None
            return super().forward(input_ids).logits

        def start(self, x: Tensor) -> Tensor:
            return x if self.given is None else x + self.given * torch.arange(x.shape[-1])

    model = WithState()
    assert lw.check(model).ok
    model.honest = False
    report = lw.check(model, names=STEP_ROWS)
    assert report.failed == ("initial state",) and "another input_states" in detail(report, "initial state")


def test_a_dense_model_has_no_depth_to_check() -> None:
    model = lw.build("ouro-1.4b-tiny").without_adapters()
    report = lw.check(model)
    assert report.ok, str(report)
    rows = {row.name: row for row in report.rows}
    assert all(rows[name].passed is None and "no core" in rows[name].detail for name in LOOP_ROWS)
    assert rows["tap on = tap off"].passed
