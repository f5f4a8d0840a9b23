"""Barriers that torch's compiler leaves out of its GPU kernels: without them compiled models trained on wrong gradients.

A kernel that sums over rows in loops may store numbers in one loop and load them in the next. Triton may give the two loops
different threads (github.com/triton-lang/triton/issues/10924), so a thread can load what another has not stored yet: whatever
the memory held before. Norms of ASURA with a row of weights per step did (experiments/LOG.md), from the second step on: rows that
do not begin where their table begins are summed in loops at every width, others from 1,024 numbers on. Torch up to 2.13 puts no
barrier between the loops (mended since: github.com/pytorch/pytorch/pull/190519).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import torch

BARRIER = "tl.debug_barrier()"
TAG = "loopwright-barriers"  # kernels without barriers may lie in the compiler's cache on disk: those with them have other keys


@cache
def put_barriers() -> None:
    """Makes torch's compiler end each loop that stores with a barrier, in this process and from now on."""
    from torch._inductor.codegen.triton import TritonKernel  # seconds of imports, which compiling needs anyway

    TritonKernel.codegen_body = with_barriers(TritonKernel.codegen_body)  # type: ignore[method-assign]
    torch.compiler.config.cache_key_tag = f"{torch.compiler.config.cache_key_tag} {TAG}".strip()


def with_barriers(codegen_body: Callable[[Any], None]) -> Callable[[Any], None]:
    """Returns the method that writes what a kernel has gathered, as one loop where it sums in loops; with a barrier after a loop
    that stores."""

    @wraps(codegen_body)
    def write(kernel: Any) -> None:
        stores = bool(kernel.stores) and kernel.inside_reduction and any(tree.is_loop for tree in kernel.range_trees)
        codegen_body(kernel)
        if stores:
            kernel.body.writeline(BARRIER)

    return write
