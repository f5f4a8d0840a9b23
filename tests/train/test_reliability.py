"""R1: a run that is killed anywhere, in a save too, and resumed until it is done is bitwise the run that was never killed.
And Ctrl-C: it saves, exits 130, and goes on from there."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from loopwright.run import read_log
from loopwright.train.recipe import Recipe, written
from tests.train.runs import RICH, children, command, counted, end_of, rows_of, small

KILLED = -signal.SIGKILL
# a checkpoint every second update: about half of all calls are made inside a save
RECIPE = small(RICH, {"updates": 40, "depth": {"updates": 20}, "look": {"radius": 0, "every": 5}, "save": {"every": 2, "keep": 2}})


class Trial:
    """Runs of one recipe in children, beside one that nobody disturbed."""

    def __init__(self, recipe: Recipe, folder: Path) -> None:
        self.recipe, self.folder, self.context = recipe, folder, children()
        self.calls = self.context.Value("q", 0)
        assert self.finish(folder / "whole") == 0
        self.total = self.calls.value

    def start(self, folder: Path, at: int | None = None) -> Any:
        child = self.context.Process(target=counted, args=(self.recipe, str(folder), self.calls, at))
        child.start()
        return child

    def finish(self, folder: Path, at: int | None = None) -> int:
        """Returns the exit code of a child that trains, or goes on, until it is done or makes call number `at`."""
        child = self.start(folder, at)
        child.join()
        return child.exitcode

    def kill_inside(self, folder: Path, draw: random.Random) -> bool:
        """Kills a run, which may have been killed before, at a random call; returns whether that was inside a save."""
        assert self.finish(folder, draw.randrange(1, self.total)) in (0, KILLED)
        return self.is_saving(folder)

    def kill_from_outside(self, folder: Path, draw: random.Random, seconds: float) -> bool:
        """Kills a run at a random moment, wherever it is, in the middle of a write too."""
        child = self.start(folder)
        time.sleep(draw.uniform(0.2, 1) * seconds)
        child.kill()
        child.join()
        return self.is_saving(folder)

    def is_saving(self, folder: Path) -> bool:
        return any((folder / "checkpoints").glob(".*.tmp"))

    def is_equal(self, folder: Path) -> bool:
        """Lets the run finish, and compares all of it with the one that was never killed."""
        assert self.finish(folder) == 0
        whole = self.folder / "whole"
        return rows_of(folder) == rows_of(whole) and end_of(folder) == end_of(whole)


def test_a_run_that_was_killed_twice_is_bitwise_the_one_that_never_was(tmp_path: Path) -> None:
    trial, draw, folder = Trial(RECIPE, tmp_path), random.Random(0), tmp_path / "run"
    assert trial.finish(folder, draw.randrange(trial.total // 4, trial.total // 2)) == KILLED
    done = read_log(folder / "log.jsonl")[-1]["update"]
    assert 0 < done < 39, "in the middle"
    assert trial.finish(folder, draw.randrange(trial.total // 8, trial.total // 3)) == KILLED
    assert trial.is_equal(folder)


@pytest.mark.slow
def test_a_run_that_is_killed_at_twenty_random_points_is_bitwise_the_one_that_never_was(tmp_path: Path) -> None:
    """Half of them at a random call of the run, half from outside at a random moment; some twice before they finish."""
    trial, draw = Trial(RECIPE, tmp_path), random.Random(1)
    began = time.perf_counter()
    assert trial.finish(tmp_path / "timed") == 0
    seconds = time.perf_counter() - began
    kills, inside, equal = 0, 0, []
    for number in range(20):
        folder = tmp_path / f"run-{number}"
        for _ in range(1 + number % 2):
            kills += 1
            inside += trial.kill_inside(folder, draw) if number % 4 < 2 else trial.kill_from_outside(folder, draw, seconds)
        equal.append(trial.is_equal(folder))
    print(f"\nkill -9: {sum(equal)}/{len(equal)} runs bitwise equal after {kills} kills, {inside} of them inside a save")
    assert all(equal) and inside


def test_control_c_saves_exits_130_and_resuming_ends_bitwise_where_an_undisturbed_run_does(tmp_path: Path) -> None:
    context, recipe = children(), small(RICH, {"look": {"radius": 0}})
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
    import os

    for _ in range(2):
        os.kill(child.pid, signal.SIGINT)
