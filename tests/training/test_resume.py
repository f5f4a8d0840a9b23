"""A run's way to disk and back: what was saved comes back whole, what differs is told, what is damaged or not finite is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from loopwright.storage.files import read_json
from loopwright.storage.run import MADE, RunFolder
from loopwright.training import checkpoint as module
from loopwright.training import run as job_module
from loopwright.training.checkpoint import latest_good, made_with, resume_job, save_job
from loopwright.training.graphs import LEAVES, GraphedWork
from loopwright.training.loop import train
from loopwright.training.recipe import written
from loopwright.training.report import Log, Progress, Run, Silent
from loopwright.training.run import Share
from tests.data.words import save_words
from tests.training.runs import Act, end_of, interrupt, rows_of, small
from tests.training.stand_in import CPU, Card
from tests.training.test_job import make_job


@pytest.mark.parametrize("ahead", [False, pytest.param(True, marks=pytest.mark.long)])
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


def test_a_run_that_was_stopped_ends_as_one_that_was_not(tmp_path: Path) -> None:
    """The shortest of its kind; test_loop.py has more optimisers, parts and places to stop."""
    chosen = small({"updates": 5, "validate": {"every": 2}})
    whole = train(chosen, tmp_path / "whole")
    part = train(chosen, tmp_path / "part", reporter=Act(3, interrupt))
    assert (part.finished, part.progress.update) == (False, 3)
    assert train(chosen, tmp_path / "part", resume=True).finished
    assert rows_of(part) == rows_of(whole) and end_of(part.folder.path) == end_of(whole.folder.path)


def test_a_run_does_not_go_on_with_other_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen, build = small(), job_module.build_data
    train(chosen, tmp_path, reporter=Act(3, interrupt))

    class Shorter:
        def __init__(self, source: Any) -> None:
            self.source = source

        def __len__(self) -> int:
            return len(self.source) - 1

        def batch(self, indices: Any) -> Any:
            return self.source.batch(indices)

    def shorter(*args: Any, **options: Any) -> Any:
        splits = build(*args, **options)
        return replace(splits, train=Shorter(splits.train))

    monkeypatch.setattr(job_module, "build_data", shorter)
    with pytest.raises(
        ValueError, match=r"resume: train has [\d,]+ rows now and had [\d,]+ when .* was saved; give the run its own data"
    ):
        train(chosen, tmp_path, resume=True)


def test_a_run_of_an_older_version_that_would_go_on_as_another_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its windows of text did not overlap; of `relaxed` it trained the parts alone."""
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"one two three {n}" * 9 for n in range(40)))
    save_words(tmp_path / "words")
    data = {"kind": "text", "files": str(text), "separator": "\n\n", "tokenizer": str(tmp_path / "words"), "length": 16, "valid": 2}
    chosen = small({"data": data, "model": {"changes": {"vocab_size": 270}}, "validate": {"every": 0}})
    run = train(chosen, tmp_path / "run", reporter=Act(3, interrupt))
    job = SimpleNamespace(splits=SimpleNamespace(train=[]), recipe=SimpleNamespace(model={"kind": "retrofit", "system": "relaxed"}))
    with pytest.raises(ValueError, match=r"a version that trained the low-rank parts alone; give model\.trains=parts"):
        module._refuse_older(cast(Any, job), tmp_path)
    assert "rows" in read_json(run.checkpoint / MADE)
    monkeypatch.setattr(module, "read_json", lambda path: {k: v for k, v in read_json(path).items() if k != "rows"})
    with pytest.raises(
        ValueError, match=r"a version whose windows of text did not overlap by a token; train with that version, or"
    ):
        train(chosen, tmp_path / "run", resume=True)


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


@pytest.mark.long
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


@pytest.mark.long
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


def test_a_run_that_goes_on_without_its_graphs_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, reporter = small({"updates": 2, "save": {"best": False}}), Silent()
    with monkeypatch.context() as earlier:
        earlier.setattr(module, "made_with", lambda job: {**made_with(job), "replayed": True})
        train(recipe, tmp_path)
    train(recipe, tmp_path, resume=True, reporter=reporter)
    assert any("not made as before (replayed: True then, False now)" in note for note in reporter.notes)


# runs whose passes are captured unasked, beside the stand-in


def unasked(folder: Path, monkeypatch: pytest.MonkeyPatch, *, stop: int | None = None, **options: Any) -> Run:
    """Trains six updates of one shape, or as many as are done at `stop`, as a run on a GPU would."""
    monkeypatch.setattr(
        job_module.Job, "_graphs",
        lambda job, reporter: GraphedWork(job._backward_given, CPU, asked=False, note=reporter.note),
    )  # fmt: skip
    plain = {"data": {"padding": "plain"}, "depth": {"kind": "fixed", "depth": 3}, "validate": {"every": 0}}
    return train(small(plain, {"updates": 6}), folder, on_update=lambda row: row["update"] + 1 == stop, **options)


@pytest.mark.long
def test_gradients_are_not_held_once_it_was_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[int] = []
    zero_grad = job_module.Job.zero_grad

    def counted(job: job_module.Job) -> None:
        zero_grad(job)
        held.append(sum(p.grad is not None for p in job.model.parameters()))

    monkeypatch.setattr(job_module.Job, "zero_grad", counted)
    Card(monkeypatch, peak=51)
    unasked(tmp_path / "given up", monkeypatch, stop=3)
    assert held == [0, 0, 0]  # from the first on: room is judged as its pass ends
    held.clear()
    Card(monkeypatch)
    unasked(tmp_path / "captured", monkeypatch, stop=3)
    assert all(held) and len(held) == 3


@pytest.mark.long
def test_a_run_that_gave_up_goes_on_without_graphs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is room now too: else it would not go on bit for bit."""
    Card(monkeypatch, peak=51)
    whole = unasked(tmp_path / "whole", monkeypatch)
    part = unasked(tmp_path / "part", monkeypatch, stop=3)
    assert read_json(part.checkpoint / MADE)["with"]["replayed"] is False
    card, reporter = Card(monkeypatch), Silent()
    unasked(tmp_path / "part", monkeypatch, resume=True, reporter=reporter)
    assert card.captured == 0 and sum(note.startswith(f"{LEAVES}: so they ran until here") for note in reporter.notes) == 1
    assert not any("not made as before" in note for note in reporter.notes)
    assert rows_of(tmp_path / "part") == rows_of(whole)


@pytest.mark.long
def test_a_run_that_is_made_otherwise_anyway_is_captured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Card(monkeypatch, peak=51)
    part = unasked(tmp_path / "part", monkeypatch, stop=3)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 99)
    card, reporter = Card(monkeypatch), Silent()
    unasked(part.folder.path, monkeypatch, resume=True, reporter=reporter)
    assert card.captured == 1 and any("99 now; replayed: False then, True now)" in note for note in reporter.notes)


@pytest.mark.parametrize("before", [True, False])
def test_an_older_checkpoint_was_made_as_its_own_recipe_says(before: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not as the recipe that it is resumed with says."""
    recipe, reporter = small({"updates": 2, "save": {"best": False}, "graph": False}), Silent()
    with monkeypatch.context() as earlier:
        facts = {name: value for name, value in made_with(make_job(tmp_path)).items() if name != "replayed"}
        earlier.setattr(module, "made_with", lambda job: facts)
        run = train(recipe, tmp_path).folder
    run.recipe.write_text(written(replace(recipe, graph=before)))
    train(recipe, tmp_path, resume=True, reporter=reporter)
    assert any("not made as before (replayed: True then, False now)" in note for note in reporter.notes) is before
