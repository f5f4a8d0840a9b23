"""Triton kernels of modulated maps that share x, two for all of them: y = W x + b + B z with z = scale · (A x) ⊙ d.

`_inner` makes z, reading x once; `_outer` makes y, its sum going on from W x to B z before anything is written. Back, the same
two: of the outputs' gradients g, `_inner_back` makes scale · (Bᵀ g) ⊙ d and the gradient of d, and `_outer_back` that of x, one
sum over all maps. Weights are read where the parameters lie. Sums are float32.

Where `early` holds, `_outer` starts before `_inner` has ended (programmatic dependent launch, Hopper) and waits for z when it has
summed W x.
"""

from __future__ import annotations

import triton
import triton.language as tl

from loopwright.kernels.products import go_early, wait_early


@triton.jit
def _summed(total, x, w, row, from_x, column, length: tl.constexpr, step: tl.constexpr, stages: tl.constexpr):
    """Adds x wᵀ of a tile to its sum: rows of x from `row`, its columns from `from_x`, rows of w from `column`."""
    for k in tl.range(0, length, step, num_stages=stages):
        total = tl.dot(x.load([row, from_x + k]), w.load([column, k]).T, total, input_precision="ieee")
    return total


@triton.jit
def _summed_back(total, g, w, row, from_g, column, length: tl.constexpr, step: tl.constexpr, stages: tl.constexpr):
    """Adds g w of a tile to its sum."""
    for k in tl.range(0, length, step, num_stages=stages):
        total = tl.dot(g.load([row, from_g + k]), w.load([k, column]), total, input_precision="ieee")
    return total


