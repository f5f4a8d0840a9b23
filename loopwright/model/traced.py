"""Whether a pass is recorded as a program: then what its tensors hold decides nothing, and what it makes is not kept."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec

import torch
from torch import Tensor

P = ParamSpec("P")


def is_recorded() -> bool:
    """Returns whether this pass is recorded to run with other values: by torch.compile, torch.export or torch.jit.trace."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


def is_unguarded() -> bool:
    """Returns whether it is recorded for other sizes as well, and nobody looks at them later: `torch.compile` alone does."""
    return torch.compiler.is_exporting() or torch.jit.is_tracing()


def may_be_kept(x: Tensor) -> bool:
    """Returns whether a tensor outlives the pass that made it: one that stands for others does not (fake, functional)."""
    return not is_recorded() and type(x) is Tensor


def cached_constant(most: int) -> Callable[[Callable[P, Tensor]], Callable[P, Tensor]]:
    """Keeps the tensors that a function makes, the `most` that were made last, by its arguments; `lru_cache` would keep any."""

    def around(make: Callable[P, Tensor]) -> Callable[P, Tensor]:
        held: dict[object, Tensor] = {}

        @wraps(make)
        def get(*args: P.args, **options: P.kwargs) -> Tensor:
            key = (args, *options.items())
            if key in held:
                return held[key]
            made = make(*args, **options)
            if may_be_kept(made):
                held[key] = made
                if len(held) > most:
                    held.pop(next(iter(held)), None)
            return made

        return get

    return around
