"""Compiled passes are believed once their gradients were those of the pass as written."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from loopwright.train.devices.compared import ALL, OWN, PASSES, Comparison
from loopwright.train.loop import train
from loopwright.train.recipe import make_recipe
from loopwright.train.reporting.progress import Silent
from tests.train.runs import PLAIN

job = importlib.import_module("loopwright.train.job")


class Told(Silent):
    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def note(self, text: str) -> None:
        self.lines.append(text)


def compiler(spoil: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    """A torch.compile whose steps are right, and whose gradients are spoiled."""

    def compiling(function: Callable[..., Any], **options: object) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            made = function(*args)
            if isinstance(made, Tensor) and made.requires_grad:
                made.register_hook(spoil)
            return made

        return run

    monkeypatch.setattr(torch, "compile", compiling)


def trained(folder: Path, **changes: Any) -> tuple[dict[str, Tensor], list[str]]:
    told = Told()
    shape = {"depth": {"kind": "fixed", "depth": 3}, "updates": 5, "accumulate": 2, "validate": {"every": 0}}
    run = train(make_recipe({**PLAIN, **shape, **changes}), folder, reporter=told)
    return {name: p.detach().clone() for name, p in run.model.named_parameters()}, told.lines


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


@pytest.fixture
def auto(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "choose", lambda asked, device, alike: (asked is not False, None))


@pytest.mark.parametrize("spoil", [lambda g: 1e3 * g, lambda g: torch.zeros_like(g), lambda g: g * torch.nan])
def test_wrong_gradients_are_left_where_nobody_asked_for_them(
    spoil: Callable[[Tensor], Tensor], auto: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is that of the passes as written, bit for bit, from its first update, and says so once."""
    right, _ = trained(tmp_path / "right", compile=False)
    compiler(spoil, monkeypatch)
    found, told = trained(tmp_path / "found")
    assert same(found, right)
    assert [line for line in told if line.startswith("compile: compiled, the gradient of ")] == told
    assert len(told) == 1 and told[0].endswith("passes run without it from here on")


def test_wrong_gradients_that_were_asked_for_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler(lambda g: 1e3 * g, monkeypatch)
    with pytest.raises(ValueError, match=r"compile: compiled, the gradient of .* compile: false trains without it"):
        trained(tmp_path, compile=True)


def left(asked: bool, replaying: bool) -> tuple[SimpleNamespace, list[str]]:
    """A run after it was told that the pass that it ran differs from the pass as written."""
    told: list[str] = []
    run = SimpleNamespace(
        recipe=SimpleNamespace(compile="auto", graph=asked or "auto"),
        replayed=SimpleNamespace(asked=asked, replaying=replaying, give_up=told.append),
        bare=SimpleNamespace(leave_compiled=lambda: told.append("as written")),
        compiled=True, note=told.append,
    )  # fmt: skip
    job.Job._leave(run, "HOW")
    return run, told


def test_a_replay_that_differs_leaves_the_graph_alone() -> None:
    """What is compiled had the same gradients before it was captured."""
    run, told = left(asked=False, replaying=True)
    assert run.compiled and told == [
        f"graph: replayed, HOW (torch {torch.__version__}); passes run without it from here on",
        "their gradients would not be right",
    ]
    with pytest.raises(ValueError, match=r"graph: replayed, HOW .* graph: false trains without it"):
        left(asked=True, replaying=True)


@pytest.mark.parametrize("asked", [False, True])
def test_a_graph_that_was_asked_for_replays_passes_as_written(asked: bool) -> None:
    run, told = left(asked=asked, replaying=False)
    assert not run.compiled
    assert told[1:] == (["as written"] if asked else ["they are not compiled", "as written"])


