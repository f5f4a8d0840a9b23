"""A start that is drawn is drawn anew for every row of every update: the same whatever holds the rows, in no two of them alike."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

import loopwright as lw
from loopwright.model.backbone import Backbone
from loopwright.model.parts.state import hashed_normal, row_seeds
from loopwright.training import run as job_module
from loopwright.training.compile import CompileComparison
from loopwright.training.gradient import REMATS
from loopwright.training.graphs import GraphedWork
from loopwright.training.loop import train
from loopwright.training.objectives.losses import Final
from loopwright.training.report import Progress
from loopwright.training.rollout import Plan, Rollout, rollout
from loopwright.training.run import Job, Share
from tests.cases import noisy
from tests.training.gradient_helpers import differing, loss_of, padded_batch
from tests.training.runs import end_of, rows_of, small
from tests.training.stand_in import CPU, Card
from tests.training.test_job import make_job
from tests.training.test_remat import DEPTH, contracting

NOISE: dict[str, Any] = {
    "model": {"changes": {"injection": {"kind": "concat"}, "state": {"kind": "noise", "std": 1.0}}},
    "updates": 6, "depth": {"kind": "fixed", "depth": 3}, "validate": {"every": 6},
}  # fmt: skip
Starts = dict[int, Tensor]


class Noting(Final):
    """The final loss; keeps how each row started, by the place of the row in the order of samples."""

    def __init__(self) -> None:
        super().__init__()
        self.starts: Starts = {}

    def __call__(self, model: lw.LoopedForCausalLM, rollout: Rollout) -> tuple[Tensor, dict[str, Tensor]]:
        rows = rollout.batch.rows
        if rows is not None:  # a row of training; validation has none
            for place, start, real in zip(rows.tolist(), rollout.start.detach(), rollout.batch.valid, strict=True):
                self.starts[place] = start[real].clone()
        return super().__call__(model, rollout)


def starts_of(folder: Path, changes: dict[str, Any] | None = None, *, stop: int | None = None) -> tuple[Starts, lw.Run]:
    """Trains, stopped after so many updates and resumed, and returns how each row started."""
    noting, recipe = Noting(), small(NOISE, changes or {})
    given: Any = job_module.Objects(objective=noting)
    if stop is not None:
        train(recipe, folder, given=given, on_update=lambda row: row["update"] == stop - 1)
    run = train(recipe, folder, given=given, resume=stop is not None)
    return noting.starts, run


def check_fresh(starts: Starts, rows: int) -> None:
    """Every row of every update starts elsewhere."""
    assert sorted(starts) == list(range(rows))
    first = torch.stack([start[0] for _, start in sorted(starts.items())])
    assert len(first.unique(dim=0)) == rows


def check_same(found: Starts, expected: Starts) -> None:
    """Each row starts where it does in the other run."""
    assert all(torch.equal(found[place], start) for place, start in expected.items())


def planted(draw: Callable[[int, Tensor], Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_module, "row_seeds", draw)


def test_seeds_of_rows() -> None:
    """A function of the run's seed and the place alone, without doubles; what they give is uncorrelated."""
    places = torch.arange(20_000)
    seeds = torch.stack([row_seeds(seed, places) for seed in (0, 1, 2, 2**40)])
    assert len(seeds.unique()) == seeds.numel()
    assert torch.equal(row_seeds(1, places[77:79]), seeds[1, 77:79])
    x = hashed_normal(row_seeds(0, places[:24]), torch.zeros(1, 1, dtype=torch.long), 4096)[:, 0]
    assert (torch.corrcoef(x.double()) - torch.eye(24, dtype=torch.float64)).abs().max() < 5 / 64


