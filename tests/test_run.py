"""The run folder: its checkpoints, the log of a resumed run, the lock, and a full disk."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright import run as run_module
from loopwright.run import TIMING_KEYS, Log, RunFolder, origin, read_log, saved, untimed, update_of
from loopwright.storage.files import DiskFull
from loopwright.version import VERSION

ROOT = Path(__file__).parent.parent


# its checkpoints


def test_checkpoints_are_listed_newest_first_and_one_that_was_replaced_after_what_replaced_it(tmp_path: Path) -> None:
    for name in ("00000002", "00000060.replaced", "00000060", "100000000", ".00000070.12.tmp", "notes"):
        (tmp_path / name).mkdir()
    assert [path.name for path in saved(tmp_path)] == ["100000000", "00000060", "00000060.replaced", "00000002"]
    assert update_of(tmp_path / "00000060.replaced") == 60 and update_of(tmp_path / "notes") == -1
    assert saved(tmp_path / "absent") == []


# the log


def row(update: int, loss: float, *, seconds: float = 0.0) -> dict[str, Any]:
    return {"update": update, "loss": loss, "seconds": seconds}


@settings(max_examples=60, deadline=None)
@given(
    losses=st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=8),
    looks=st.sets(st.integers(0, 7)),
    resumed=st.integers(0, 8),
    cut=st.integers(0, 400),
)
def test_the_log_of_a_resumed_run_is_that_of_an_uninterrupted_one(
    tmp_path_factory: pytest.TempPathFactory, losses: list[float], looks: set[int], resumed: int, cut: int
) -> None:
    """Killed at any byte after a checkpoint's rows; the rows of later updates were or were not written."""
    folder = tmp_path_factory.mktemp("log")

    def rows(first: int, seconds: float) -> Iterator[dict[str, Any]]:
        for update in range(first, len(losses)):
            yield row(update, losses[update], seconds=seconds)
            if update in looks:
                yield {"update": update, "valid": {"4": {"loss": losses[update]}}}

    whole, killed = Log(folder / "whole"), Log(folder / "killed")
    for entry in rows(0, 1.0):
        whole.write(entry)
        killed.write(entry)
    whole.close()
    killed.close()
    resumed = min(resumed, len(losses))
    safe = sum(len(line) for line in lines(folder / "whole") if json.loads(line)["update"] < resumed)
    os.truncate(folder / "killed", max(safe, os.path.getsize(folder / "killed") - cut))
    again = Log(folder / "killed", updates=resumed)
    for entry in rows(resumed, 2.0):
        again.write(entry)
    again.close()
    assert [untimed(r) for r in read_log(folder / "killed")] == [untimed(r) for r in read_log(folder / "whole")]
    assert len(lines(folder / "killed")) == len(lines(folder / "whole"))


def lines(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def test_numbers_come_back_bit_for_bit_and_non_finite_ones_as_null(tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    log.write({"update": 0, "loss": 0.1 + 0.2, "depth": (4, 8), "bad": [float("nan"), float("inf")]})
    assert read_log(tmp_path / "log") == [{"update": 0, "loss": 0.1 + 0.2, "depth": [4, 8], "bad": [None, None]}]
    log.close()


def test_a_new_log_begins_empty_and_a_torn_line_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b'{"update": 0}\n{"update": 1}\n{"upd')
    assert read_log(tmp_path / "log") == [{"update": 0}, {"update": 1}]
    Log(tmp_path / "log", updates=2).close()
    assert (tmp_path / "log").read_bytes() == b'{"update": 0}\n{"update": 1}\n'
    Log(tmp_path / "log").close()
    assert (tmp_path / "log").read_bytes() == b""


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b'{"update": 0}\nnull\n{"update": 2}\n')
    with pytest.raises(ValueError, match=r"log, line 2: not a JSON object; the log is damaged"):
        Log(tmp_path / "log", updates=3)
    assert len(lines(tmp_path / "log")) == 3


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_disk_while_logging_is_named(tmp_path: Path) -> None:
    log = Log(tmp_path / "log")
    log._file = open("/dev/full", "ab", buffering=0)  # noqa: SIM115
    with pytest.raises(DiskFull, match=r"log: the disk is full .*; the checkpoints are unharmed"):
        log.write({"update": 0})


def test_timing_keys_are_left_out_of_comparisons() -> None:
    assert untimed({"update": 1, **dict.fromkeys(TIMING_KEYS, 2.0)}) == {"update": 1}


# the folder and its lock


def test_paths(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    names = [path.name for path in (run.recipe, run.origin, run.log, run.checkpoints, run.eval, run.figures, run.report)]
    assert names == ["recipe.yaml", "origin.json", "log.jsonl", "checkpoints", "eval", "figures", "report.html"]


def hold(folder: Path, said: Any, stay: bool) -> None:
    try:
        with RunFolder(folder).locked():
            worker = os.fork() if stay else 0
            if stay:
                said.send(worker) if worker else None
                time.sleep(60)
            else:
                said.send("held")
    except ValueError as error:
        said.send(str(error))


def test_one_process_at_a_time_and_a_dead_one_holds_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    folder.mkdir()
    (folder / ".log.12.tmp").write_text("left by a killed write")
    forks = multiprocessing.get_context("fork")
    here, there = forks.Pipe()
    first = forks.Process(target=hold, args=(folder, there, True))
    first.start()
    worker = here.recv()
    try:
        assert not (folder / ".log.12.tmp").exists()
        with pytest.raises(ValueError, match=f"process {first.pid} on .* is training into this run folder; allowed: one"):
            RunFolder(folder).locked().__enter__()
        first.kill()
        first.join()
        # the worker that outlives it, as one that reads data may, holds nothing
        with RunFolder(folder).locked() as run:
            assert run.path == folder
            second = forks.Process(target=hold, args=(folder, there, False))
            second.start()
            assert here.recv().startswith(f"{folder}: process {os.getpid()} on ")
            second.join()
        last = forks.Process(target=hold, args=(folder, there, False))
        last.start()
        assert here.recv() == "held"
        last.join()
    finally:
        os.kill(worker, signal.SIGKILL)


# where it came from


def test_origin_says_what_made_a_run() -> None:
    facts = origin(["loopwright", "train", "a b"])
    assert facts["loopwright"] == VERSION and facts["command"] == "loopwright train 'a b'" and facts["devices"]
    assert json.loads(json.dumps(facts)) == facts
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    if commit.returncode == 0 and (ROOT / ".git").exists():
        assert facts["commit"] == commit.stdout.strip() and isinstance(facts["changed"], bool)


def test_a_package_that_lies_in_a_strangers_checkout_has_no_commit(tmp_path: Path) -> None:
    package = tmp_path / "site-packages" / "loopwright"
    package.mkdir(parents=True)
    (package / "version.py").write_text("")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@example.org"]
    try:
        subprocess.run([*git, "init", "-q"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no git")
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "theirs"], check=True, capture_output=True)
    assert run_module._commit(package) == {"commit": None, "changed": None}
    subprocess.run([*git, "add", "-f", "."], check=True, capture_output=True)
    subprocess.run([*git, "commit", "-q", "-m", "ours"], check=True, capture_output=True)
    facts = run_module._commit(package)
    assert len(facts["commit"]) == 40 and facts["changed"] is False
    (package / "more.py").write_text("")
    assert run_module._commit(package)["changed"] is True
