"""How many threads a model gets on the CPU."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch

SMALL = 1_000_000  # parameters: below it one thread was faster, for training and for sampling (benchmarks/threads.py)


@contextmanager
def fitting_threads(model: torch.nn.Module) -> Iterator[None]:
    """Runs a small model on the CPU on one thread for a while: waiting for the others would cost it more than they bring.

    Whoever sets OMP_NUM_THREADS has chosen already.
    """
    before, parameters = torch.get_num_threads(), list(model.parameters())
    size = sum(p.numel() for p in parameters)
    if "OMP_NUM_THREADS" not in os.environ and before > 1 and size < SMALL and {p.device.type for p in parameters} == {"cpu"}:
        torch.set_num_threads(1)
        _say_once(f"threads: 1 of {before}, for a model of {size:,} parameters (OMP_NUM_THREADS=N takes N)")
    try:
        yield
    finally:
        torch.set_num_threads(before)


@cache
def _say_once(line: str) -> None:
    print(line, file=sys.stderr)
