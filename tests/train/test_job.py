"""What a run is built of: its samples and depths, its precision, its way to disk and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import loopwright as lw
from loopwright.run import RunFolder
from loopwright.train import job as module
from loopwright.train.checkpoint import latest_good
from loopwright.train.devices.distributed import join
from loopwright.train.devices.training_module import Share
from loopwright.train.job import Job, resume_job, save_job
from loopwright.train.loop import train
from loopwright.train.reporting.log import Log
from loopwright.train.reporting.progress import Silent
from loopwright.train.rollout import Plan
from loopwright.train.state import Progress
from tests.train.runs import Act, end_of, interrupt, rows_of, small


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


@pytest.mark.parametrize("ahead", [False, True])
def test_what_was_saved_comes_back_whole(tmp_path: Path, ahead: bool) -> None:
    """Also where the rows and depths of the next update are drawn already: what is saved is before them."""
    changes = {"average": {"kind": "ema", "decay": 0.5}, "depth": {"kind": "uniform", "least": 1, "most": 99}}
    run = RunFolder(tmp_path)
    job, progress = make_job(tmp_path, changes), Progress()
    for update in range(3):
        job.begin_update(update)
        for batch, plan in job.draw(progress).pairs:
            job.backward(batch, plan, Share(), None)
        if ahead:
            job.draw_ahead(progress)
        job.step(update)
        job.zero_grad()
        progress.count(True, rows=8, tokens=9, targets=8)
    progress.best_loss, progress.solved_at = 0.1 + 0.2, 2
    save_job(job, run, progress, Log(run.path / "log.jsonl"))
    reporter, other = Silent(), make_job(tmp_path, changes)
    assert resume_job(other, run, reporter)[0] == progress and "3 updates done" in reporter.notes[0]
    for mine, theirs in ((job.weights(), other.weights()), *zip(job.tensors().values(), other.tensors().values(), strict=True)):
        assert mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)
    mine, theirs = job.draw(progress), other.draw(progress)
    assert [plan for _, plan in mine.pairs] == [plan for _, plan in theirs.pairs] and mine.targets == theirs.targets
    assert torch.equal(mine.pairs[0][0].input_ids, theirs.pairs[0][0].input_ids)


def test_the_log_is_on_the_disk_before_the_checkpoint_that_counts_on_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run, done = RunFolder(tmp_path), []
    monkeypatch.setattr(Log, "mark", lambda self: done.append("log"))
    monkeypatch.setattr(module, "save_checkpoint", lambda *arguments, **options: done.append("checkpoint"))
    save_job(make_job(tmp_path), run, Progress(), Log(run.path / "log.jsonl"))
    assert done == ["log", "checkpoint"]


@pytest.mark.parametrize(
    "edit", [(b'"update": 3', b'"update": 9'), (b'"depth": [', b'"depth": [1, '), (b'"loss": 2', b'"loss": 1')]
)
def test_a_log_that_was_edited_before_the_checkpoint_is_refused(tmp_path: Path, edit: tuple[bytes, bytes]) -> None:
    chosen = small()
    run = train(chosen, tmp_path / "run", reporter=Act(5, interrupt)).folder
    text = run.log.read_bytes()
    assert edit[0] in text
    run.log.write_bytes(text.replace(*edit, 1))
    with pytest.raises(
        ValueError, match=r"log.jsonl: changed since the checkpoint was saved \(.*\); put it back as it was, or move"
    ):
        train(chosen, run.path, resume=True)
    assert run.log.read_bytes() == text.replace(*edit, 1)
    run.log.rename(tmp_path / "aside")
    reporter = Silent()
    train(chosen, run.path, resume=True, reporter=reporter)
    assert [row["update"] for row in rows_of(run.path) if "loss" in row] == [5, 6, 7]
    assert any("log.jsonl is not there: it begins anew at update 5" in note for note in reporter.notes)


def test_another_number_of_threads_is_told_at_a_resume(tmp_path: Path) -> None:
    chosen, threads = small(), torch.get_num_threads()
    for name in ("same", "other"):
        train(chosen, tmp_path / name, reporter=Act(5, interrupt))
    same, other = Silent(), Silent()
    train(chosen, tmp_path / "same", resume=True, reporter=same)
    assert not any("bit for bit" in note for note in same.notes)
    try:
        torch.set_num_threads(threads + 1)
        train(chosen, tmp_path / "other", resume=True, reporter=other)
    finally:
        torch.set_num_threads(threads)
    wanted = f"not made as before (threads: {threads} then, {threads + 1} now): sums are rounded otherwise"
    assert sum(wanted in note for note in other.notes) == 1


def test_parameters_that_are_not_finite_are_not_saved(tmp_path: Path) -> None:
    """Loss and gradient of update 0 are finite, what it makes of the parameters is not."""
    chosen = small({"optim": {"lr": 1e38}, "patience": 2, "validate": {"every": 0}})
    with pytest.raises(
        ValueError, match=r"update 4: \S+ is not finite, so nothing is saved; there is no checkpoint yet; lower optim.lr"
    ):
        train(chosen, tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoints").exists()
    job, run, log = make_job(tmp_path), RunFolder(tmp_path), Log(tmp_path / "log.jsonl")
    good = save_job(job, run, Progress(update=1), log)
    with torch.no_grad():
        next(job.model.parameters()).view(-1)[3] = float("inf")
    with pytest.raises(ValueError, match=rf"update 2: \S+ is not finite, so nothing is saved; the newest checkpoint is {good};"):
        save_job(job, run, Progress(update=2), log)
    assert latest_good(run.checkpoints)[0].update == 1


def test_a_damaged_checkpoint_is_named_and_an_older_one_used(tmp_path: Path) -> None:
    folder, chosen = tmp_path / "run", small({"save": {"every": 2, "keep": 3, "best": False}})
    train(chosen, tmp_path / "whole")
    train(chosen, folder, reporter=Act(5, interrupt))
    newest = max((folder / "checkpoints").iterdir())
    data = bytearray((newest / "optimizer.safetensors").read_bytes())
    data[-1] ^= 1
    (newest / "optimizer.safetensors").write_bytes(data)
    reporter = Silent()
    train(chosen, folder, resume=True, reporter=reporter)
    assert "skipped a damaged checkpoint" in reporter.notes[0] and "optimizer.safetensors" in reporter.notes[0]
    assert "(4 updates done)" in reporter.notes[1]
    assert rows_of(folder) == rows_of(tmp_path / "whole") and end_of(folder) == end_of(tmp_path / "whole")


def test_without_a_checkpoint_a_resumed_run_starts_again(tmp_path: Path) -> None:
    def stumble() -> None:
        raise RuntimeError

    with pytest.raises(RuntimeError):
        train(small({"validate": {"every": 0}}), tmp_path / "run", reporter=Act(3, stumble))
    reporter = Silent()
    train(small({"validate": {"every": 0}}), tmp_path / "run", resume=True, reporter=reporter)
    assert reporter.notes == ["no checkpoint yet: the run starts again from its first update"]
    assert [row["update"] for row in rows_of(tmp_path / "run")] == list(range(8))


@pytest.mark.slow
def test_bfloat16_has_float32_masters_and_resumes_bitwise(tmp_path: Path) -> None:
    chosen = small({"precision": "bf16", "remat": "step", "penalties": [{"kind": "jacobian", "weight": 0.1}]})
    whole, exact = train(chosen, tmp_path / "whole"), train(small(), tmp_path / "exact")
    assert {p.dtype for p in whole.model.parameters()} == {torch.float32}
    losses = [[row["objective"] for row in rows_of(run) if "loss" in row] for run in (whole, exact)]
    assert losses[0] != losses[1] and losses[0][0] == pytest.approx(losses[1][0], rel=1e-2)
    train(chosen, tmp_path / "run", reporter=Act(3, interrupt))
    train(chosen, tmp_path / "run", resume=True)
    assert rows_of(tmp_path / "run") == rows_of(whole) and end_of(tmp_path / "run") == end_of(tmp_path / "whole")


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
