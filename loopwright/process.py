"""What belongs to the whole process: kills, threads, and what is written to its terminal.

A first Ctrl-C or polite kill is the business of whoever runs; a second one ends the process at once. Python runs signal handlers
between its own instructions, so that one long call (the backward pass of a deep loop, a large product) holds them up until it
returns. The operating system hands signals to Python's C code at once, though, which writes a byte each into a pipe; a thread reads
them, and needs nothing from the main thread but the interpreter's lock, which long calls release.

Nothing that is shown can steer a terminal, whoever gave a file, a run or a token its name.
"""

from __future__ import annotations

import os
import platform
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions
from rich.segment import Segment
from rich.text import Text

from loopwright.untrusted import visible

if TYPE_CHECKING:
    import torch

# one key press may come twice, from the terminal and from a launcher: what comes within so many seconds is the same request
SAME_REQUEST = 1.0
# SIGHUP, which not every system has: the terminal, or the connection to it, has gone
STOPS = tuple(number for name in ("SIGINT", "SIGTERM", "SIGHUP") if (number := getattr(signal, name, None)) is not None)
SHOW_CURSOR = "\x1b[?25h"  # a progress bar hides it


@contextmanager
def second_ends_at_once() -> Iterator[None]:
    """While the block runs, a second Ctrl-C (or another signal that Python handles) ends the process, with nothing cleaned up.

    What is written whole or not at all stays so. Only the main thread can ask for this; elsewhere nothing is done.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    threading.Thread(target=_count, args=(ours,), daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before, warn_on_full_buffer=False)
        theirs.close()  # ends the thread


def say_nothing() -> None:
    """Sends what this process still prints nowhere: its terminal has gone."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    os.close(nowhere)


def _count(pipe: socket.socket) -> None:
    first: float | None = None
    with pipe:
        while numbers := pipe.recv(64):
            wanted = [number for number in numbers if number in STOPS]
            if not wanted:
                continue
            now = time.monotonic()
            if first is not None and now - first > SAME_REQUEST:
                if sys.stderr.isatty():
                    os.write(2, SHOW_CURSOR.encode())
                os._exit(128 + wanted[-1])
            first = now if first is None else first


class Screen(Console):
    """A console that shows what would steer it written out, and takes rich's tags in a name for the text that they are."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Returns text with its style: where it is measured it is what is shown."""
        return super().render_str(visible(text), **options)

    def render(self, renderable: Any, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yields what is written: rich's own movements of the cursor, and visible text."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


def say(line: str) -> None:
    """Writes a line to stderr at once."""
    print(visible(line), file=sys.stderr, flush=True)


def stream_out(text: str) -> None:
    """Writes a piece of text to stdout at once: as it is into a file or a pipe, visible on a terminal."""
    print(visible(text) if sys.stdout.isatty() else text, end="", flush=True)


SMALL = 1_000_000  # parameters: below it one thread was faster, for training and for sampling (benchmarks/threads.py)


ARM = ("aarch64", "arm64")  # where oneDNN is slow at products of small matrices: experiments/LOG.md, 2026-11-16


@contextmanager
def fitting_threads(model: torch.nn.Module) -> Iterator[None]:
    """Runs a small model on the CPU on one thread for a while: waiting for the others would cost it more than they bring.

    On ARM its products are left to PyTorch itself, without oneDNN. Whoever sets OMP_NUM_THREADS has chosen the threads already.
    """
    import torch  # not with the module: help must not wait for it

    parameters = list(model.parameters())
    size = sum(p.numel() for p in parameters)
    if size >= SMALL or {p.device.type for p in parameters} != {"cpu"}:
        yield
        return
    threads, onednn = torch.get_num_threads(), torch.backends.mkldnn.enabled
    if "OMP_NUM_THREADS" not in os.environ and threads > 1:
        torch.set_num_threads(1)
        _say_once(f"threads: 1 of {threads}, for a model of {size:,} parameters (OMP_NUM_THREADS=N takes N)")
    torch.backends.mkldnn.enabled = onednn and platform.machine() not in ARM  # type: ignore[assignment]  # a property
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.backends.mkldnn.enabled = onednn


@cache
def _say_once(line: str) -> None:
    say(line)
