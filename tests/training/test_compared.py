"""Compiled passes are believed once their gradients were those of the pass as written."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._dynamo.exc import TorchDynamoException

from loopwright.cli import main
from loopwright.data.batch import Batch
from loopwright.storage.files import read_json
from loopwright.storage.run import MADE, RunFolder
from loopwright.training.compile import ALL, OWN, PASSES, CompileComparison
from loopwright.training.graphs import LEAVES, REPLAYS, Captured, GraphedWork
from loopwright.training.loop import train
from loopwright.training.recipe import make_recipe, written
from loopwright.training.report import Silent
from tests.training.runs import PLAIN
from tests.training.stand_in import CPU, Card

job = importlib.import_module("loopwright.training.run")


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


def trained(folder: Path, resume: bool = False, on_update: Any = None, **changes: Any) -> tuple[dict[str, Tensor], list[str]]:
    told = Told()
    shape = {"depth": {"kind": "fixed", "depth": 3}, "updates": 5, "accumulate": 2, "validate": {"every": 0}}
    run = train(make_recipe({**PLAIN, **shape, **changes}), folder, reporter=told, resume=resume, on_update=on_update)
    return {name: p.detach().clone() for name, p in run.model.named_parameters()}, told.lines


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return all(torch.equal(a[name], b[name]) for name in a)


@pytest.fixture
def auto(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "should_compile", lambda asked, device, alike: (asked is not False, None))


@pytest.mark.parametrize("spoil", [lambda g: 1e3 * g, lambda g: torch.zeros_like(g), lambda g: g * torch.nan])
def test_wrong_gradients_are_left_where_nobody_asked_for_them(
    spoil: Callable[[Tensor], Tensor], auto: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is that of the passes as written, bit for bit, from its first update, and says so once."""
    right, _ = trained(tmp_path / "right", compile=False)
    compiler(spoil, monkeypatch)
    found, told = trained(tmp_path / "found")
    assert same(found, right)
    assert [line for line in told if line.startswith("compile: in a compiled pass the gradient of ")] == told
    assert len(told) == 1 and told[0].endswith("passes are not compiled from here on")


def test_wrong_gradients_that_were_asked_for_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler(lambda g: 1e3 * g, monkeypatch)
    with pytest.raises(ValueError, match=r"compile: in a compiled pass the gradient of .* compile: false trains without it"):
        trained(tmp_path, compile=True)


class Replayed(GraphedWork):
    """Passes on a stand-in for a GPU, which are captured when they come back; what a replay adds is spoiled by a factor."""

    factor = 1.0

    def _replay(self, captured: Captured, leaves: list[Any]) -> tuple[Tensor, dict[str, Tensor]]:
        with torch.no_grad():
            for p in self.work.__self__.model.parameters():
                p.grad = None if p.grad is None else p.grad.mul_(self.factor)
        return super()._replay(captured, leaves)


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    """A capture adds the gradients of its pass and a replay adds none: true of the first replay alone."""
    monkeypatch.setattr(Replayed, "factor", 1.0)
    monkeypatch.setattr(
        job.Job, "_graphs",
        lambda run, reporter: None if run.recipe.graph is False
        else Replayed(run._backward_given, CPU, asked=run.recipe.graph is True, note=reporter.note),
    )  # fmt: skip
    return Card(monkeypatch)


GRAPHED: dict[str, Any] = {"data": {**PLAIN["data"], "padding": "plain"}, "updates": 2, "accumulate": 1}
SAID = "the gradient of "


