"""Maps to modulate in tests, and the equation that kernels are measured against."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.kernels.interpreted import DEVICE, numbers

SCALE = 0.5
GROUPS = {"one": (48,), "two": (96, 96), "three": (64, 32, 40)}
NEAR = {torch.float32: 2e-6, torch.bfloat16: 2e-2}
DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float32


def plain(x: Tensor, w: list, bias: list, a: list, b: list, d: Tensor) -> list[Tensor]:
    """The equation, map by map."""
    ds = d.flatten(0, 1).chunk(len(w), dim=-1)
    return [F.linear(x, w[i], bias[i]) + SCALE * F.linear(F.linear(x, a[i]) * ds[i], b[i]) for i in range(len(w))]


def given(outs: tuple[int, ...], *, biased: bool, wide: bool, width: int = 72, rank: int = 16) -> tuple:
    """Returns x, W, b, A, B and d; where not `wide`, d is alike for all tokens of a row. Sizes are no multiples of a tile."""
    rows, tokens, maps = 3, 47, len(outs)
    x = numbers(rows * tokens, width)
    w = [numbers(n, width, seed=i) * width**-0.5 for i, n in enumerate(outs)]
    bias = [numbers(n, seed=i) if biased else None for i, n in enumerate(outs)]
    a = [numbers(rank, width, seed=3 + i) * width**-0.5 for i in range(maps)]
    b = [numbers(n, rank, seed=6 + i) * rank**-0.5 for i, n in enumerate(outs)]
    d = numbers(rows, tokens, (maps + 2) * rank)[..., rank : rank + maps * rank] if wide else numbers(rows, 1, maps * rank)
    return x, w, bias, a, b, d


def cast(tree: object, kind: torch.dtype) -> object:
    """Returns leaves of a type that gradients reach."""
    if isinstance(tree, Tensor):
        return tree.detach().to(kind).requires_grad_()
    return None if tree is None else [cast(one, kind) for one in tree]  # type: ignore[attr-defined]


def small_tiles(monkeypatch: pytest.MonkeyPatch, launched: Any) -> None:
    """Makes the interpreter run several programs, and quickly."""
    if DEVICE == "cpu":
        for name in ("INNER", "OUTER", "OUTER_BACK"):
            monkeypatch.setattr(launched, name, launched.Tile(32, 32, 32, 4, 2))
