"""Sums over attention maps on a GPU, in two passes over tiles: no map is ever written to memory, and no sum depends on an order of
threads. The numbers are those of `analysis.trace.collect.sum_maps`, to rounding.

Products are formed in the numbers' own type and added in float32. The first pass finds the largest score and the mass of each row;
the second walks down the columns, where every tile's share is known at once. No token sees a later one, so tiles above the diagonal
are left out.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from loopwright.kernels import sizes

TILES = {2: 64, 4: 32}  # tokens of a tile, by the bytes of a number: products of float32 are unrolled, and more of them spill
TILE_BYTES = 2**14  # and two tiles of queries and two of keys, two stages of them in flight, fit every card from Ampere on (99 KiB)
STAGES = 2
LENGTHS = ["rows", "tokens", "mask_rows"]  # differ from batch to batch: one kernel serves all
UNSEEN = tl.constexpr(sizes.UNSEEN)


@triton.jit
def _tile(x, heads, tokens, row, head, first, length: tl.constexpr, width: tl.constexpr, padded: tl.constexpr):
    """Loads some tokens of a head of a contiguous [B, T, H, K] as [length, padded], zeros outside."""
    token = first + tl.arange(0, length)
    entry = tl.arange(0, padded)
    at = ((row * tokens + token[:, None]) * heads + head).to(tl.int64) * width + entry[None, :]
    return tl.load(x + at, mask=(token[:, None] < tokens) & (entry[None, :] < width), other=0.0)


@triton.jit
def _seen(visible, row, i, j, tokens, masked: tl.constexpr):
    """Returns which of the keys j each of the queries i sees."""
    seen = j[None, :] <= i[:, None]
    if masked:
        at = (row.to(tl.int64) * tokens + i[:, None]) * tokens + j[None, :]
        seen = tl.load(visible + at, mask=(i[:, None] < tokens) & (j[None, :] < tokens), other=0) != 0
    return seen


@triton.jit
def _scores(q, k, seen, scale):
    return tl.where(seen, tl.dot(q, tl.trans(k), input_precision="ieee") * scale, UNSEEN)


@triton.jit
def _more(top, mass, scores, inside):
    """Takes some more scores into the largest score and the mass of each row."""
    new = tl.maximum(top, tl.max(scores, 1))
    return new, mass * tl.exp(top - new) + tl.sum(tl.where(inside, tl.exp(scores - new[:, None]), 0.0), 1)


@triton.jit(do_not_specialize=LENGTHS)
def _rows_pass(
    q, k, q_before, k_before, visible, valid, tops, masses, sizes, scale, rows, tokens, heads, key_heads, mask_rows,
    width: tl.constexpr, padded: tl.constexpr, length: tl.constexpr, masked: tl.constexpr, compared: tl.constexpr,
):  # fmt: skip
    """One block of queries of one head: tops and masses [2, B, H, T]; ‖q − q'‖² and ‖q'‖² of valid tokens, the first half of sizes
    [4, B, H, blocks]."""
    pair, block = tl.program_id(0), tl.program_id(1)
    row, head = pair // heads, pair % heads
    group = head // (heads // key_heads)
    mask_row = row % mask_rows
    i = block * length + tl.arange(0, length)
    here = _tile(q, heads, tokens, row, head, block * length, length, width, padded)
    earlier = _tile(q_before, heads, tokens, row, head, block * length, length, width, padded)
    top = tl.full([length], UNSEEN, tl.float32)
    mass = tl.zeros([length], tl.float32)
    top_before = tl.full([length], UNSEEN, tl.float32)
    mass_before = tl.zeros([length], tl.float32)
    for first in range(0, tl.minimum(tokens, (block + 1) * length), length):
        j = first + tl.arange(0, length)
        inside = (j < tokens)[None, :]
        seen = _seen(visible, mask_row, i, j, tokens, masked) & inside
        keys = _tile(k, key_heads, tokens, row, group, first, length, width, padded)
        top, mass = _more(top, mass, _scores(here, keys, seen, scale), inside)
        if compared:
            keys = _tile(k_before, key_heads, tokens, row, group, first, length, width, padded)
            top_before, mass_before = _more(top_before, mass_before, _scores(earlier, keys, seen, scale), inside)
    at = pair * tokens + i
    tl.store(tops + at, top, mask=i < tokens)
    tl.store(masses + at, mass, mask=i < tokens)
    if compared:
        pairs = rows * heads
        tl.store(tops + pairs * tokens + at, top_before, mask=i < tokens)
        tl.store(masses + pairs * tokens + at, mass_before, mask=i < tokens)
        real = tl.load(valid + row * tokens + i, mask=i < tokens, other=0) != 0
        a = tl.where(real[:, None], here.to(tl.float32), 0.0)
        b = tl.where(real[:, None], earlier.to(tl.float32), 0.0)
        share = pair * tl.num_programs(1) + block
        tl.store(sizes + share, tl.sum((a - b) * (a - b)))
        tl.store(sizes + pairs * tl.num_programs(1) + share, tl.sum(b * b))


@triton.jit(do_not_specialize=LENGTHS)
def _columns_pass(
    q, k, q_before, k_before, visible, valid, tops, masses, columns, sums, sizes, scale, rows, tokens, heads, key_heads, mask_rows,
    width: tl.constexpr, padded: tl.constexpr, length: tl.constexpr, masked: tl.constexpr, compared: tl.constexpr,
):  # fmt: skip
    """One block of keys of one head, over all queries: columns [B, H, T]; entropy and squared distance in sums [2, B, H, blocks];
    ‖k‖² and ‖k − k'‖² of valid tokens the latter half of sizes."""
    pair, block = tl.program_id(0), tl.program_id(1)
    row, head = pair // heads, pair % heads
    group = head // (heads // key_heads)
    mask_row = row % mask_rows
    pairs, blocks = rows * heads, tl.num_programs(1)
    j = block * length + tl.arange(0, length)
    keys = _tile(k, key_heads, tokens, row, group, block * length, length, width, padded)
    keys_before = _tile(k_before, key_heads, tokens, row, group, block * length, length, width, padded)
    column = tl.zeros([length], tl.float32)
    entropy = tl.zeros([length], tl.float32)
    apart = tl.zeros([length], tl.float32)
    for first in range(block * length, tokens, length):
        i = first + tl.arange(0, length)
        at = pair * tokens + i
        seen = _seen(visible, mask_row, i, j, tokens, masked)
        real = tl.load(valid + row * tokens + i, mask=i < tokens, other=0) != 0
        counted = real[:, None] & (j < tokens)[None, :]
        some = _tile(q, heads, tokens, row, head, first, length, width, padded)
        top = tl.load(tops + at, mask=i < tokens, other=0.0)
        mass = tl.load(masses + at, mask=i < tokens, other=1.0)
        less = _scores(some, keys, seen, scale) - top[:, None]
        a = tl.where(counted, tl.exp(less) / mass[:, None], 0.0)
        column += tl.sum(a, 0)
        entropy += tl.sum(tl.where(a == 0, 0.0, a * (tl.log(mass)[:, None] - less)), 0)  # what is no number stays none
        if compared:
            some = _tile(q_before, heads, tokens, row, head, first, length, width, padded)
            top = tl.load(tops + pairs * tokens + at, mask=i < tokens, other=0.0)
            mass = tl.load(masses + pairs * tokens + at, mask=i < tokens, other=1.0)
            b = tl.where(counted, tl.exp(_scores(some, keys_before, seen, scale) - top[:, None]) / mass[:, None], 0.0)
            apart += tl.sum((a - b) * (a - b), 0)
    share = pair * blocks + block
    tl.store(columns + pair * tokens + j, column, mask=j < tokens)
    tl.store(sums + share, tl.sum(entropy))
    if compared:
        tl.store(sums + pairs * blocks + share, tl.sum(apart))
        real = tl.load(valid + row * tokens + j, mask=j < tokens, other=0) != 0
        a = tl.where(real[:, None], keys.to(tl.float32), 0.0)
        b = tl.where(real[:, None], keys_before.to(tl.float32), 0.0)
        tl.store(sizes + 2 * pairs * blocks + share, tl.sum(a * a))
        tl.store(sizes + 3 * pairs * blocks + share, tl.sum((a - b) * (a - b)))


