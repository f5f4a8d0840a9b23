"""What a terminal is told, and how Ctrl-C is heard."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import loopwright
from loopwright.storage.run import RunFolder
from loopwright.training import report as module
from loopwright.training.loop import train
from loopwright.training.recipe import written
from loopwright.training.report import Progress, Silent, StopRequest, Terminal, in_words, truncation_in_words
from tests.training.runs import rows_of, small

ROW: dict[str, Any] = {"update": 2, "loss": 1.5, "depth": [3, 4], "grad_norm": 0.5, "lr": 1e-3, "targets": 8, "tokens": 40}
SEEN: dict[str, Any] = {
    "valid": {1: {"loss": 2.0, "exact": 0.25}, 4: {"loss": 1.0, "exact": None}},
    "radius": {"radius_mean": 0.875},
    "truncation": {"grad_steps": 3, "depth": 8, "contraction": 0.5},
}


def test_a_terminal_hears_of_everything_that_matters(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    reporter, progress = Terminal("mine", every=0.0), Progress(update=3, skipped=1)
    reporter.prepare("tokenising train", 1000, 5000)
    reporter.start(small(), RunFolder(tmp_path), progress)
    reporter.validation(SEEN, progress)
    reporter.update(ROW, progress, 0.5)
    reporter.update({**ROW, "reward": 0.25}, progress, 0.5)
    reporter.update({**ROW, "loss": float("nan"), "depth": [1, 2, 3, 4, 5], "skipped": True}, progress, 0.5)
    reporter.end(progress, tmp_path / "checkpoints" / "00000003", stopped=True)
    reporter.close()
    said = capsys.readouterr().err
    assert all(line.startswith("mine: ") for line in said.splitlines())
    for words in (
        "tokenising train: 1,000 of 5,000", "reward 0.25  depth 3, 4", "by depth 1: 25.0 %, 4: 1.000", "spectral radius 0.875",
        "loss 1.5000  depth 3, 4  ρ 0.88  80 tokens/s", "update 2 skipped: loss nan, gradient norm 0.5 at depth 1, 2, 3, 4 …",
        "stopped after 3 updates (1 skipped); saved in",
    ):  # fmt: skip
        assert words in said, words
    assert "loss nan  " not in said, "the running loss forgets what is not a number"


def test_lines_come_now_and_then_where_there_is_no_bar(capsys: pytest.CaptureFixture[str]) -> None:
    reporter = Terminal("mine", every=1000.0)
    for _ in range(5):
        reporter.update(ROW, Progress(update=3), 0.5)
    assert capsys.readouterr().err == ""


def test_a_line_says_how_far_the_run_is_and_how_long_the_rest_takes(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    reporter = Terminal("mine", every=5.0)
    reporter.start(small({"updates": 1210}), RunFolder(tmp_path), Progress(update=10))  # a resumed run counts from where it goes on
    now[0] += 40.0
    reporter.update(ROW, Progress(update=210), 0.2)
    reporter.close()
    assert "mine: update 210 of 1,210 (3 min 20 s left): loss 1.5" in capsys.readouterr().err
    assert [in_words(t) for t in (3.6, 61, 7500, 360000)] == ["4 s", "1 min 1 s", "2 h 5 min", "100 h 0 min"]


def test_truncation_is_said_with_what_it_leaves_out() -> None:
    assert "last 3 steps" in truncation_in_words(SEEN["truncation"]) and "1.2e-01" in truncation_in_words(SEEN["truncation"])
    assert "does not shrink" in truncation_in_words({"grad_steps": 3, "depth": 8, "contraction": 1.25})


def test_quiet_keeps_the_notes(tmp_path: Path) -> None:
    reporter = Silent()
    reporter.note("a line")
    reporter.prepare("x", 1, None)
    reporter.start(small(), RunFolder(tmp_path), Progress())
    reporter.update(ROW, Progress(), 1.0)
    reporter.validation(SEEN, Progress())
    reporter.end(Progress(), tmp_path, stopped=False)
    reporter.close()
    assert reporter.notes == ["a line"]


def test_the_first_control_c_asks_and_the_same_key_press_told_twice_is_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loopwright.process.SAME_REQUEST", 60.0)  # what comes later ends this process
    before = signal.getsignal(signal.SIGINT)
    with StopRequest() as stop:
        assert not stop
        os.kill(os.getpid(), signal.SIGINT)
        assert stop
        os.kill(os.getpid(), signal.SIGTERM)  # at once, as from a launcher: the same request
        time.sleep(0.05)
        assert stop
    assert signal.getsignal(signal.SIGINT) is before
    assert capsys.readouterr().err.count("stopping after this update") == 1


def test_a_terminal_that_goes_asks_too_unless_nobody_minds(monkeypatch: pytest.MonkeyPatch) -> None:
    with StopRequest(told=False) as stop:
        os.kill(os.getpid(), signal.SIGHUP)
        assert stop
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with StopRequest(told=False) as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.long
def test_a_run_whose_terminal_was_closed_is_saved_and_goes_on(tmp_path: Path) -> None:
    """A terminal of its own, closed in the middle: the system sends SIGHUP, and nothing can be printed any more."""
    recipe = small({"updates": 2_000, "validate": {"every": 0}, "save": {"best": False}})
    (tmp_path / "mine.yaml").write_text(written(recipe))
    ours, theirs = pty.openpty()

    def take_terminal() -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    environment = {**os.environ, "PYTHONPATH": str(Path(loopwright.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-m", "loopwright", "train", str(tmp_path / "mine.yaml"), "--out", str(tmp_path / "run")]
    child = subprocess.Popen(
        words, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True, preexec_fn=take_terminal, env=environment
    )
    os.close(theirs)
    try:
        latest = time.monotonic() + 120
        log = tmp_path / "run" / "log.jsonl"
        while not (log.exists() and log.read_bytes().count(b"\n") > 3) and time.monotonic() < latest and child.poll() is None:
            if select.select([ours], [], [], 0.05)[0]:
                os.read(ours, 4096)
        os.close(ours)
        assert child.wait(60) == 130
    finally:
        child.kill()
        child.wait()
    rows = rows_of(tmp_path / "run")
    done = len(rows)
    assert 3 < done < 2_000 and [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == [f"{done:08d}"]
    train(recipe, tmp_path / "run", resume=True, on_update=lambda row: row["update"] == done + 3)
    assert [row["update"] for row in rows_of(tmp_path / "run")] == list(range(done + 4))


def test_a_polite_kill_asks_too_and_other_threads_cannot(capsys: pytest.CaptureFixture[str]) -> None:
    with StopRequest(told=False) as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop and capsys.readouterr().err == ""
    found = []

    def elsewhere() -> None:
        with StopRequest() as stop:
            found.append(bool(stop))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert found == [False]
