"""Ctrl-C and polite kills: a first one is the business of whoever runs; a second one ends the process at once.

Python runs signal handlers between its own instructions, so that one long call (the backward pass of a deep loop, a large product)
holds them up until it returns. The operating system hands signals to Python's C code at once, though, which writes a byte each into
a pipe; a thread reads them, and needs nothing from the main thread but the interpreter's lock, which long calls release.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

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
