"""Modulated maps by kernels, forward and back: y = W x + b + scale · B ((A x) ⊙ d), for up to three maps that share x.

Two operators of torch's library, so that a compiler takes each as it is. A backward pass that is itself to be differentiated runs
the plain equations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from loopwright.model.parts.adapter import modulated_kernel as kernels

HOPPER = (9, 0)


@dataclass(frozen=True)
class Tile:
    """What a program makes: rows (tokens) and columns of the output, columns of the input at a time; warps and stages."""

    rows: int
    columns: int
    step: int
    warps: int
    stages: int


INNER = Tile(64, 0, 128, 4, 3)
OUTER = Tile(128, 128, 64, 4, 3)
INNER_BACK = Tile(64, 0, 128, 4, 3)
OUTER_BACK = Tile(128, 128, 64, 4, 3)


def _three(tensors: Sequence[Tensor | None], rows: int, columns: int) -> list[TensorDescriptor | None]:
    """Returns what reads each of up to three matrices a block at a time, None for those that are not there."""
    found = [None if t is None else TensorDescriptor.from_tensor(t, [rows, columns]) for t in tensors]
    return [*found, *[None] * (3 - len(found))]


def _launch(tile: Tile, early: bool) -> dict[str, Any]:
    return {"num_warps": tile.warps, "launch_pdl": True} if early else {"num_warps": tile.warps}


def _early(x: Tensor) -> bool:
    return x.is_cuda and torch.cuda.get_device_capability(x.device) >= HOPPER


def run_forward(
    x: Tensor, w: Sequence[Tensor], bias: Sequence[Tensor | None], a: Sequence[Tensor], b: Sequence[Tensor], d: Tensor, scale: float,
    inner: Tile = INNER, outer: Tile = OUTER, early: bool | None = None,
) -> tuple[list[Tensor], Tensor]:  # fmt: skip
    """Returns the outputs [M, out] of each map for x [M, in] and d [B, T, maps · r] with B · T = M, and A x [M, maps · r]."""
    (tokens, width), rank, maps = x.shape, a[0].shape[0], len(w)
    early = _early(x) if early is None else early
    raw, z = x.new_empty(2, tokens, maps * rank).unbind()
    ys = [x.new_empty(tokens, m.shape[0]) for m in w]
    kernels._inner[(triton.cdiv(tokens, inner.rows),)](
        *_three([x], inner.rows, inner.step)[:1], *_three(a, rank, inner.step), d, raw, z, tokens, d.shape[1], *d.stride()[:2], scale,
        width, rank, inner.rows, inner.step, inner.stages, early, num_warps=inner.warps,
    )  # fmt: skip
    tiles = [triton.cdiv(m.shape[0], outer.columns) for m in w]
    kernels._outer[(triton.cdiv(tokens, outer.rows) * sum(tiles),)](
        *_three([x], outer.rows, outer.step)[:1], *_three(w, outer.columns, outer.step), *_three([z], outer.rows, rank)[:1],
        *_three(b, outer.columns, rank), *bias, *[None] * (3 - maps), *_three(ys, outer.rows, outer.columns),
        tiles[0], tiles[1] if maps > 1 else 0, sum(tiles), early,
        width, rank, outer.rows, outer.columns, outer.step, outer.stages, **_launch(outer, early),
    )  # fmt: skip
    return ys, raw


def run_backward(
    g: Sequence[Tensor], w: Sequence[Tensor], a: Sequence[Tensor], b: Sequence[Tensor], d: Tensor, raw: Tensor, scale: float,
    inner: Tile = INNER_BACK, outer: Tile = OUTER_BACK, early: bool | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Returns the gradients of x [M, in], of A x and of d, [M, maps · r] each, for those of the outputs."""
    tokens, width, rank, maps = g[0].shape[0], w[0].shape[1], a[0].shape[0], len(w)
    early = _early(raw) if early is None else early
    (dz, dd), dx = torch.empty_like(raw).new_empty(2, *raw.shape).unbind(), raw.new_empty(tokens, width)
    widths = [m.shape[0] for m in w] + [0] * (3 - maps)
    kernels._inner_back[(triton.cdiv(tokens, inner.rows), maps)](
        *_three(g, inner.rows, inner.step), *_three(b, inner.step, rank), d, raw, dz, dd, tokens, d.shape[1], *d.stride()[:2], scale,
        *widths, maps, rank, inner.rows, inner.step, inner.stages, early, num_warps=inner.warps,
    )  # fmt: skip
    tiles = triton.cdiv(width, outer.columns)
    kernels._outer_back[(triton.cdiv(tokens, outer.rows) * tiles,)](
        *_three(g, outer.rows, outer.step), *_three(w, outer.step, outer.columns), *_three([dz], outer.rows, rank)[:1],
        *_three(a, rank, outer.columns), *_three([dx], outer.rows, outer.columns)[:1],
        tiles, early, *widths, rank, outer.rows, outer.columns, outer.step, outer.stages, **_launch(outer, early),
    )  # fmt: skip
    return dx, dz, dd