@pytest.mark.long
def test_a_replay_that_differs_leaves_the_graph_alone(
    auto: None, card: Card, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is compiled had the same gradients before it was captured."""
    compiler(lambda g: g, monkeypatch)
    right, _ = trained(tmp_path / "right", **{**GRAPHED, "updates": 5}, compile=False, graph=False)
    monkeypatch.setattr(Replayed, "factor", 1e3)
    found, told = trained(tmp_path / "found", **{**GRAPHED, "updates": 5})
    assert card.captured == 1 and told[0] == REPLAYS and told[2:] == [f"{LEAVES}: their gradients would not be right"]
    assert told[1].startswith(f"graph: in a replayed pass {SAID}") and told[1].endswith("passes are not replayed from here on")
    made = read_json(max((tmp_path / "found" / "checkpoints").iterdir()) / MADE)["with"]
    assert same(found, right) and made["compiled"] and not made["replayed"]


@pytest.mark.parametrize("compiled", [False, True])
def test_a_replay_that_was_asked_for_and_differs_ends_the_run(
    compiled: bool, auto: None, card: Card, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler(lambda g: g, monkeypatch)
    monkeypatch.setattr(Replayed, "factor", 1e3)
    with pytest.raises(ValueError, match=rf"graph: in a replayed pass {SAID}.* graph: false trains without it"):
        trained(tmp_path, **GRAPHED, graph=True, compile=compiled)


@pytest.mark.long
@pytest.mark.parametrize("asked", [False, True])
def test_a_graph_that_was_asked_for_replays_passes_as_written(
    asked: bool, auto: None, card: Card, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, _ = trained(tmp_path / "right", **GRAPHED, compile=False, graph=True)
    assert card.captured == 1
    compiler(lambda g: 1e3 * g, monkeypatch)
    found, told = trained(tmp_path / "found", **GRAPHED, graph=asked or "auto")
    assert same(found, right) and card.captured == 1 + asked
    assert told[0].startswith("compile: ") and told[1:] == ([] if asked else [f"{LEAVES}: they are not compiled"])


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each pass that is compared."""
    ran: list[int] = []
    run_written = CompileComparison.run_written

    def counted(self: CompileComparison, run: Callable[[], Any]) -> Any:
        ran.append(1)
        return run_written(self, run)

    monkeypatch.setattr(CompileComparison, "run_written", counted)
    return ran


LATE = [{"kind": "jacobian", "weight": 0.1, "start": 3}]


@pytest.mark.parametrize(
    ("changes", "passes"),
    [
        ({}, PASSES),
        ({"penalties": LATE}, 2 * PASSES),  # one that begins to count makes it another pass
        ({"objective": {"kind": "shortcut", "fraction": None}}, PASSES),  # which step it draws is known from the update
    ],
)
def test_every_kind_of_pass_of_a_run_is_compared(
    changes: dict, passes: int, auto: None, times: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler(lambda g: g, monkeypatch)
    _, told = trained(tmp_path, updates=6, accumulate=1, **changes)
    assert len(times) == passes and not any(SAID in line for line in told)


def test_passes_of_every_shape_are_compared(auto: None, times: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is compiled on its own."""
    backward, update = job.Job.backward, iter(range(6))

    def shorter(self: Any, batch: Any, *args: Any) -> Any:
        cut = batch.input_ids.shape[1] - (next(update) > 2)
        ids, labels = batch.input_ids[:, -cut:], batch.labels[:, -cut:]
        return backward(self, Batch(ids, labels, rows=batch.rows).ready(), *args)

    monkeypatch.setattr(job.Job, "backward", shorter)
    compiler(lambda g: g, monkeypatch)
    trained(tmp_path, updates=6, accumulate=1)
    assert len(times) == 2 * PASSES


def test_nothing_is_compared_once_passes_run_as_written(
    auto: None, times: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler(lambda g: 1e3 * g, monkeypatch)
    trained(tmp_path, depth=PLAIN["depth"])
    assert len(times) == 1


def test_a_run_that_left_the_compiler_goes_on_as_written(auto: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit, where the compiler would now be right too."""
    right, _ = trained(tmp_path / "right", compile=False)
    compiler(lambda g: 1e3 * g, monkeypatch)
    trained(tmp_path / "run", on_update=lambda row: row["update"] == 2)
    assert not read_json(max((tmp_path / "run" / "checkpoints").iterdir()) / MADE)["with"]["compiled"]
    compiler(lambda g: 1.01 * g, monkeypatch)
    found, told = trained(tmp_path / "run", resume=True)
    assert same(found, right) and not any("not made as before" in line for line in told)
    assert sum(line.startswith("compile: auto leaves the model as it is written: it ran so until here") for line in told) == 1


def test_the_command_line_says_it_in_one_line_and_leaves_room_for_another_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(written(make_recipe({**PLAIN, "updates": 2, "compile": True})))
    with monkeypatch.context() as wrong:
        compiler(lambda g: 1e3 * g, wrong)
        with pytest.raises(SystemExit):
            main(["train", str(recipe), "--out", str(tmp_path / "run")])
    *_, line = capsys.readouterr().err.splitlines()
    assert SAID in line and line.endswith("compile: false trains without it")
    with pytest.raises(SystemExit, match="0"):
        main(["train", str(recipe), "--out", str(tmp_path / "run"), "compile=false"])
    assert RunFolder(tmp_path / "run").holds_checkpoints


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


@pytest.mark.parametrize("where", ["before", "written", "compiled"])
def test_without_memory_for_it_nothing_is_compared(where: str, auto: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradients that are kept need memory while the compiled pass runs, too."""
    compiler(lambda g: g, monkeypatch)
    right, _ = trained(tmp_path / "right")
    backward, seen = job.Job._backward, []

    def full(self: Any, *args: Any, **options: Any) -> Any:
        result = backward(self, *args, **options)
        seen.append(1)
        if len(seen) == {"written": 3, "compiled": 4}[where]:  # of the second batch, which adds to gradients
            raise torch.OutOfMemoryError("no room")
        return result

    def none(self: CompileComparison) -> None:
        raise torch.OutOfMemoryError("no room")

    if where == "before":
        monkeypatch.setattr(CompileComparison, "_gradients", none)
    else:
        monkeypatch.setattr(job.Job, "_backward", full)
    found, told = trained(tmp_path / "found")
    assert same(found, right)
    assert told == ["compile: no memory to compare the first pass with the pass as written"]


def compared(written: list[Tensor], found: list[Tensor], before: list[Tensor] | None = None) -> str | None:
    """What is said of gradients that come after those of a pass as written."""
    parameters = {f"w{i}": nn.Parameter(torch.zeros_like(x)) for i, x in enumerate(written)}
    comparison = CompileComparison(parameters)

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
    comparison = CompileComparison(parameters)

    def adds() -> None:
        parameters["w"].grad = torch.full((3,), torch.inf)

    comparison.run_written(adds)
    parameters["w"].grad = torch.ones(3)
    assert comparison.difference() is None


def test_every_kind_of_pass_is_compared_a_few_times() -> None:
    comparison = CompileComparison({})
    assert [comparison.is_due((3, 3)) for _ in range(PASSES + 2)] == [True] * PASSES + [False] * 2
    assert comparison.is_due((4, 3))


def test_what_the_pass_as_written_draws_the_next_one_draws_too() -> None:
    comparison = CompileComparison({"w": nn.Parameter(torch.zeros(1))})
    first = comparison.run_written(lambda: torch.rand(3))
    assert torch.equal(first, torch.rand(3))


def test_what_rounding_alone_changes_as_much_is_no_difference() -> None:
    """As in a loop that is chaotic in bf16. The gradients that were to be judged are still there, and no draw was taken."""
    w = nn.Parameter(torch.zeros(3))
    comparison = CompileComparison({"w": w})

    def adds(*values: float) -> Callable[[], None]:
        def run() -> None:
            torch.rand(2)
            w.grad = torch.tensor(values) if w.grad is None else w.grad + torch.tensor(values)

        return run

    torch.manual_seed(0)
    comparison.run_written(adds(1.0, 0.0, 0.0))
    w.grad = torch.tensor([0.0, 1.0, 0.0])
    assert comparison.difference() is not None
    assert comparison.difference(adds(1.1, 0.0, 0.0)) is not None
    assert comparison.difference(adds(0.0, 0.0, 1.0)) is None
    assert comparison.difference(adds(torch.nan, 0.0, 0.0)) is not None
    assert torch.equal(w.grad, torch.tensor([0.0, 1.0, 0.0]))
    w.grad = torch.tensor([1e4, 0.0, 0.0])
    assert comparison.difference(adds(0.0, 0.0, 1.0)) is not None
    drawn = torch.rand(2)
    torch.manual_seed(0)
    assert torch.equal(drawn, torch.rand(2))


# A pass that cannot be compiled: a run that compiles unasked goes on as written, one that was asked to ends with one line


def failing(monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
    """A torch.compile that raises in the backward pass of a step."""

    def spoil(gradient: Tensor) -> Tensor:
        raise error("ptxas is missing\nand more lines")

    compiler(spoil, monkeypatch)


@pytest.mark.usefixtures("auto")
def test_it_is_left_where_nobody_asked_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right, _ = trained(tmp_path / "right", compile=False)
    failing(monkeypatch, TorchDynamoException)
    found, told = trained(tmp_path / "found")
    assert same(found, right)
    (line,) = told
    assert line.startswith("compile: in a compiled pass the compiler failed: ptxas is missing (torch ")


def test_it_ends_the_run_where_it_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, TorchDynamoException)
    with pytest.raises(ValueError, match=r"the compiler failed: ptxas is missing .* compile: false trains without it"):
        trained(tmp_path, compile=True)


@pytest.mark.usefixtures("auto")
def test_other_errors_are_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, ArithmeticError)
    with pytest.raises(ArithmeticError, match="ptxas"):
        trained(tmp_path)
