"""R1: a run that is killed anywhere, in a save too, and resumed until it is done is bitwise the run that was never killed.
And Ctrl-C: it saves, exits 130, and goes on from there."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from loopwright.storage.files import read_json
from loopwright.training.recipe import Recipe, written
from loopwright.training.report import read_log
from tests.training.runs import RICH, children, command, counted, end_of, rows_of, small

KILLED = -signal.SIGKILL


def rich(updates: int) -> Recipe:
    """Returns a run that saves at every second update and has all that a resumed run could forget."""
    changes = {"depth": {"updates": updates // 2}, "validate": {"radius": 0, "every": 5}, "save": {"every": 2, "keep": 2}}
    return small(RICH, {"updates": updates, **changes})


class Trial:
    """Runs of one recipe in children, beside one that nobody disturbed."""

    def __init__(self, recipe: Recipe, folder: Path) -> None:
        self.recipe, self.folder, self.context = recipe, folder, children()
        assert self.finish(folder / "whole") == 0
        found = read_json(folder / "calls.json")
        self.calls, self.saves = found["calls"], found["saves"]

    def start(self, folder: Path, at: int | None = None) -> Any:
        child = self.context.Process(target=counted, args=(self.recipe, str(folder), str(self.folder / "calls.json"), at))
        child.start()
        return child

    def finish(self, folder: Path, at: int | None = None) -> int:
        """Returns the exit code of a child that trains, or goes on, until it is done or makes call number `at`."""
        child = self.start(folder, at)
        child.join()
        return child.exitcode

    def kill_in_a_save(self, folder: Path, draw: random.Random) -> None:
        """Kills a run at a random call of one of the first saves."""
        assert self.finish(folder, draw.randrange(*draw.choice(self.saves[: self.recipe.updates // 3]))) == KILLED

    def kill_at_a_call(self, folder: Path, draw: random.Random) -> None:
        """Kills a run at a random call."""
        assert self.finish(folder, draw.randrange(1, self.calls // 2)) == KILLED

    def kill_from_outside(self, folder: Path, draw: random.Random) -> None:
        """Kills a run at a random moment after its first update, wherever it is, in the middle of a write too."""
        child = self.start(folder)
        while child.is_alive() and not (folder / "log.jsonl").exists():
            time.sleep(0.01)
        time.sleep(draw.random())
        child.kill()
        child.join()

    def is_equal(self, folder: Path) -> bool:
        """Lets the run finish, and compares all of it with the one that was never killed."""
        assert self.finish(folder) == 0
        whole = self.folder / "whole"
        return rows_of(folder) == rows_of(whole) and end_of(folder) == end_of(whole)


@pytest.mark.slow
@pytest.mark.parametrize("updates", [12, 40])
def test_a_run_that_was_killed_twice_is_bitwise_the_one_that_never_was(tmp_path: Path, updates: int) -> None:
    """Once at a random call in the middle, once inside a save."""
    trial, draw, folder = Trial(rich(updates), tmp_path), random.Random(0), tmp_path / "run"
    assert trial.finish(folder, draw.randrange(trial.calls // 4, trial.calls // 2)) == KILLED
    assert 0 < read_log(folder / "log.jsonl")[-1]["update"] < updates - 1
    trial.kill_in_a_save(folder, draw)
    assert trial.is_equal(folder)


@pytest.mark.slow
def test_a_run_that_is_killed_at_twenty_random_points_is_bitwise_the_one_that_never_was(tmp_path: Path) -> None:
    """Inside a save, at a random call, from outside at a random moment; every second one is killed twice."""
    trial, draw, equal, kills = Trial(rich(40), tmp_path), random.Random(1), [], []
    for number in range(20):
        folder = tmp_path / f"run-{number}"
        for kill in (trial.kill_in_a_save, trial.kill_at_a_call, trial.kill_from_outside)[number % 3 :][: 1 + number % 2]:
            kill(folder, draw)
            kills.append(kill.__name__)
        equal.append(trial.is_equal(folder))
    counts = ", ".join(f"{kills.count(name)} {name.replace('_', ' ')}" for name in sorted(set(kills)))
    print(f"\nkill -9: {sum(equal)}/{len(equal)} runs bitwise equal after {len(kills)} kills ({counts})")
    assert all(equal)


@pytest.mark.slow
def test_control_c_saves_exits_130_and_resuming_ends_bitwise_where_an_undisturbed_run_does(tmp_path: Path) -> None:
    context, recipe = children(), small(RICH, {"validate": {"radius": 0}})
    (tmp_path / "mine.yaml").write_text(written(recipe))

    def run(name: str, *more: str) -> Any:
        words = ["train", str(tmp_path / "mine.yaml"), "--out", str(tmp_path / name), *more]
        child = context.Process(target=command, args=(words, str(tmp_path / f"{name}.err")))
        child.start()
        return child

    whole = run("whole")
    child = run("run")
    log = tmp_path / "run" / "log.jsonl"
    while child.is_alive() and not (log.is_file() and len(read_log(log)) > 3):
        time.sleep(0.01)
    signal_child(child)
    child.join()
    assert child.exitcode == 130
    said = (tmp_path / "run.err").read_text()
    assert "stopping after this update" in said and "saved in" in said and "--resume" in said and "Traceback" not in said
    rows = read_log(log)
    saved = max(int(path.name) for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert saved == 1 + max(row["update"] for row in rows if "loss" in row) < recipe.updates, "nothing of it is lost"
    again = run("run", "--resume")
    again.join()
    whole.join()
    assert again.exitcode == whole.exitcode == 0
    assert rows_of(tmp_path / "run") == rows_of(tmp_path / "whole") and end_of(tmp_path / "run") == end_of(tmp_path / "whole")


def signal_child(child: Any) -> None:
    """Ctrl-C, as a terminal and a launcher send it: twice at once."""
    for _ in range(2):
        os.kill(child.pid, signal.SIGINT)
