"""What a run is built of: its samples and depths, its precision, its way to disk and back."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

import loopwright as lw
from loopwright.data.batch import IGNORED, Batch
from loopwright.storage.files import write_json
from loopwright.storage.run import RunFolder
from loopwright.training.checkpoint import latest_good
from loopwright.training.distributed import join
from loopwright.training.loop import train
from loopwright.training.objectives.losses import EveryStep, Final
from loopwright.training.objectives.penalties import PENALTIES, Weighted
from loopwright.training.report import Progress, Silent
from loopwright.training.rollout import Plan, rollout
from loopwright.training.run import Job, Share, TrainingModule
from loopwright.training.trainable import drawn_plans
from tests.cases import noisy
from tests.training.runs import end_of, rows_of, small


def make_job(folder: Path, *changes: dict[str, Any]) -> Job:
    return Job(small(*changes), RunFolder(folder), join(), Silent())


def test_progress_counts() -> None:
    progress = Progress()
    for finite in (True, False, False):
        progress.count(finite, rows=4, tokens=40, targets=12)
    assert (progress.update, progress.rows, progress.tokens, progress.targets) == (3, 12, 120, 36)
    assert (progress.skipped, progress.skipped_in_a_row) == (2, 2)
    progress.count(True, rows=4, tokens=40, targets=12)
    assert (progress.skipped, progress.skipped_in_a_row) == (2, 0)


def test_every_sample_comes_once_an_epoch_with_its_place(tmp_path: Path) -> None:
    job, progress, seen = make_job(tmp_path, {"accumulate": 4}), Progress(), []
    for _ in range(16):  # two epochs of 64
        pairs = job.draw(progress).pairs
        assert len(pairs) == 4 and all(len(batch) == 2 for batch, _ in pairs)
        rows = torch.cat([batch.rows for batch, _ in pairs])
        assert rows.tolist() == list(range(progress.rows, progress.rows + 8))
        seen += [tuple(row) for batch, _ in pairs for row in batch.input_ids.tolist()]
        progress.count(True, rows=8, tokens=0, targets=0)
    assert len(set(seen[:64])) == 64 and set(seen[:64]) == set(seen[64:]) and seen[:64] != seen[64:]


def test_an_update_begins_the_same_whatever_came_before(tmp_path: Path) -> None:
    job = make_job(tmp_path, {"schedule": {"kind": "linear"}, "updates": 10})
    torch.manual_seed(99)
    job.begin_update(5)
    first = torch.rand(3), job.optimiser.lr
    job.begin_update(6)
    assert not torch.equal(torch.rand(3), first[0])
    job.begin_update(5)
    assert torch.equal(torch.rand(3), first[0]) and job.optimiser.lr == first[1] == pytest.approx(3e-3 / 2)


def test_work_that_changes_from_update_to_update_is_not_captured(tmp_path: Path) -> None:
    drawn = {"objective": {"kind": "shortcut", "fraction": None}}
    make_job(tmp_path / "plain", drawn)
    with pytest.raises(ValueError, match="graph: the work of the objective 'shortcut' changes from update to update"):
        make_job(tmp_path / "graph", {**drawn, "graph": True})


def test_a_dense_model_trains_and_looks_at_its_one_depth(tmp_path: Path) -> None:
    dense = {"kind": "preset", "name": "stars-addition-tiny", "changes": {"core_layers": 0, "prelude_layers": 1, "injection": None}}
    outcome = train(small({"model": dense, "validate": {"every": 4, "radius": 2}}), tmp_path / "run")
    looks = [row for row in rows_of(outcome) if "valid" in row]
    assert [list(row["valid"]) for row in looks] == [["1"], ["1"]] and not any("radius" in row for row in rows_of(outcome))
    assert latest_good(outcome.folder.checkpoints)[0].update == 8


def test_a_frozen_base_in_bfloat16_needs_products_in_bfloat16(tmp_path: Path) -> None:
    """Nothing else casts between it and what is trained in float32; torch's own word would name two matrices."""
    lw.save(lw.build("stars-addition-tiny", adapters=[{"kind": "low-rank", "rank": 2}], max_steps=8), tmp_path / "model")
    changes = {
        "model": {"kind": "load", "source": str(tmp_path / "model"), "dtype": "bfloat16"},
        "optim": {"train": ["adapters.*"]},
        "depth": {"kind": "fixed", "depth": 2},
    }
    with pytest.raises(ValueError, match=r"precision: 'fp32', and embed_tokens.weight is bfloat16 \(frozen\); allowed: bf16, or"):
        make_job(tmp_path / "a", changes)
    job = make_job(tmp_path / "b", changes, {"precision": "bf16"})
    for batch, plan in job.draw(Progress()).pairs:
        job.backward(batch, plan, Share(), None)
    assert all(p.grad is not None for p in job.optimiser.parameters.values())


