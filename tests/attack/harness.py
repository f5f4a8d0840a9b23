"""Kills and damage: a child that dies at its n-th call on the files of a folder, and the ways in which a file can be hurt."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from loopwright.storage import folder as folder_module

FORKS = multiprocessing.get_context("fork")
EVENTS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.chmod", "os.truncate", "os.symlink"}
FLIPS = ("flip", "flip", "flip", "truncation", "removal", "growth", "zeros")


def killed_at(number: int, place: Path, work: Callable[[], object], *, two_renames: bool = False) -> bool:
    """Runs `work` in a fork that is killed (-9) before its n-th call on files of `place`; returns whether it came to that.

    Calls are those that Python reports (open, make, rename, remove, link, chmod), every fsync and the exchange of two folders.
    With `two_renames` the system cannot exchange folders.
    """

    def guarded() -> None:
        left = [number]

        def count() -> None:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            if event in EVENTS and str(arguments[0]).startswith(str(place)):
                count()

        def exchange(one: Path, other: Path, real: Any = folder_module.exchange) -> bool:
            count()
            return False if two_renames else real(one, other)

        folder_module.exchange = exchange
        os.fsync = lambda handle: count()  # type: ignore[assignment]
        sys.addaudithook(hook)
        work()
        os._exit(0)

    child = FORKS.Process(target=guarded)
    child.start()
    child.join()
    assert child.exitcode in (-signal.SIGKILL, 0), child.exitcode
    return child.exitcode != 0


def hurt(path: Path, rng: random.Random) -> str:
    """Damages a file at random and returns how."""
    content, kind = path.read_bytes(), rng.choice(FLIPS)
    if kind == "flip":
        place = rng.randrange(len(content))
        path.write_bytes(content[:place] + bytes([content[place] ^ 1 << rng.randrange(8)]) + content[place + 1 :])
    elif kind == "truncation":
        path.write_bytes(content[: rng.randrange(len(content))])
    elif kind == "growth":
        path.write_bytes(content + rng.randbytes(rng.randrange(1, 20)))
    elif kind == "zeros":
        first = rng.choice([place for place, byte in enumerate(content) if byte])
        path.write_bytes(content[:first] + bytes(len(content) - first))
    else:
        path.unlink()
    return kind


def swap(one: Path, other: Path) -> str:
    """Lets two files change places."""
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)
    return f"exchanged with {other.name}"


def fresh(source: Path, place: Path) -> Path:
    """Copies a folder to a place, in the stead of what is there."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(source, place)
    return place
