"""How many threads a model gets on the CPU, and which library multiplies for it."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch

from loopwright.terminal import say

SMALL = 1_000_000  # parameters: below it one thread was faster, for training and for sampling (benchmarks/threads.py)


ARM = ("aarch64", "arm64")  # where oneDNN is slow at products of small matrices: experiments/LOG.md, 2026-11-16


@contextmanager
def fitting_threads(model: torch.nn.Module) -> Iterator[None]:
    """Runs a small model on the CPU on one thread for a while: waiting for the others would cost it more than they bring.

    On ARM its products are left to PyTorch itself, without oneDNN. Whoever sets OMP_NUM_THREADS has chosen the threads already.
    """
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