def map_sums(
    q: Tensor, k: Tensor, visible: Tensor | None, valid: Tensor, before: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Returns column sums [B, H, T] and entropies [B, H] over the rows of valid tokens; and beside an earlier pair of queries and
    keys ‖A − A'‖_F [B, H] and the norms ‖q − q'‖, ‖q'‖, ‖k‖, ‖k − k'‖ [4, B, H].

    q is [B, T, H, K], k [B, T, Hk, K], visible [B or 1, 1, T, T] or None (causal), valid [B, T]; all of one type, of 16 or 32 bits.
    """
    rows, tokens, heads, width = q.shape
    q, k, *earlier = (x.contiguous() for x in (q, k, *(before or ())))
    padded = max(16, triton.next_power_of_2(width))
    length = max(16, min(TILES[q.itemsize], TILE_BYTES // (padded * q.itemsize)))
    blocks, compared = triton.cdiv(tokens, length), before is not None

    def empty(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.float32, device=q.device)

    tops, masses = empty(2, rows, heads, tokens), empty(2, rows, heads, tokens)
    columns, sums, sizes = empty(rows, heads, tokens), empty(2, rows, heads, blocks), empty(4, rows, heads, blocks)
    seen = valid if visible is None else visible.contiguous()
    pairs: tuple[Any, ...] = (q, k, *(earlier or (q, k)), seen.view(torch.uint8), valid.contiguous().view(torch.uint8))
    shape = (width**-0.5, rows, tokens, heads, k.shape[2], seen.shape[0])
    fixed = {
        "width": width, "padded": padded, "length": length, "masked": visible is not None, "compared": compared,
        "num_stages": STAGES,
    }  # fmt: skip
    grid = (rows * heads, blocks)  # the second axis ends at 65,535
    with torch.cuda.device_of(q):  # Triton launches on the current card, not on the one that holds the numbers
        _rows_pass[grid](*pairs, tops, masses, sizes, *shape, **fixed)
        _columns_pass[grid](*pairs, tops, masses, columns, sums, sizes, *shape, **fixed)
    entropy, apart = sums.sum(-1)
    return columns, entropy, apart.sqrt() if compared else None, sizes.sum(-1).sqrt() if compared else None