@pytest.mark.long
def test_every_row_of_every_update_starts_anew_and_as_its_place_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    starts, run = starts_of(tmp_path / "run")
    check_fresh(starts, 48)
    for place, start in starts.items():
        wanted = hashed_normal(row_seeds(0, torch.tensor([place])), torch.arange(len(start))[None], start.shape[1])
        assert torch.equal(start, wanted[0])
    model = run.model
    ids = run.splits.valid.batch([0, 0]).input_ids
    assert not model.training and torch.equal(model(ids).logits[0], model(ids).logits[1])  # evaluated from one start
    planted(lambda seed, rows: torch.zeros_like(rows), monkeypatch)
    with pytest.raises(AssertionError):
        check_fresh(starts_of(tmp_path / "frozen")[0], 48)
    planted(lambda seed, rows: row_seeds(seed, torch.arange(len(rows))), monkeypatch)  # the place in the batch
    with pytest.raises(AssertionError):
        check_fresh(starts_of(tmp_path / "alike")[0], 48)


@pytest.mark.long
def test_another_run_seed_draws_others(tmp_path: Path) -> None:
    one, other = (starts_of(tmp_path / str(seed), {"seed": seed, "updates": 1})[0] for seed in (0, 1))
    assert all(not torch.equal(one[place][:3], other[place][:3]) for place in one)


@pytest.mark.long
def test_resumed_is_uninterrupted_bitwise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, run = starts_of(tmp_path / "whole")
    parts, again = starts_of(tmp_path / "parts", stop=3)
    check_same(parts, whole)
    assert rows_of(again) == rows_of(run) and end_of(tmp_path / "parts") == end_of(tmp_path / "whole")

    def in_sequence(job: Job, *given: Any) -> None:  # planted: each process draws from where its own generator begins
        drawn = torch.Generator().manual_seed(job.recipe.seed)
        planted(lambda seed, rows: torch.randint(1 << 62, rows.shape, generator=drawn), monkeypatch)

    begin = Job.__init__
    monkeypatch.setattr(Job, "__init__", lambda job, *given: (begin(job, *given), in_sequence(job))[0])
    whole = starts_of(tmp_path / "whole-2")[0]
    with pytest.raises(AssertionError):
        check_same(starts_of(tmp_path / "parts-2", stop=3)[0], whole)


@pytest.mark.long
def test_accumulated_is_one_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def both(name: str) -> tuple[tuple[Starts, lw.Run], tuple[Starts, lw.Run]]:
        return starts_of(tmp_path / f"{name}-1"), starts_of(tmp_path / f"{name}-4", {"accumulate": 4})

    (whole, run), (parts, again) = both("own")
    check_same(parts, whole)
    losses, found = ([row["loss"] for row in rows_of(each) if "loss" in row] for each in (run, again))
    assert found == pytest.approx(losses, abs=1e-5)
    planted(lambda seed, rows: row_seeds(seed, rows[:1] + torch.arange(len(rows)) * 7), monkeypatch)  # by the batch
    with pytest.raises(AssertionError):
        check_same(both("planted")[1][0], both("again")[0][0])


def test_two_processes_draw_what_one_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in test_world_size.py (slow), which trains in them; here what each of them would take."""

    def drawn(rank: int, world: int) -> dict[int, int]:
        job = make_job(tmp_path, NOISE)
        job.processes = SimpleNamespace(rank=rank, world=world)  # type: ignore[assignment]
        batch = job.draw(Progress(update=3, rows=24)).pairs[0][0]
        return dict(zip(batch.rows.tolist(), batch.seeds.tolist(), strict=True))

    def check() -> None:
        assert {**drawn(0, 2), **drawn(1, 2)} == drawn(0, 1)

    check()
    assert len(drawn(1, 2)) == 4
    planted(lambda seed, rows: row_seeds(seed, 24 + torch.arange(len(rows))), monkeypatch)  # each process counts from 0
    with pytest.raises(AssertionError):
        check()


@pytest.mark.parametrize("remat", REMATS)
def test_rematerialised_is_plain(remat: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is reseeded between the passes: a start that anything draws along the way would not be the same twice."""
    far = remat == "implicit"  # to a fixed point, where its gradient is near that of all steps: compared with itself
    model = contracting().train() if far else noisy("huginn-tiny", std=0.3).train()
    plan = Plan(DEPTH, DEPTH) if far else Plan(4, 4)
    batch = replace(padded_batch(model), seeds=torch.tensor([3, 4]))

    def gradients(kind: str) -> dict[str, Tensor]:
        model.zero_grad(set_to_none=True)
        loss_of(model, rollout(model, batch, plan, keeps="last", remat=kind)).backward()
        return {name: x.grad.clone() for name, x in model.named_parameters() if x.grad is not None}

    def check() -> None:
        assert differing(gradients("implicit" if far else "none"), gradients(remat)) == []

    check()
    draw = Backbone.start_anew
    monkeypatch.setattr(Backbone, "start_anew", lambda m, e, p, seeds: draw(m, e, p, torch.randint(9**9, seeds.shape)))
    with pytest.raises(AssertionError):
        check()