def test_right_gradients_are_those_of_a_run_that_compares_nothing(
    auto: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler(lambda g: g, monkeypatch)
    found, told = trained(tmp_path / "found")
    monkeypatch.setattr(job.Job, "_comparable", lambda self: False)
    plain, _ = trained(tmp_path / "plain")
    assert same(found, plain) and told == []


def test_what_draws_is_not_compared(auto: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two passes of a model with dropout are two different passes."""
    compiler(lambda g: 1e3 * g, monkeypatch)
    _, told = trained(tmp_path, model={**PLAIN["model"], "changes": {"dropout": 0.1}})
    assert told == []


def test_without_memory_for_it_nothing_is_compared(auto: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler(lambda g: g, monkeypatch)
    right, _ = trained(tmp_path / "right")

    def full(self: Comparison, run: Callable[[], object]) -> None:
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(Comparison, "run_written", full)
    found, told = trained(tmp_path / "found")
    assert same(found, right)
    assert told == ["compile: there is no memory to compare the first pass with the pass as written, so it is not"]


def compared(written: list[Tensor], found: list[Tensor], before: list[Tensor] | None = None) -> str | None:
    """What is said of gradients that come after those of a pass as written."""
    parameters = {f"w{i}": nn.Parameter(torch.zeros_like(x)) for i, x in enumerate(written)}
    comparison = Comparison(parameters)

    def adds(gradients: list[Tensor]) -> None:
        for p, g in zip(parameters.values(), gradients, strict=True):
            p.grad = g.clone() if p.grad is None else p.grad.add_(g)

    if before is not None:
        adds(before)
    comparison.run_written(lambda: adds(written))
    kept = [None if p.grad is None else p.grad.clone() for p in parameters.values()]
    assert all(x is None for x in kept) if before is None else all(map(torch.equal, kept, before))
    adds(found)
    how = comparison.difference()
    comparison.take_written()
    start = before or [torch.zeros_like(x) for x in written]
    assert all(torch.equal(p.grad, b + w) for p, b, w in zip(parameters.values(), start, written, strict=True))
    return how


@given(seed=st.integers(0, 10**6), parts=st.integers(1, 5), earlier=st.booleans(), scale=st.sampled_from([1e-6, 1.0, 1e4]))
def test_rounding_passes_and_a_gradient_that_is_off_does_not(seed: int, parts: int, earlier: bool, scale: float) -> None:
    draws = torch.Generator().manual_seed(seed)

    def drawn() -> list[Tensor]:
        return [scale * torch.randn(6, 3, generator=draws, dtype=torch.float64) for _ in range(parts)]

    written = drawn()
    before = drawn() if earlier else None
    assert compared(written, [x + x * 0.05 * torch.randn(x.shape, generator=draws) for x in written], before) is None
    which = int(torch.randint(parts, (), generator=draws))
    for wrong in (torch.zeros_like(written[which]), 1e3 * written[which], -written[which], written[which] * torch.nan):
        said = compared(written, [wrong if i == which else x for i, x in enumerate(written)], before)
        assert said is not None and said.startswith(f"the gradient of w{which} is ")


def test_a_small_gradient_may_be_noise_of_a_large_one() -> None:
    """A bias before softmax has a gradient of rounding alone; of that nothing is asked."""
    large, small = torch.ones(100), 1e-4 * torch.ones(4)
    assert compared([large, small], [large, -small]) is None
    edge = ALL * 10 * torch.ones(4) / 2
    assert compared([large, edge], [large, (1 + 0.9 * OWN) * edge]) is None
    assert compared([large, edge], [large, (1 + 2.2) * edge]) is not None


def test_a_pass_that_is_not_finite_says_nothing() -> None:
    parameters = {"w": nn.Parameter(torch.zeros(3))}
    comparison = Comparison(parameters)

    def adds() -> None:
        parameters["w"].grad = torch.full((3,), torch.inf)

    comparison.run_written(adds)
    parameters["w"].grad = torch.ones(3)
    assert comparison.difference() is None


def test_every_kind_of_pass_is_compared_a_few_times() -> None:
    comparison = Comparison({})
    assert [comparison.is_due((3, 3)) for _ in range(PASSES + 2)] == [True] * PASSES + [False] * 2
    assert comparison.is_due((4, 3))


def test_what_the_pass_as_written_draws_the_next_one_draws_too() -> None:
    comparison = Comparison({"w": nn.Parameter(torch.zeros(1))})
    first = comparison.run_written(lambda: torch.rand(3))
    assert torch.equal(first, torch.rand(3))