def test_a_depth_at_which_nothing_trained_acts_is_refused_by_name(tmp_path: Path) -> None:
    model = lw.build("stars-addition-tiny", gate={"kind": "grown"})
    lw.save(model, tmp_path / "model")
    changes = {
        "model": {"kind": "load", "source": str(tmp_path / "model")},
        "optim": {"train": ["gate.*"]},
        "depth": {"kind": "fixed", "depth": 2},
    }
    message = r"depth: at 1 the loss depends on no trained parameter \(gate\..*allowed: depths at which"
    with pytest.raises(ValueError, match=message):
        make_job(tmp_path / "a", changes, {"depth": {"kind": "fixed", "depth": 1}})
    job = make_job(tmp_path / "b", changes)
    (batch, plan), *_ = job.draw(Progress()).pairs
    with pytest.raises(ValueError, match=message):
        job.backward(batch, Plan(1, 1), Share(), None)
    job.backward(batch, plan, Share(), None)
    assert all(p.grad is not None for p in job.optimiser.parameters.values())


@pytest.mark.parametrize(
    ("teacher", "complaint"),
    [
        ("no/such/folder", "no/such/folder: there is no such folder"),
        ({"kind": "preset", "name": "ouro-1.4b-tiny"}, "the teacher's vocabulary has 96 tokens; allowed: 15"),
    ],
)
def test_a_teacher_that_does_not_fit_leaves_no_run_behind(teacher: str | dict[str, str], complaint: str, tmp_path: Path) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=complaint):
        train(small({"objective": {"kind": "distil", "teacher": teacher}}), tmp_path / "run")
    assert not RunFolder(tmp_path / "run").recipe.exists() and not RunFolder(tmp_path / "run").log.exists()


# a folder that is not empty


@pytest.mark.parametrize("name", ["recipe.yaml", "log.jsonl", "origin.json", "tracking.json", "checkpoints/00000001/mine"])
def test_a_start_writes_over_nothing_of_the_users(name: str, tmp_path: Path) -> None:
    path, top = tmp_path / name, name.split("/")[0]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('{"mine": 1}\n')
    with pytest.raises(ValueError, match=rf"{top} is there, and a run would write over it; move it away, or --out names another"):
        train(small({"updates": 1}), tmp_path)
    assert path.read_text() == '{"mine": 1}\n' and {p.name for p in tmp_path.iterdir()} <= {top, ".lock"}


def test_a_run_whose_recipe_is_gone_is_not_started_over(tmp_path: Path) -> None:
    train(small({"updates": 2, "save": {"keep": 1}}), tmp_path)
    (tmp_path / "recipe.yaml").unlink()
    before = end_of(tmp_path), rows_of(tmp_path)
    with pytest.raises(ValueError, match="checkpoints is there, and a run would write over it"):
        train(small({"updates": 1}), tmp_path)
    assert (end_of(tmp_path), rows_of(tmp_path)) == before


def test_what_a_start_that_was_killed_left_is_written_over(tmp_path: Path) -> None:
    write_json(RunFolder(tmp_path).origin, {"loopwright": "0.1"})
    RunFolder(tmp_path).recipe.write_text("about: another")
    RunFolder(tmp_path).log.touch()
    assert train(small({"updates": 1}), tmp_path).finished and rows_of(tmp_path)


def test_a_folder_for_checkpoints_that_is_empty_is_used(tmp_path: Path) -> None:
    """It may be a link to a larger disk."""
    (tmp_path / "large").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").symlink_to(tmp_path / "large")
    assert train(small({"updates": 1}), tmp_path / "run").finished
    assert [path.name for path in (tmp_path / "large").iterdir()] == ["00000001"]


def test_a_run_does_not_hide_a_model(tmp_path: Path) -> None:
    """`loopwright generate FOLDER` would open the run from then on."""
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"train: .* holds a model \(config.json\), which a run would hide; --out names another"):
        train(small({"updates": 1}), tmp_path)
    assert [path.name for path in tmp_path.iterdir() if path.name != ".lock"] == ["config.json"]


def test_batches_that_are_accumulated_run_in_lockstep(tmp_path: Path) -> None:
    rule = {"kind": "uniform", "least": 1, "most": 40}
    job = make_job(tmp_path, {"accumulate": 4, "depth": {"kind": "lockstep", "draws": 2, "rule": rule}})
    depths = [[plan.depth for _, plan in job.draw(Progress(update=update)).pairs] for update in range(6)]
    assert all(a == b and c == d for a, b, c, d in depths) and any(a != c for a, _, c, _ in depths)
    drawn = list(islice(drawn_plans(job.rule, job.recipe), 24))
    assert [plan.depth for plan in drawn] == [depth for update in depths for depth in update]
    with pytest.raises(ValueError, match=r"depth \(lockstep\): draws 3; allowed: a divisor of accumulate \(4\)"):
        make_job(tmp_path, {"accumulate": 4, "depth": {"kind": "lockstep", "draws": 3, "rule": rule}})


