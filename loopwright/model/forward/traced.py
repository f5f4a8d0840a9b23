"""Whether a pass is recorded as a program: then what its tensors hold decides nothing, and what it makes is not kept."""

from __future__ import annotations

import torch
from torch import Tensor


def is_recorded() -> bool:
    """Returns whether this pass is recorded to run with other values: by torch.compile, torch.export or torch.jit.trace."""
    return torch.compiler.is_compiling() or torch.jit.is_tracing()


def is_unguarded() -> bool:
    """Returns whether it is recorded for other sizes as well, and nobody looks at them later: `torch.compile` alone does."""
    return torch.compiler.is_exporting() or torch.jit.is_tracing()


def may_be_kept(x: Tensor) -> bool:
    """Returns whether a tensor outlives the pass that made it: one that stands for others does not (fake, functional)."""
    return not is_recorded() and type(x) is Tensor
