"""Modulated maps by kernels, forward and back: y = W x + b + scale · B ((A x) ⊙ d), for up to three maps that share x.

Two operators of torch's library, so that a compiler takes each as it is. There is a backward pass, and neither a derivative of it,
which is refused, nor one forward, which torch takes for 0: whoever calls them must ask `derived_otherwise` first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from loopwright.kernels import modulated as kernels
from loopwright.kernels.products import launch_options


@dataclass(frozen=True)
class Tile:
    """What a program makes: rows (tokens) and columns of the output, columns of the input at a time; warps and stages."""

    rows: int
    columns: int
    step: int
    warps: int
    stages: int


# the fastest of those tried on an H200 (experiments/LOG.md, "modulated maps by kernels")
INNER = Tile(64, 0, 64, 4, 4)
OUTER = Tile(128, 128, 64, 4, 3)
OUTER_BACK = Tile(128, 128, 64, 4, 2)


def _three(tensors: Sequence[Tensor], rows: int, columns: int) -> list[TensorDescriptor | None]:
    """Returns what reads up to three matrices a block at a time, None for those that are not there."""
    return [*(TensorDescriptor.from_tensor(one, [rows, columns]) for one in tensors), *[None] * (3 - len(tensors))]


def _one(tensor: Tensor, rows: int, columns: int) -> TensorDescriptor:
    return TensorDescriptor.from_tensor(tensor, [rows, columns])


def _rows(d: Tensor) -> Tensor:
    return d if d.stride(2) == 1 else d.contiguous()


@torch.library.custom_op("loopwright::modulated", mutates_args=())
def modulated(
    x: Tensor, w: list[Tensor], a: list[Tensor], b: list[Tensor], d: Tensor, scale: float,
    bias0: Tensor | None, bias1: Tensor | None, bias2: Tensor | None,
) -> list[Tensor]:  # fmt: skip
    """Returns the outputs [M, out] of each map for x [M, in] and d [B, T, maps · r], B · T = M; last A x [M, maps · r]."""
    x, d, inner, outer, early = x.contiguous(), _rows(d), INNER, OUTER, x.is_cuda
    (tokens, width), rank, maps = x.shape, a[0].shape[0], len(w)
    raw, z = (x.new_empty(tokens, maps * rank) for _ in range(2))
    ys = [x.new_empty(tokens, m.shape[0]) for m in w]
    tiles = [triton.cdiv(m.shape[0], outer.columns) for m in w]
    with torch.cuda.device_of(x):  # Triton launches on the current card, not on the one that holds the numbers
        kernels._inner[(triton.cdiv(tokens, inner.rows),)](
            _one(x, inner.rows, inner.step), *_three(a, rank, inner.step), d, raw, z, tokens, d.shape[1], *d.stride()[:2],
            scale, width, rank, inner.rows, inner.step, inner.stages, early, num_warps=inner.warps,
        )  # fmt: skip
        kernels._outer[(triton.cdiv(tokens, outer.rows) * sum(tiles),)](
            _one(x, outer.rows, outer.step), *_three(w, outer.columns, outer.step), _one(z, outer.rows, rank),
            *_three(b, outer.columns, rank), bias0, bias1, bias2, *_three(ys, outer.rows, outer.columns),
            tiles[0], tiles[1] if maps > 1 else 0, sum(tiles), early,
            width, rank, outer.rows, outer.columns, outer.step, outer.stages, **launch_options(outer.warps, early=early),
        )  # fmt: skip
    return [*ys, raw]


@modulated.register_fake
def _(x, w, a, b, d, scale, bias0, bias1, bias2):  # type: ignore[no-untyped-def]
    return [*(x.new_empty(x.shape[0], m.shape[0]) for m in w), x.new_empty(x.shape[0], d.shape[2])]


@torch.library.custom_op("loopwright::modulated_back", mutates_args=())
def modulated_back(
    g: list[Tensor], w: list[Tensor], a: list[Tensor], b: list[Tensor], d: Tensor, raw: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the gradients of x [M, in], of A x and of d, [M, maps · r] each, for those of the outputs."""
    g, d, inner, outer, early = [one.contiguous() for one in g], _rows(d), INNER, OUTER_BACK, raw.is_cuda
    (tokens, _), width, rank, maps = raw.shape, w[0].shape[1], a[0].shape[0], len(w)
    dz, dd, dx = torch.empty_like(raw), torch.empty_like(raw), raw.new_empty(tokens, width)
    widths = [m.shape[0] for m in w] + [0] * (3 - maps)
    tiles = triton.cdiv(width, outer.columns)
    with torch.cuda.device_of(raw):
        kernels._inner_back[(triton.cdiv(tokens, inner.rows), maps)](
            *_three(g, inner.rows, inner.step), *_three(b, inner.step, rank), d, raw, dz, dd, tokens, d.shape[1], *d.stride()[:2],
            scale, *widths, maps, rank, inner.rows, inner.step, inner.stages, early, num_warps=inner.warps,
        )  # fmt: skip
        kernels._outer_back[(triton.cdiv(tokens, outer.rows) * tiles,)](
            *_three(g, outer.rows, outer.step), *_three(w, outer.step, outer.columns), _one(dz, outer.rows, rank),
            *_three(a, rank, outer.columns), _one(dx, outer.rows, outer.columns),
            tiles, early, *widths, rank, outer.rows, outer.columns, outer.step, outer.stages,
            **launch_options(outer.warps, early=early),
        )  # fmt: skip
    return dx, dz, dd


@modulated_back.register_fake
def _(g, w, a, b, d, raw, scale):  # type: ignore[no-untyped-def]
    return raw.new_empty(raw.shape[0], w[0].shape[1]), torch.empty_like(raw), torch.empty_like(raw)


def _keep(ctx: Any, inputs: tuple, output: list[Tensor]) -> None:
    x, w, a, b, d, ctx.scale, *bias = inputs
    ctx.maps = len(w)
    ctx.biased = [one is not None and one.requires_grad for one in bias]
    ctx.weights, ctx.bases = [any(m.requires_grad for m in ms) for ms in (w, (*a, *b))]
    # x is needed for the gradients of weights alone
    ctx.save_for_backward(d, output[-1], *w, *a, *b, *([x] if ctx.weights or ctx.bases else []))


def _gradients(ctx: Any, grads: Sequence[Tensor | None]) -> tuple:
    d, raw, *saved = ctx.saved_tensors
    n = ctx.maps
    w, a, b, x = saved[:n], saved[n : 2 * n], saved[2 * n : 3 * n], saved[3 * n :]
    g = [raw.new_zeros(raw.shape[0], m.shape[0]) if one is None else one for one, m in zip(grads, w, strict=False)]
    dx, dz, dd = modulated_back(g, w, a, b, d, raw, ctx.scale)
    of_w: list[Tensor | None] = [None] * n
    of_a, of_b = list(of_w), list(of_w)
    if ctx.weights:
        of_w = [one.T @ x[0] for one in g]
    if ctx.bases:
        z = (ctx.scale * raw * d.flatten(0, 1)).to(raw.dtype)
        of_a = [part.T @ x[0] for part in dz.chunk(n, dim=-1)]
        of_b = [one.T @ part for one, part in zip(g, z.chunk(n, dim=-1), strict=True)]
    of_bias = [one.sum(0) if biased else None for one, biased in zip(g, ctx.biased, strict=False)]
    return dx, of_w, of_a, of_b, dd.view_as(d).to(d.dtype), None, *of_bias, *[None] * (3 - n)


modulated.register_autograd(_gradients, setup_context=_keep)