def test_a_run_too_short_for_its_schedule_or_data_too_few_for_a_batch_is_one_line_each(tmp_path: Path) -> None:
    reporter = Silent()
    few = {"data": {"train": 12}, "batch": 30, "schedule": {"kind": "wsd", "warmup": 5, "decay": 4}}
    Job(small(few), RunFolder(tmp_path), join(), reporter)
    assert reporter.notes == [
        "schedule: decay is 4 and the run has 3 updates after its warmup: the rate falls over these alone",
        "batch: 30 rows of 12: each update takes a row 2.5 times",
    ]
    reporter = Silent()
    Job(small({"data": {"train": 12}, "batch": 12}), RunFolder(tmp_path), join(), reporter)
    assert not reporter.notes


# The module that is trained: parts that add up, penalties that count, the step it takes


def make_batch(rows: int = 6, length: int = 7) -> Batch:
    """Rows that ask for 0 to 5 tokens."""
    ids = torch.randint(0, 15, (rows, length), generator=torch.Generator().manual_seed(0))
    labels = ids.clone()
    for row in range(rows):
        labels[row, row + 1 :] = IGNORED
    return Batch(ids, labels, rows=torch.arange(rows))


def cut(batch: Batch, rows: slice) -> Batch:
    assert batch.rows is not None
    return replace(batch, input_ids=batch.input_ids[rows], labels=batch.labels[rows], rows=batch.rows[rows])


def gradients(model: lw.LoopedForCausalLM) -> dict[str, torch.Tensor]:
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


@pytest.mark.parametrize("weighting", ["convex", "add"])
@pytest.mark.parametrize("mode", [None, "fd", "exact", "released"])
def test_the_parts_of_an_update_add_up_to_the_whole(mode: str | None, weighting: str) -> None:
    """Parts of different numbers of targets, the first of them with none at all."""
    model, batch, plan = noisy("stars-addition-tiny").double().train(), make_batch(), Plan(3, 3, 5)
    share = 1.0 if mode == "released" else 0.5  # the rows that are probed fall unevenly to the parts too
    specs = [] if mode is None else [{"kind": "jacobian", "mode": mode, "share": share, "weight": 0.3, "weighting": weighting}]
    penalties = [Weighted.build(spec, PENALTIES) for spec in specs]
    module, weights = TrainingModule(model, EveryStep(), penalties), [0.3] * len(specs)
    loss, metrics = module(batch, plan, Share(), weights)
    loss.backward()
    whole = gradients(model)
    pieces = [cut(batch, slice(row, row + 1)) for row in range(6)]
    assert pieces[0].targets == 0 < pieces[1].targets
    total, sums = 0.0, dict.fromkeys(metrics, 0.0)
    for piece in pieces:
        part, found = module(piece, plan, Share(piece.targets / batch.targets, 1 / 6), weights)
        part.backward()
        total += part.item()
        sums = {name: sums[name] + value.item() for name, value in found.items()}
    assert total == pytest.approx(loss.item(), rel=1e-9)
    assert sums == pytest.approx({name: value.item() for name, value in metrics.items()}, rel=1e-9)
    for name, grad in gradients(model).items():
        torch.testing.assert_close(grad, whole[name], rtol=1e-7, atol=1e-9)


def test_the_loss_is_the_objective_with_the_penalty_weighed_in() -> None:
    model, batch, plan = noisy("stars-addition-tiny"), make_batch(), Plan(3, 3)
    penalty = Weighted.build({"kind": "state-change", "weight": 0.25, "weighting": "convex"}, PENALTIES)
    module = TrainingModule(model, Final(), [penalty])
    path = rollout(model, batch, plan)
    plain, change = Final()(model, path)[0], penalty.penalty(model, path)
    loss, metrics = module(batch, plan, Share(), [0.25])
    torch.testing.assert_close(loss, 0.75 * plain + 0.25 * change)
    assert metrics["objective"] == plain and metrics["state-change"] == change
    loss, metrics = module(batch, plan, Share(), [None])
    assert torch.equal(loss, plain) and "state-change" not in metrics, "where it does not count it is not computed"


def test_a_penalty_that_rides_costs_no_further_step() -> None:
    model, batch = noisy("stars-addition-tiny"), make_batch()
    counts, own = [], model.step
    for mode, weights in (("fd", [0.1]), ("fd", [None]), ("paper", [0.1])):
        module = TrainingModule(model, Final(), [Weighted.build({"kind": "jacobian", "mode": mode}, PENALTIES)])
        calls: list[int] = []

        def watched(s: Any, e: Any, t: Any, p: Any, calls: list[int] = calls) -> torch.Tensor:
            calls.append(t)
            return own(s, e, t, p)

        module.step = watched
        module(batch, Plan(4, 4), Share(), weights)
        counts.append(len(calls))
    assert counts == [4, 4, 4]


def test_two_penalties_of_one_kind_are_refused() -> None:
    twice = [Weighted.build({"kind": "jacobian", "mode": mode}, PENALTIES) for mode in ("fd", "exact")]
    with pytest.raises(ValueError, match="jacobian stands there twice; allowed: each kind once"):
        TrainingModule(noisy("stars-addition-tiny"), Final(), twice)
