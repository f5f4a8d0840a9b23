"""Planted mistakes over steps, on a cache and with early exits: each must be found, and sound models pass."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import loopwright as lw
from loopwright.checking import steps as early_exit
from loopwright.generation.mixed_depth import StateHistory
from loopwright.generation.request import RequestOptions
from loopwright.model.parts.state import NoiseState
from loopwright.model.passes import Pass
from loopwright.model.taps import Tap
from tests.cases import noisy, plant_marks_of_every_step, plant_one_coda_slot
from tests.evaluation.foreign import Bare, Foreign
from tests.generation.tiny import DENSE

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


ROWS = ("steps on a cache", "depth on a cache")


def rows(model: nn.Module) -> dict[str, lw.CheckRow]:
    return {row.name: row for row in lw.check(model, names=ROWS).rows}


def built(name: str, **changes: Any) -> lw.LoopedForCausalLM:
    torch.manual_seed(0)
    return lw.build(name, **changes)


@pytest.mark.long
@pytest.mark.parametrize(
    ("make", "name"),
    [
        (built, "huginn-tiny"),
        pytest.param(built, "retrofit-tinyllama-tiny", marks=pytest.mark.slow),
        (noisy, "ouroboros-qwen2.5-3b-tiny"),
    ],
)
def test_a_coda_slot_that_all_steps_share_fails(make: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(row.passed for row in rows(make(name)).values())
    plant_one_coda_slot(monkeypatch)
    found = rows(make(name))
    assert [found[row].passed for row in ROWS] == [False, False]
    assert found["steps on a cache"].detail.startswith("step 0: difference")
    assert "depth 3, then 1: difference" in found["depth on a cache"].detail


def test_select_rules_that_share_a_coda_slot_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    plant_one_coda_slot(monkeypatch)
    detail = rows(noisy("ouro-1.4b-tiny", coda_layers=1, depth=2))["steps on a cache"].detail
    assert "step 0: difference" in detail and "select=" in detail


@pytest.mark.long
def test_a_step_that_marks_every_slot_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    plant_marks_of_every_step(monkeypatch)
    for name in ("ouro-1.4b-tiny", "asura-tiny"):
        row = rows(built(name))["depth on a cache"]
        assert row.passed is False and "a token at step 0 by one index per row, then depth 2" in row.detail


def test_a_cache_that_refuses_nothing_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lw.LoopCache, "_refuse_missing", lambda *args: None)
    row = rows(built("ouro-1.4b-tiny"))["depth on a cache"]
    assert row.passed is False and "depth 1, then 2: difference" in row.detail


@pytest.mark.long
def test_what_a_sound_model_says() -> None:
    assert rows(built("ouro-1.4b-tiny"))["depth on a cache"].detail.endswith("of 6 changes of depth 3 exact, 3 refused")
    assert rows(built("huginn-tiny"))["depth on a cache"].detail.endswith("of 6 changes of depth 1 exact, 5 refused")
    assert rows(built("relaxed-tiny"))["depth on a cache"].detail.endswith("of 3 changes of depth 1 exact, 2 refused")


class Reading(nn.Module):
    """Somebody's looped model with a coda: a running mean of what is read out, cached under a key of `slot`."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = nn.Embedding(19, 8), nn.Linear(8, 19)
        self.config = SimpleNamespace(vocab_size=19)

    def forward(
        self,
        input_ids: Tensor,
        past_key_values: dict | None = None,
        use_cache: bool = False,
        depth: int = 3,
        output_steps: bool = False,
    ) -> SimpleNamespace:
        cache = dict(past_key_values or {})
        past = cache.get("length", 0)
        s, steps = self.table(input_ids), []
        for t in range(depth):
            s = torch.tanh(1.5 * s + 0.1 * t)
            if output_steps or t == depth - 1:
                steps.append(self.head(self.coda(s, cache, self.slot(t), past)))
        cache["length"] = past + input_ids.shape[1]
        return SimpleNamespace(logits=steps[-1], step_logits=self.kept(steps, output_steps), past_key_values=cache)

    def coda(self, s: Tensor, cache: dict, slot: int, past: int) -> Tensor:
        count, carried = cache.get(slot, (0, torch.zeros_like(s[:, 0])))
        if self.strict() and count != past:
            raise RuntimeError("missing")
        total = s.cumsum(1) + carried[:, None]
        cache[slot] = (past + s.shape[1], total[:, -1])
        return s + total / torch.arange(past + 1, past + s.shape[1] + 1)[:, None]

    def slot(self, t: int) -> int:
        return t

    def strict(self) -> bool:
        return True

    def kept(self, steps: list[Tensor], output_steps: bool) -> list[Tensor] | None:
        return steps if output_steps else None


def test_a_foreign_model_with_a_coda_slot_per_step_passes() -> None:
    found = rows(Reading())
    assert [found[row].passed for row in ROWS] == [True, True], found
    assert "of 4 changes of depth 0 exact, 4 refused" in found["depth on a cache"].detail


def test_a_foreign_model_whose_steps_share_a_coda_slot_fails() -> None:
    class OneSlot(Reading):
        def slot(self, t: int) -> int:
            return 0

        def strict(self) -> bool:
            return False

    found = rows(OneSlot())
    assert [found[row].passed for row in ROWS] == [False, False]


class Silent(Reading):
    """Its output_steps does nothing."""

    def kept(self, steps: list[Tensor], output_steps: bool) -> None:
        return None


def test_what_is_not_offered_says_why() -> None:
    found = rows(Foreign())
    assert found["steps on a cache"].passed is None and "forward has no output_steps" in found["steps on a cache"].detail
    assert found["depth on a cache"].passed and "2 exact, 2 refused" in found["depth on a cache"].detail
    assert all(row.passed is None and "forward has no past_key_values" in row.detail for row in rows(Bare()).values())
    assert "returned no step_logits" in rows(Silent())["steps on a cache"].detail
    dense = built("ouro-1.4b-tiny").without_adapters()
    assert all(row.passed is None and "no core" in row.detail for row in rows(dense).values())


def row(model: torch.nn.Module) -> lw.CheckRow:
    return lw.check(model, names=["early exits"]).rows[0]


def test_sound_models_pass() -> None:
    found = row(noisy("ouroboros-qwen2.5-3b-tiny"))
    assert found.passed and "same bits in 1 comparison" in found.detail


def test_copied_keys_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early_exit, "RequestOptions", partial(RequestOptions, exit_keys="copy"))
    found = row(noisy("ouro-1.4b-tiny"))
    assert found.passed is False and "after" in found.detail and "difference" in found.detail


def test_states_that_are_kept_wrongly_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = StateHistory.begin

    def off(self: StateHistory, first: int, e: Tensor, s: Tensor) -> None:
        begin(self, first, 1.5 * e, s)

    monkeypatch.setattr(StateHistory, "begin", off)
    found = row(noisy("huginn-tiny"))
    assert found.passed is False and "never leaving" in found.detail


def test_where_there_is_nothing_to_leave() -> None:
    assert "not a loopwright model" in row(Bare()).detail
    dense = row(noisy("ouroboros-qwen2.5-3b-tiny", **DENSE))
    assert dense.passed is None
