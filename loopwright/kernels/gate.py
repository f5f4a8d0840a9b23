"""Where our kernels run, and whether starting one costs anything.

In passes that are replayed as CUDA graphs launches are free, so that kernels which the host is slow to start pay for less work.
That holds for the whole process, not for one thread: autograd's own threads compute parts again, and must choose as the forward
pass did. A pass of another thread meanwhile chooses so too, which costs it time and changes nothing.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from shutil import which

import torch
from torch import Tensor, nn

OLDEST = (8, 0)  # compute capability: an older card has neither bfloat16 nor the memory for the kernels' tiles

launches_are_free = False  # read as an attribute of this module
_inside = 0
_counting = threading.Lock()


def is_plain(x: Tensor) -> bool:
    """Returns whether a tensor is its numbers and nothing else: what a kernel reads by its address."""
    return type(x) is Tensor or type(x) is nn.Parameter


@cache
def can_compile() -> bool:
    """Says whether Triton is there, and the C compiler without which it starts nothing."""
    return find_spec("triton") is not None and any(which(name) for name in (os.environ.get("CC", ""), "gcc", "clang") if name)


def has_kernels(x: Tensor) -> bool:
    """Returns whether what comes of x can run by kernels of ours: plain numbers on a GPU that is new enough, below float64."""
    if not is_plain(x) or not x.is_cuda or x.dtype == torch.float64:
        return False
    return torch.cuda.get_device_capability(x.device) >= OLDEST and can_compile()


@cache
def warn_once(text: str) -> None:
    """Warns, once in a process."""
    warnings.warn(text, stacklevel=2)


@contextmanager
def free_launches() -> Iterator[None]:
    """What runs inside is captured as a graph, or warms up for that."""
    _count(1)
    try:
        yield
    finally:
        _count(-1)


def _count(more: int) -> None:
    global launches_are_free, _inside
    with _counting:
        _inside += more
        launches_are_free = _inside > 0
