"""What follows an update, whoever computed it: counted, logged, told, and the end of a run that is of no use."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from loopwright.training.distributed import join
from loopwright.training.loop import Updates, own_folder
from loopwright.training.recipe import make_recipe
from loopwright.training.report import Log, Progress, Silent, StopRequest, read_log
from loopwright.training.run import start_job
from loopwright.training.tracking import Tracking
from tests.training.runs import PLAIN, untimed

SETTINGS = {"validate": {"every": 2, "rows": 4}, "save": {"every": 1, "best": False}}


def row(update: int, loss: float = 1.0) -> dict[str, Any]:
    return {"update": update, "loss": loss, "depth": [2], "grad_norm": 1.0, "lr": 1e-3, "targets": 5, "tokens": 9}


def test_updates_are_counted_logged_and_given_up(tmp_path: Path) -> None:
    recipe = make_recipe(
        {**PLAIN, "updates": 9, "patience": 1, "validate": {"every": 2, "rows": 4}, "save": {"every": 1, "best": False}}
    )
    processes, told = join(), []
    with own_folder(tmp_path / "run", processes, resume=False) as run, StopRequest(told=False) as stop:
        job = start_job(recipe, run, processes, resume=False, reporter=Silent())

        def hear(found: dict[str, Any]) -> bool:
            told.append(found["update"])
            return found["update"] == 1

        updates = Updates(job, run, Progress(), Log(run.log), Silent(), stop, Tracking(None), hear)
        for update in (0, 1):
            updates.end(row(update), finite=True, began=time.perf_counter())
        assert told == [0, 1] and bool(stop) and updates.left == 7
        assert (updates.progress.rows, updates.progress.tokens, updates.progress.targets) == (16, 18, 10)
        assert [untimed(found) for found in read_log(run.log)][:2] == [row(0), row(1)]
        assert "valid" in read_log(run.log)[2] and len(list(run.checkpoints.iterdir())) == 2
        updates.end(row(2, float("nan")), finite=False, began=time.perf_counter())
        assert read_log(run.log)[3]["rows"] == [16, 24] and read_log(run.log)[3]["loss"] is None
        with pytest.raises(ValueError, match=r"update 3: loss nan.*not finite 2 times in a row.*have not changed since update 2"):
            updates.end(row(3, float("nan")), finite=False, began=time.perf_counter())
