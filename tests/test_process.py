"""A second Ctrl-C or polite kill ends a process at once, in the middle of a call that does not come back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from loopwright.process import second_ends_at_once

ROOT = Path(__file__).parent.parent
# minutes in one call that releases the interpreter's lock and looks at no signal
LONG = "hashlib.pbkdf2_hmac('sha256', b'a', b'b', 10**9)"
VERB = f"import hashlib\nfrom loopwright.process import *\nwith second_ends_at_once():\n    print('ready', flush=True)\n    {LONG}"
TRAIN = f"""
import hashlib
from loopwright.training.report import StopRequest
with StopRequest():
    print("ready", flush=True)
    {LONG}
"""


def start(*words: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, *words], env=environment, text=True, **pipes)  # type: ignore[call-overload]


def interrupted_twice(children: dict[subprocess.Popen[str], int]) -> list[tuple[int, float]]:
    """Returns how children ended, and after how many seconds, when their signals came again."""
    try:
        for wait in (1.0, 0.3):  # from the word that they are ready into the long call; the same key press, told twice
            time.sleep(wait)
            for child, number in children.items():
                child.send_signal(number)
        time.sleep(1.0)
        assert all(child.poll() is None for child in children)
        ends = []
        for child, number in children.items():
            began = time.monotonic()
            child.send_signal(number)
            ends.append((child.wait(20), time.monotonic() - began))
        return ends
    finally:
        for child in children:
            child.kill()
            child.communicate()


@pytest.mark.slow
def test_a_second_signal_ends_a_call_that_does_not_come_back() -> None:
    """A verb and a run, by Ctrl-C and by a polite kill, side by side: most of the time is waiting."""
    cases = ((VERB, signal.SIGINT, 130), (TRAIN, signal.SIGINT, 130), (TRAIN, signal.SIGTERM, 143))
    children = {start("-c", program): number for program, number, _ in cases}
    assert all(child.stdout is not None and child.stdout.readline() == "ready\n" for child in children)
    for (found, seconds), (_, _, code) in zip(interrupted_twice(children), cases, strict=True):
        assert found == code and seconds < 2


def test_what_was_set_before_is_set_again() -> None:
    before = signal.set_wakeup_fd(-1)
    try:
        for _ in range(3):
            with second_ends_at_once():
                assert signal.set_wakeup_fd(-1) != -1
        assert signal.set_wakeup_fd(-1) == -1
    finally:
        signal.set_wakeup_fd(before)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_training_at_an_absurd_depth_ends_at_the_second_signal(tmp_path: Path, number: int) -> None:
    words = ["train", "demo-stable", "--toy", "depth={kind: fixed, depth: 100000}", "validate={every: 0}", "penalties=[]"]
    child = start("-m", "loopwright", *words, "--out", str(tmp_path / "run"))
    deadline = time.monotonic() + 60
    while not (tmp_path / "run" / "log.jsonl").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(5)  # inside the first update
    ((found, seconds),) = interrupted_twice({child: number})
    assert found == 128 + number and seconds < 2
