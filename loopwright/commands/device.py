"""Dtypes, devices and threads: what the command line names and what a model gets."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch

from loopwright.settings import suggest

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
SMALL = 1_000_000  # parameters: below it one thread was faster, for training and for sampling (benchmarks/threads.py)


def find_dtype(name: str) -> torch.dtype:
    """Returns the dtype of a name such as bf16 or float32."""
    if name not in DTYPES:
        raise ValueError(f"dtype: unknown {name!r}; {suggest(name, DTYPES)}")
    return DTYPES[name]


def find_device(name: str) -> str:
    """Returns the name of a device that is there."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"device: unknown {name!r}; allowed: cpu, cuda, cuda:N, mps") from None
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not there.get(device.type) or (device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count()):
        raise ValueError(f"device: {name!r} is not there; allowed here: {', '.join(kind for kind, here in there.items() if here)}")
    return name


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
