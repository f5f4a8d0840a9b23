"""Whether launches cost anything: in passes that are replayed as CUDA graphs they do not, so that kernels which the host is slow to
start pay for less work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

free = False  # read as an attribute of this module


@contextmanager
def free_launches() -> Iterator[None]:
    """What runs inside is captured as a graph, or warms up for that."""
    global free
    before, free = free, True
    try:
        yield
    finally:
        free = before