@triton.jit
def _of_rows(d, m, length, d_row, d_token, column, rank: tl.constexpr, tokens):
    """Returns the diagonals of the tokens m, [m, rank]."""
    at = (m // length).to(tl.int64) * d_row + (m % length).to(tl.int64) * d_token
    return tl.load(d + at[:, None] + (column + tl.arange(0, rank))[None, :], mask=(m < tokens)[:, None], other=0.0).to(tl.float32)


@triton.jit
def _inner(
    x, a0, a1, a2, d, raw, z, tokens, length, d_row, d_token, scale,
    width: tl.constexpr, rank: tl.constexpr, rows: tl.constexpr, step: tl.constexpr, stages: tl.constexpr, early: tl.constexpr,
):  # fmt: skip
    """A x (raw) and z of some tokens, [tokens, maps · rank] each."""
    go_early(early)
    row = tl.program_id(0) * rows
    first = tl.zeros((rows, rank), tl.float32)
    second, third = first, first
    for k in tl.range(0, width, step, num_stages=stages):
        part = x.load([row, k])
        first = tl.dot(part, a0.load([0, k]).T, first, input_precision="ieee")
        if a1 is not None:
            second = tl.dot(part, a1.load([0, k]).T, second, input_precision="ieee")
        if a2 is not None:
            third = tl.dot(part, a2.load([0, k]).T, third, input_precision="ieee")
    maps: tl.constexpr = 1 + (a1 is not None) + (a2 is not None)
    m, r = row + tl.arange(0, rows), tl.arange(0, rank)
    for place in tl.static_range(maps):
        found = first if place == 0 else (second if place == 1 else third)
        at = m.to(tl.int64)[:, None] * (maps * rank) + place * rank + r[None, :]
        tl.store(raw + at, found.to(raw.dtype.element_ty), mask=(m < tokens)[:, None])
        scaled = found * (scale * _of_rows(d, m, length, d_row, d_token, place * rank, rank, tokens))
        tl.store(z + at, scaled.to(z.dtype.element_ty), mask=(m < tokens)[:, None])


@triton.jit
def _tile(
    x, w, z, b, bias, y, row, column, place, early: tl.constexpr,
    width: tl.constexpr, rank: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr, step: tl.constexpr, stages: tl.constexpr,
):  # fmt: skip
    total = tl.zeros((rows, columns), tl.float32)
    total = _summed(total, x, w, row, 0, column, width, step, stages)
    wait_early(early)
    total = tl.dot(z.load([row, place * rank]), b.load([column, 0]).T, total, input_precision="ieee")
    if bias is not None:
        n = column + tl.arange(0, columns)
        total += tl.load(bias + n, mask=n < y.shape[1], other=0.0).to(tl.float32)[None, :]
    y.store([row, column], total.to(y.dtype))


@triton.jit
def _outer(
    x, w0, w1, w2, z, b0, b1, b2, bias0, bias1, bias2, y0, y1, y2,
    tiles0: tl.constexpr, tiles1: tl.constexpr, tiles: tl.constexpr, early: tl.constexpr,
    width: tl.constexpr, rank: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr, step: tl.constexpr, stages: tl.constexpr,
):  # fmt: skip
    """W x + b + B z of each map: one tile a program, those of the first map first."""
    row, n = tl.program_id(0) // tiles * rows, tl.program_id(0) % tiles
    # one condition after another: what branches inside branches hold in shared memory is not shared
    if n < tiles0:
        _tile(x, w0, z, b0, bias0, y0, row, n * columns, 0, early, width, rank, rows, columns, step, stages)
    if w1 is not None:  # noqa: SIM102  (known when compiled, the next one is not)
        if (n >= tiles0) & (n < tiles0 + tiles1):
            _tile(x, w1, z, b1, bias1, y1, row, (n - tiles0) * columns, 1, early, width, rank, rows, columns, step, stages)
    if w2 is not None:  # noqa: SIM102  (known when compiled, the next one is not)
        if n >= tiles0 + tiles1:
            begin = (n - tiles0 - tiles1) * columns
            _tile(x, w2, z, b2, bias2, y2, row, begin, 2, early, width, rank, rows, columns, step, stages)


@triton.jit
def _inner_one(
    g, b, d, raw, dz, dd, row, place, tokens, length, d_row, d_token, scale, maps: tl.constexpr,
    width: tl.constexpr, rank: tl.constexpr, rows: tl.constexpr, step: tl.constexpr, stages: tl.constexpr,
):  # fmt: skip
    found = tl.zeros((rows, rank), tl.float32)
    found = scale * _summed_back(found, g, b, row, 0, 0, width, step, stages)
    m = row + tl.arange(0, rows)
    at = m.to(tl.int64)[:, None] * (maps * rank) + place * rank + tl.arange(0, rank)[None, :]
    here = (m < tokens)[:, None]
    scaled = found * _of_rows(d, m, length, d_row, d_token, place * rank, rank, tokens)
    tl.store(dz + at, scaled.to(dz.dtype.element_ty), mask=here)
    tl.store(dd + at, (found * tl.load(raw + at, mask=here, other=0.0).to(tl.float32)).to(dd.dtype.element_ty), mask=here)


@triton.jit
def _inner_back(
    g0, g1, g2, b0, b1, b2, d, raw, dz, dd, tokens, length, d_row, d_token, scale,
    width0: tl.constexpr, width1: tl.constexpr, width2: tl.constexpr, maps: tl.constexpr,
    rank: tl.constexpr, rows: tl.constexpr, step: tl.constexpr, stages: tl.constexpr, early: tl.constexpr,
):  # fmt: skip
    """The gradients of A x and of d for some tokens and one map, [tokens, maps · rank] each."""
    go_early(early)
    row, place = tl.program_id(0) * rows, tl.program_id(1)
    if place == 0:
        _inner_one(g0, b0, d, raw, dz, dd, row, 0, tokens, length, d_row, d_token, scale, maps, width0, rank, rows, step, stages)
    if g1 is not None:  # noqa: SIM102  (known when compiled, the next one is not)
        if place == 1:
            _inner_one(
                g1, b1, d, raw, dz, dd, row, 1, tokens, length, d_row, d_token, scale, maps, width1, rank, rows, step, stages
            )
    if g2 is not None:  # noqa: SIM102  (known when compiled, the next one is not)
        if place == 2:
            _inner_one(
                g2, b2, d, raw, dz, dd, row, 2, tokens, length, d_row, d_token, scale, maps, width2, rank, rows, step, stages
            )


@triton.jit
def _outer_back(
    g0, g1, g2, w0, w1, w2, dz, a0, a1, a2, dx,
    tiles: tl.constexpr, early: tl.constexpr, width0: tl.constexpr, width1: tl.constexpr, width2: tl.constexpr,
    rank: tl.constexpr, rows: tl.constexpr, columns: tl.constexpr, step: tl.constexpr, stages: tl.constexpr,
):  # fmt: skip
    """The gradient of x: the sum over maps of g W + dz A, one tile a program."""
    row, column = tl.program_id(0) // tiles * rows, tl.program_id(0) % tiles * columns
    total = tl.zeros((rows, columns), tl.float32)
    total = _summed_back(total, g0, w0, row, 0, column, width0, step, stages)
    if g1 is not None:
        total = _summed_back(total, g1, w1, row, 0, column, width1, step, stages)
    if g2 is not None:
        total = _summed_back(total, g2, w2, row, 0, column, width2, step, stages)
    wait_early(early)
    total = tl.dot(dz.load([row, 0]), a0.load([0, column]), total, input_precision="ieee")
    if g1 is not None:
        total = tl.dot(dz.load([row, rank]), a1.load([0, column]), total, input_precision="ieee")
    if g2 is not None:
        total = tl.dot(dz.load([row, 2 * rank]), a2.load([0, column]), total, input_precision="ieee")
    dx.store([row, column], total.to(dx.dtype))
