"""Whether launches cost anything: in passes that are replayed as CUDA graphs they do not, so that kernels which the host is slow to
start pay for less work.

It holds for the whole process, not for one thread: autograd's own threads compute parts again, and must choose as the forward pass
did. A pass of another thread meanwhile chooses so too, which costs it time and changes nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

free = False  # read as an attribute of this module
_inside = 0
_counting = threading.Lock()


@contextmanager
def free_launches() -> Iterator[None]:
    """What runs inside is captured as a graph, or warms up for that."""
    _count(1)
    try:
        yield
    finally:
        _count(-1)


def _count(more: int) -> None:
    global free, _inside
    with _counting:
        _inside += more
        free = _inside > 0
