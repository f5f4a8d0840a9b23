"""Where golden cases lie, and small builders that several test files share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import loopwright as lw

HERE = Path(__file__).parent
ROOTS = (HERE / "golden", HERE.parent.parent / "shared" / "golden")


def golden_folders(*names: str) -> list[Path]:
    """Returns the folders of the named cases: the copies in the repository, and the originals where they are there."""
    return [root / name for root in ROOTS for name in names if (root / name).is_dir()]


def gap(a: Tensor, b: Tensor) -> float:
    """Returns the largest absolute difference."""
    assert a.shape == b.shape, f"{tuple(a.shape)} against {tuple(b.shape)}"
    return (a - b).abs().max().item() if a.numel() else 0.0


def noisy(name: str, *, seed: int = 0, std: float = 1.0, **changes: Any) -> lw.LoopedForCausalLM:
    """Returns a tiny preset whose every parameter has been moved, so that no part is without effect."""
    torch.manual_seed(seed)
    model = lw.build(name, **changes)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * std * max(parameter.std().item() if parameter.numel() > 1 else 0.0, 0.1))
    return model