def replaying(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes are captured and replayed as on a GPU: what a replay reads is what lies in the tensors of the capture."""
    Card(monkeypatch)

    def replay(run: GraphedWork, captured: Any, leaves: list[Any]) -> Any:
        for mine, given in zip(captured.inputs, leaves, strict=True):
            if isinstance(given, Tensor):
                mine.copy_(given)
        return run.work(pytree.tree_unflatten(captured.inputs, job.form), 3, 3)  # type: ignore[attr-defined]

    flatten = pytree.tree_flatten

    def noted(tree: Any) -> Any:
        leaves, form = flatten(tree)
        job.form = form  # type: ignore[attr-defined]
        return leaves, form

    monkeypatch.setattr(pytree, "tree_flatten", noted)
    monkeypatch.setattr(GraphedWork, "_replay", replay)
    job.replayed = GraphedWork(job._backward_given, CPU)


PLAIN_ROWS = {"data": {"kind": "addition", "padding": "plain", "digits": 2}}


def losses_of(job: Job) -> list[float]:
    """The losses of five batches of one and the same rows, which differ by their starts alone."""
    rows = job.splits.train.batch(range(8))
    found = []
    for update in range(5):
        batch = job.draw(Progress(update=update, rows=8 * update)).pairs[0][0]
        held = replace(batch, input_ids=rows.input_ids, labels=rows.labels, lengths=rows.lengths, asked=None).ready()
        found.append(float(job.backward(held, Plan(3, 3, update), Share(), None)[0]))
        job._ahead = None
    return found


def test_a_replayed_pass_starts_where_its_rows_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = losses_of(make_job(tmp_path, NOISE, PLAIN_ROWS))
    assert len({round(loss, 4) for loss in plain}) == 5
    job = make_job(tmp_path, NOISE, PLAIN_ROWS)
    replaying(job, monkeypatch)
    assert losses_of(job) == plain and job.replaying

    given, first = job._backward_given, []

    def baked(tensors: dict[str, Any], depth: int, grad_steps: int) -> Any:
        first.append(tensors["batch"]["seeds"].clone())
        return given({**tensors, "batch": {**tensors["batch"], "seeds": first[0]}}, depth, grad_steps)

    job.replayed = GraphedWork(baked, CPU)
    assert losses_of(job) != plain


def test_the_pass_that_a_compiled_one_is_compared_with_starts_where_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else gradients would differ, and a run would leave its compiled form for nothing."""
    kept: list[Tensor] = []
    draw = Backbone.start_anew

    def compared(redrawn: bool) -> bool:
        job = make_job(tmp_path, NOISE, PLAIN_ROWS)
        job.compiled, job.comparison = True, CompileComparison(job.optimiser.parameters)
        kept.clear()

        def noted(model: Any, e: Tensor, p: Any, seeds: Tensor) -> Tensor:
            kept.append(draw(model, e, p, seeds + len(kept) * redrawn))
            return kept[-1]

        monkeypatch.setattr(Backbone, "start_anew", noted)
        losses_of(job)
        assert redrawn or len(kept) == 2 + 2 + 3  # the first two are compared
        return torch.equal(kept[0], kept[1]) and torch.equal(kept[2], kept[3]) and not torch.equal(kept[0], kept[2])

    assert compared(redrawn=False) and not compared(redrawn=True)


def test_a_state_that_is_not_drawn_asks_for_no_seeds(tmp_path: Path) -> None:
    assert make_job(tmp_path).draw(Progress()).pairs[0][0].seeds is None
