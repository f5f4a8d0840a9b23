"""What stays of a run: numbers of the updates that were taken, also where some were skipped."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from experiments.asura.run import BEFORE, spikes
from experiments.ouroboros.run import main
from experiments.trained import Trained, train_once
from loopwright.recipes import recipe


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
    assert spikes(run.taken("loss")) == 1, "a spike is seen after updates that were skipped"


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
    monkeypatch.setattr(import_module("loopwright.train.loop"), "train", lambda *_, **__: stopped)
    with pytest.raises(RuntimeError, match="stopped after 3 of 7 updates; nothing is measured"):
        train_once(SimpleNamespace(updates=7))  # type: ignore[arg-type]


def test_a_retrofit_without_a_model_begins_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is a tokenizer made in its place, as for the studies that train from scratch."""
    source = tmp_path / "model"
    monkeypatch.setattr(sys, "argv", ["run", str(tmp_path / "o.jsonl"), "--source", str(source), "--corpus", str(tmp_path)])
    with pytest.raises(SystemExit, match=r"holds no config\.json; allowed: the folder of a dense model"):
        main()
    assert list(tmp_path.iterdir()) == []
