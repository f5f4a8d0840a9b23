"""Barriers that torch's compiler leaves out of its GPU kernels: without them compiled models trained on wrong gradients.

A kernel that sums over rows in loops may store numbers in one loop and load them in the next. Triton may give the two loops
different threads (github.com/triton-lang/triton/issues/10924), so a thread can load what another has not stored yet: whatever
the memory held before. Kernels of ASURA's norms with a row of weights per step were of this kind from the second step on, before
compiled steps were handed their rows: on an H200 the gradients of the small ASURA were wrong in every test without the barrier, and
right with it (experiments/LOG.md). With 64 tokens or more per multiprocessor, rows wider than 64 whose weights do not begin where
their table begins are summed in loops, others when they are wider than 1,024. Torch up to 2.13 puts no barrier between the loops
(github.com/pytorch/pytorch/pull/190519 does).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from inspect import getsource, unwrap
from typing import Any

import torch

BARRIER = "tl.debug_barrier()"
TAG = "loopwright-barriers"  # kernels without barriers may lie in the compiler's cache on disk: those with them have other keys
READ = ("stores", "inside_reduction", "range_trees", "is_loop", "body")  # of a kernel: private to torch, as codegen_body is


def put_barriers() -> None:
    """Makes torch's compiler end each loop that stores with a barrier, in this process and from now on."""
    if (reason := why_not()) is not None:
        raise ValueError(f"compile: {reason}; compile: false trains without it")
    _put_once()
    tag = torch.compiler.config.cache_key_tag  # from torch 2.13 on each thread has its own
    if TAG not in tag.split():
        torch.compiler.config.cache_key_tag = f"{tag} {TAG}".strip()


@cache
def why_not() -> str | None:
    """Returns why no barriers can be put into what this torch compiles, or None."""
    try:
        from torch._inductor.codegen.triton import TritonKernel  # seconds of imports, which compiling needs anyway

        source = getsource(unwrap(TritonKernel.codegen_body))
        missing = [name for name in READ if f".{name}" not in source]
    except (ImportError, AttributeError, OSError):
        missing = ["TritonKernel.codegen_body"]
    if not missing:
        return None
    return f"its kernels may lack barriers, which cannot be put into those of torch {torch.__version__} (no {', '.join(missing)})"


@cache
def _put_once() -> None:
    from torch._inductor.codegen.triton import TritonKernel

    TritonKernel.codegen_body = with_barriers(TritonKernel.codegen_body)  # type: ignore[method-assign]


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
