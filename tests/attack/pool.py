"""Cases run in worker processes with a limit of time and memory; what comes out of each is judged and counted."""

from __future__ import annotations

import ast
import contextlib
import io
import multiprocessing
import os
import re
import resource
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from multiprocessing.connection import Connection, wait
from pathlib import Path
from random import Random
from typing import Any

SECONDS = 60.0  # of one case on a busy machine; sound ones take milliseconds
MEMORY = 3 * 2**30  # bytes a worker may map beyond what it has after its imports
LONGEST = 6_000  # characters of a message
PACKAGE = str(Path(__file__).parents[2] / "loopwright")
# what a hostile file must never make happen
FORBIDDEN = {"os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "pickle.find_class", "socket.connect", "ctypes.dlopen"}

Case = Callable[[Random, Path], None]
Verdicts = dict[str, list[int]]
seen: list[str] = []


class WrongError(AssertionError):
    """A case that came out as it must not, though nothing was raised."""


def judge(case: Case, rng: Random, folder: Path) -> str:
    """Runs one case and returns "taken", "refused", or what is wrong with how it ended."""
    seen.clear()
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            case(rng, folder)
        verdict = "taken"
    except (ValueError, TypeError, OSError) as error:
        verdict = _refusal(error)
    except BaseException as error:
        verdict = f"raw: {_told(error)}"
    if seen:
        return f"executed: {seen[0]}"
    return "executed: a file was made" if (folder / "executed").exists() else verdict


def _refusal(error: Exception) -> str:
    message = str(error).strip()
    if not message or "\n" in message or len(message) > LONGEST:
        kind = "nothing" if not message else "several lines" if "\n" in message else "a flood"
        return f"raw: the message is {kind}: {_told(error)}"
    # a sentence of ours, or of the operating system; what Python or torch says of an operand tells a user nothing
    frame = traceback.extract_tb(error.__traceback__)[-1]
    ours = frame.filename.startswith(PACKAGE) and frame.lineno in _raising_lines(frame.filename)
    return "refused" if ours or isinstance(error, OSError) else f"unclear: {_told(error)}"


@cache
def _raising_lines(path: str) -> set[int]:
    tree = ast.parse(Path(path).read_text())
    return {line for n in ast.walk(tree) if isinstance(n, ast.Raise) for line in range(n.lineno, (n.end_lineno or n.lineno) + 1)}


def _told(error: BaseException) -> str:
    frames = [f"{Path(f.filename).name}:{f.lineno}" for f in traceback.extract_tb(error.__traceback__)]
    words = re.sub(r"(.)\1{20,}", r"\1…", str(error))[:160]
    return f"{type(error).__name__}: {words!r} at {' < '.join(reversed(frames[-5:]))}"


def run(case: Case, count: int, *, seed: int = 0, workers: int = 2) -> Verdicts:
    """Runs a case with `count` seeds and returns the seeds of each verdict."""
    todo = iter(range(seed, seed + count))
    found: Verdicts = defaultdict(list)
    busy: dict[Connection, Worker] = {}
    with tempfile.TemporaryDirectory() as home:
        for _ in range(workers):
            worker = Worker(case, Path(home))
            busy[worker.pipe] = worker
            worker.next(todo)
        while busy:
            for pipe in wait(list(busy), timeout=1.0):
                worker = busy.pop(pipe)  # type: ignore[call-overload]
                worker = worker.received(found)
                if worker.next(todo):
                    busy[worker.pipe] = worker
                else:
                    worker.end()
            for pipe, worker in list(busy.items()):
                if time.monotonic() - worker.since > SECONDS:
                    del busy[pipe]
                    found[f"hang: over {SECONDS:g} s"].append(worker.seed)
                    worker.end()
                    fresh = Worker(case, Path(home))
                    if fresh.next(todo):
                        busy[fresh.pipe] = fresh
                    else:
                        fresh.end()
    return found


class Worker:
    """One forked process that takes seeds and sends back verdicts."""

    def __init__(self, case: Case, home: Path) -> None:
        self.case, self.home, self.seed, self.since = case, home, -1, 0.0
        context = multiprocessing.get_context("fork")
        self.pipe, other = context.Pipe()
        self.process = context.Process(target=_serve, args=(case, other, self.pipe, home), daemon=True)
        self.process.start()
        other.close()

    def next(self, todo: Iterator[int]) -> bool:
        """Sends the next seed; returns whether there was one."""
        self.seed, self.since = next(todo, -1), time.monotonic()
        if self.seed >= 0:
            self.pipe.send(self.seed)
        return self.seed >= 0

    def received(self, found: Verdicts) -> Worker:
        """Counts the verdict that came; returns the worker to go on with, a fresh one where this one died."""
        try:
            verdict = self.pipe.recv()
        except EOFError:
            self.process.join()
            found[f"raw: the process died with {self.process.exitcode}"].append(self.seed)
            return Worker(self.case, self.home)
        found[verdict].append(self.seed)
        return self

    def end(self) -> None:
        """Ends the process."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _note(event: str, given: tuple[Any, ...]) -> None:
    """Notes what must not happen; the process in which tokenizers are confined is ours."""
    ours = event == "subprocess.Popen" and list(given[1]) == [sys.executable, "-P", "-m", "loopwright.confined"]
    if event in FORBIDDEN and not ours:
        seen.append(event)


def _serve(case: Case, pipe: Connection, theirs: Connection, home: Path) -> None:
    theirs.close()
    sys.addaudithook(_note)
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + MEMORY, mapped + MEMORY))
    while True:
        try:
            seed = pipe.recv()
        except EOFError:
            os._exit(0)
        folder = Path(tempfile.mkdtemp(dir=home))
        os.chdir(folder)
        verdict = judge(case, Random(seed), folder)
        shutil.rmtree(folder, ignore_errors=True)
        pipe.send(verdict)
