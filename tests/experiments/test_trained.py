"""What stays of a run: numbers of the updates that were taken, also where some were skipped."""

from __future__ import annotations

import json
import os
import shutil
import signal
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from experiments.ouroboros.run import STUDY
from experiments.side_by_side import as_line, made_by
from experiments.trained import Stopped, Trained, resumptions, train_once
from loopwright.recipes import recipe
from loopwright.training.objectives.losses import OBJECTIVES
from loopwright.training.report import BEFORE, Progress, Silent, spikes
from loopwright.training.run import Job
from tests.training.runs import RICH, Poisoned, small, untimed


def trained(log: list[dict[str, Any]]) -> Trained:
    return Trained(outcome=None, log=log, looks=[], seconds=1.0)  # type: ignore[arg-type]


def test_skipped_updates_have_no_numbers() -> None:
    """A log says null for what is not finite."""
    calm = [{"loss": 1.0 + 0.1 * (-1) ** i, "grad_norm": 2.0} for i in range(BEFORE)]
    lost = [
        {"update": 10, "depth": [8], "loss": None, "grad_norm": None, "skipped": True},
        {"update": 11, "depth": [4], "loss": 1.0, "grad_norm": None, "skipped": True},
    ]
    run = trained([*calm[:10], *lost, *calm[10:], {"loss": 9.0, "grad_norm": 3.0}])
    assert run.skipped() == [[10, [8]], [11, [4]]]
    assert run.taken("grad_norm") == [2.0] * BEFORE + [3.0]
    assert run.losses(25) == [1.004, 0.996, 9.0]
    assert len(spikes(run.taken("loss"))) == 1, "a spike is seen after updates that were skipped"


def test_a_run_leaves_its_log_its_validations_and_its_best_model() -> None:
    chosen = recipe(
        "demo-plain", ["updates=2", "batch=4", "validate.every=1", "validate.rows=4", "schedule.warmup=0", "schedule.decay=0"]
    )
    run = train_once(chosen, best=True)
    assert all({"update", "depth"} <= entry.keys() for entry in run.log), "what `skipped` reads"
    assert [entry["update"] for entry in run.log] == [0, 1] and len(run.exact()) >= 2
    assert run.best is not None and not run.outcome.folder.path.exists(), "its folder is gone"


def test_a_run_that_was_stopped_is_not_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "log.jsonl").write_text("")
    stopped = SimpleNamespace(
        finished=False, folder=SimpleNamespace(log=tmp_path / "log.jsonl"), progress=SimpleNamespace(update=3)
    )
    monkeypatch.setattr(import_module("loopwright.training.loop"), "train", lambda *_, **__: stopped)
    with pytest.raises(RuntimeError, match="stopped after 3 of 7 updates; nothing is measured"):
        train_once(SimpleNamespace(updates=7))  # type: ignore[arg-type]


@pytest.fixture
def stop_at(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of updates after which a polite kill comes, each once."""
    numbers: list[int] = []

    def update(_: Silent, row: dict[str, Any], progress: Progress, seconds: float) -> None:
        if progress.update in numbers:
            numbers.remove(progress.update)
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Silent, "update", update)
    return numbers


def test_a_training_that_goes_on_is_the_uninterrupted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop_at: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    """Bit for bit, with the numbers that rows take of it, also where updates were skipped; one that has ended is only opened."""
    monkeypatch.setitem(OBJECTIVES, "poisoned", Poisoned)
    chosen, shards = small(RICH, {"objective": {"kind": "poisoned", "at": [2, 12]}}), tmp_path / "shards"
    shards.mkdir()
    whole = train_once(chosen, str(shards), best=True)
    kept = tmp_path / "unfinished/a run"
    stop_at += [4, 11]
    for update in (4, 11):
        with pytest.raises(Stopped, match=f"stopped after {update} of 18 updates; the next call goes on from there"):
            train_once(chosen, str(shards), best=True, kept=kept)
    parts = train_once(chosen, str(shards), best=True, kept=kept)
    assert "(4 updates done)" in (told := capsys.readouterr().out) and "(11 updates done)" in told and "not made as" not in told
    monkeypatch.setattr(Job, "backward", lambda *_: pytest.fail("an update is made again"))
    again = train_once(chosen, str(shards), best=True, kept=kept)
    assert whole.skipped() == [[2, whole.log[2]["depth"]], [12, whole.log[12]["depth"]]] and len(whole.log) == 18
    for run in (parts, again):
        for one, other in ((run.outcome.model, whole.outcome.model), (run.best, whole.best)):
            assert one is not None and other is not None
            own = other.state_dict()
            assert all(torch.equal(tensor, own[name]) for name, tensor in one.state_dict().items())
        assert [*map(untimed, run.log)] == [*map(untimed, whole.log)] and [*map(untimed, run.looks)] == [*map(untimed, whole.looks)]
        assert run.losses(5) == whole.losses(5) and run.skipped() == whole.skipped() and run.exact() == whole.exact()
        assert run.outcome.progress == whole.outcome.progress
        assert run.seconds > sum(entry["seconds"] for entry in run.log), "the updates of earlier calls, and the time of this one"
    assert resumptions(kept) == {"resumed": [4, 11]} and made_by(kept)["resumed"] == [4, 11], (
        "opened again, it was not resumed again"
    )
    assert "resumed" not in made_by() and resumptions(tmp_path / "nowhere") == {}


def test_a_row_says_where_its_training_went_on_otherwise(tmp_path: Path, stop_at: list[int]) -> None:
    """What is lost because a later call goes on from an earlier update is not told."""
    kept, threads = tmp_path / "a run", torch.get_num_threads()
    stop_at += [2, 4]
    for _ in range(2):
        with pytest.raises(Stopped):
            train_once(small(), str(tmp_path), kept=kept)
    assert resumptions(kept) == {"resumed": [2]}
    shutil.rmtree(kept / "run/checkpoints/00000004")
    torch.set_num_threads(threads + 1)
    try:
        train_once(small(), str(tmp_path), kept=kept)
    finally:
        torch.set_num_threads(threads)
    told = f"threads: {threads} then, {threads + 1} now"
    assert resumptions(kept) == {"resumed": [2], "not_bit_for_bit": [[2, told]]}
    assert json.loads(as_line(made_by(kept)))["not_bit_for_bit"] == [[2, told]]


def test_what_was_killed_before_it_saved_begins_again_and_another_recipe_is_refused(tmp_path: Path, stop_at: list[int]) -> None:
    killed = tmp_path / "killed"
    stop_at.append(2)
    with pytest.raises(Stopped):
        train_once(small(), str(tmp_path), kept=killed)
    shutil.rmtree(killed / "run/checkpoints")
    assert [entry["update"] for entry in train_once(small(), str(tmp_path), kept=killed).log] == [*range(8)]
    with pytest.raises(ValueError, match=r"was trained with another recipe; it differs in optim\.lr"):
        train_once(small({"optim": {"lr": 1e-3}}), str(tmp_path), kept=killed)


def test_a_retrofit_without_a_model_begins_nothing(tmp_path: Path) -> None:
    """Nor is a tokenizer made in its place, as for the studies that train from scratch."""
    source = tmp_path / "model"
    with pytest.raises(SystemExit, match=r"holds no config\.json; allowed: the folder of a dense model"):
        STUDY.main([str(tmp_path / "o.jsonl"), "--source", str(source), "--corpus", str(tmp_path)])
    assert list(tmp_path.iterdir()) == []
