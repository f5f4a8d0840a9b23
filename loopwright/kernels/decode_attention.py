"""Attention of the new tokens of each row in one kernel: rotary embedding, cache write, and a softmax split over the keys.

A program has some of the keys of a head; the last of a head to end adds up the parts. Keys that may not be seen (padding, other
documents, outside the window) have −inf in the mask of the pass, which is added to the scores; keys after a new token are not
read by it. One new token's own key is written, and counted from registers. Of several, each is written by the program that has
its place among the keys, the only one that reads it (but for rows that repeat another, which write the same). Rows lie end to end,
or begin where `starts` says.
"""

from __future__ import annotations

import triton
import triton.language as tl

from loopwright.kernels.products import go_early, wait_early


@triton.jit
def _summed(z, at, stride, splits: tl.constexpr, mask):
    """Returns a product that comes in `splits` parts."""
    total = tl.load(z + at, mask=mask, other=0.0).to(tl.float32)
    for i in tl.static_range(1, splits):
        total += tl.load(z + i * stride + at, mask=mask, other=0.0).to(tl.float32)
    return total


@triton.jit
def _start(starts, row, capacity):
    """Returns where the first key of a row lies, in tokens."""
    if starts is None:
        start = (row * capacity).to(tl.int64)
    else:
        start = tl.load(starts + row)
    return start


@triton.jit
def _share(starts, here, splits: tl.constexpr, chunk: tl.constexpr, block: tl.constexpr):
    """Returns the keys of a program: in a pool, where rows are much shorter than the longest may be, an equal part of its row."""
    if starts is None:
        share = chunk
    else:
        share = tl.cdiv(here + 1, splits * block) * block
    return share


@triton.jit
def _partner(d, size: tl.constexpr, interleaved: tl.constexpr):
    if interleaved:
        return d ^ 1
    return tl.where(d < size // 2, d + size // 2, d - size // 2)


@triton.jit
def _merged(parts, stats, out, head, d, inside, size: tl.constexpr, splits: tl.constexpr, splits_padded: tl.constexpr):
    """Adds up the parts of a head."""
    i = tl.arange(0, splits_padded)
    base = head * splits
    tops = tl.load(stats + (base + i) * 2, mask=i < splits, other=-float("inf"))
    masses = tl.load(stats + (base + i) * 2 + 1, mask=i < splits, other=0.0)
    f = tl.exp(tops - tl.max(tops, 0))
    each = tl.load(parts + (base + i)[:, None] * size + d[None, :], mask=(i < splits)[:, None] & inside[None, :], other=0.0)
    tl.store(out + head * size + d, tl.sum(each * f[:, None], 0) / tl.sum(masses * f, 0), mask=inside)


@triton.jit
def _merged_rows(parts, stats, out, head, live, d, inside, size: tl.constexpr, splits: tl.constexpr):
    """Adds up the parts of several heads at once."""
    wanted = live[:, None] & inside[None, :]
    top = tl.full(head.shape, -float("inf"), tl.float32)
    for i in tl.static_range(splits):
        top = tl.maximum(top, tl.load(stats + (head * splits + i) * 2, mask=live, other=0.0))
    mass = tl.zeros(head.shape, tl.float32)
    total = tl.zeros(wanted.shape, tl.float32)
    for i in tl.static_range(splits):
        slot = head * splits + i
        f = tl.exp(tl.load(stats + slot * 2, mask=live, other=0.0) - top)
        mass += f * tl.load(stats + slot * 2 + 1, mask=live, other=1.0)
        total += f[:, None] * tl.load(parts + slot[:, None] * size + d[None, :], mask=wanted, other=0.0)
    tl.store(out + head[:, None] * size + d[None, :], total / mass[:, None], mask=wanted)


@triton.jit
def _turned(z, at, d, partner, cos, sin, angle, z_stride, z_splits: tl.constexpr, mask):
    """Returns some heads of a product that comes in parts, turned by the angles at `angle`."""
    x = _summed(z, at + d[None, :], z_stride, z_splits, mask)
    if cos is not None:
        c = tl.load(cos + angle[:, None] + d[None, :], mask=mask, other=0.0).to(tl.float32)
        s = tl.load(sin + angle[:, None] + d[None, :], mask=mask, other=0.0).to(tl.float32)
        x = x * c + _summed(z, at + partner[None, :], z_stride, z_splits, mask) * s
    return x


@triton.jit
def attend_one(
    z, keys, values, starts, cos, sin, mask, index, parts, stats, ended, out, capacity, rotary_stride, z_stride, scale,
    heads: tl.constexpr, key_heads: tl.constexpr, size: tl.constexpr, padded: tl.constexpr, interleaved: tl.constexpr,
    z_splits: tl.constexpr, splits: tl.constexpr, splits_padded: tl.constexpr, chunk: tl.constexpr, block: tl.constexpr,
    early: tl.constexpr,
):  # fmt: skip
    """A program has one query head and `chunk` keys; each lane keeps a softmax of its own, merged at the end. For few rows."""
    head, split, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    go_early(early)
    groups: tl.constexpr = heads // key_heads
    d, j = tl.arange(0, padded), tl.arange(0, block)
    inside, partner, key_head = d < size, _partner(d, size, interleaved), head // groups
    here = tl.load(index + row).to(tl.int32)
    share = _share(starts, here, splits, chunk, block)
    first = split * share
    base = (_start(starts, row, capacity) * key_heads + key_head) * size
    at = first + j
    held = (at < here)[:, None] & inside[None, :]
    # keys of earlier passes depend on nothing: the first of them are on their way before the wait
    k = tl.load(keys + base + at[:, None] * key_heads * size + d[None, :], mask=held, other=0.0)
    v = tl.load(values + base + at[:, None] * key_heads * size + d[None, :], mask=held, other=0.0)
    wait_early(early)
    mine = row * (heads + 2 * key_heads) * size
    q_at, k_at, v_at = mine + head * size, mine + (heads + key_head) * size, mine + (heads + key_heads + key_head) * size
    q = _summed(z, q_at + d, z_stride, z_splits, inside)
    key = _summed(z, k_at + d, z_stride, z_splits, inside)
    value = _summed(z, v_at + d, z_stride, z_splits, inside).to(values.dtype.element_ty)
    if cos is not None:
        c = tl.load(cos + row * rotary_stride + d, mask=inside, other=0.0).to(tl.float32)
        s = tl.load(sin + row * rotary_stride + d, mask=inside, other=0.0).to(tl.float32)
        q = q * c + _summed(z, q_at + partner, z_stride, z_splits, inside) * s
        key = key * c + _summed(z, k_at + partner, z_stride, z_splits, inside) * s
    q *= scale
    key = key.to(keys.dtype.element_ty)
    if (here >= first) & (here < first + share) & (head % groups == 0):
        tl.store(keys + base + here * key_heads * size + d, key, mask=inside)
        tl.store(values + base + here * key_heads * size + d, value, mask=inside)
    top = tl.full([block], -float("inf"), tl.float32)
    mass = tl.zeros([block], tl.float32)
    total = tl.zeros([block, padded], tl.float32)
    for begin in range(0, share, block):
        at = first + begin + j
        own = (at == here)[:, None]
        scores = tl.sum(tl.where(own, key[None, :], k).to(tl.float32) * q[None, :], 1)
        if mask is not None:
            scores += tl.load(mask + row * capacity + at, mask=at <= here, other=-float("inf")).to(tl.float32)
        scores = tl.where(at <= here, scores, -float("inf"))
        new = tl.maximum(top, scores)
        safe = tl.where(new == -float("inf"), 0.0, new)
        old, p = tl.exp(top - safe), tl.exp(scores - safe)
        mass = mass * old + p
        total = total * old[:, None] + p[:, None] * tl.where(own, value[None, :], v).to(tl.float32)
        top = new
        following = at + block
        held = ((following < here) & (following < first + share))[:, None] & inside[None, :]
        k = tl.load(keys + base + following[:, None] * key_heads * size + d[None, :], mask=held, other=0.0)
        v = tl.load(values + base + following[:, None] * key_heads * size + d[None, :], mask=held, other=0.0)
    big = tl.max(top, 0)
    weight = tl.exp(top - tl.where(big == -float("inf"), 0.0, big))
    slot = (row * heads + head) * splits + split
    tl.store(parts + slot * size + d, tl.sum(total * weight[:, None], 0), mask=inside)
    tl.store(stats + slot * 2, big)
    tl.store(stats + slot * 2 + 1, tl.sum(mass * weight, 0))
    tl.debug_barrier()
    if tl.atomic_add(ended + row * heads + head, 1, sem="acq_rel") == splits - 1:
        _merged(parts, stats, out, row * heads + head, d, inside, size, splits, splits_padded)
        tl.store(ended + row * heads + head, 0)


@triton.jit
def _write_one(z, at, keys, values, to, d, partner, inside, cos, c, s, z_stride, z_splits: tl.constexpr, apart: tl.constexpr):
    """Writes key and value of one new token, and returns them; the value lies `apart` behind the key."""
    key = _summed(z, at + d, z_stride, z_splits, inside)
    if cos is not None:
        key = key * c + _summed(z, at + partner, z_stride, z_splits, inside) * s
    key = key.to(keys.dtype.element_ty)
    value = _summed(z, at + apart + d, z_stride, z_splits, inside).to(values.dtype.element_ty)
    tl.store(keys + to + d, key, mask=inside)
    tl.store(values + to + d, value, mask=inside)
    return key.to(tl.float32), value.to(tl.float32)


@triton.jit
def _write_several(
    z, at, keys, values, base, cos, sin, index, row, rotary_stride, z_stride, first, end, d, partner, inside,
    key_heads: tl.constexpr, size: tl.constexpr, wide: tl.constexpr, z_splits: tl.constexpr, length: tl.constexpr,
    length_padded: tl.constexpr,
):  # fmt: skip
    """Writes keys and values of those new tokens of a row that stand from `first` to before `end`, for the threads of a program."""
    i = tl.arange(0, length_padded)
    token = row * length + i
    place = tl.load(index + token, mask=i < length, other=-1).to(tl.int32)
    put = ((place >= first) & (place < end))[:, None] & inside[None, :]
    at, to = (token * wide + at)[:, None], base + place[:, None] * key_heads * size + d[None, :]
    key = _turned(z, at, d, partner, cos, sin, token * rotary_stride, z_stride, z_splits, put)
    value = _summed(z, at + key_heads * size + d[None, :], z_stride, z_splits, put)
    tl.store(keys + to, key, mask=put)
    tl.store(values + to, value, mask=put)
    tl.debug_barrier()


@triton.jit
def _part_done(
    parts, stats, ended, out, head, split, row, key_head, top, mass, total, live, d, inside,
    groups: tl.constexpr, key_heads: tl.constexpr, size: tl.constexpr, splits: tl.constexpr, splits_padded: tl.constexpr,
    length: tl.constexpr,
):  # fmt: skip
    """Keeps a part of the queries of a key head; the last program of them adds up the parts."""
    slot = head * splits + split
    tl.store(parts + slot[:, None] * size + d[None, :], total, mask=live[:, None] & inside[None, :])
    tl.store(stats + slot * 2, top, mask=live)
    tl.store(stats + slot * 2 + 1, mass, mask=live)
    tl.debug_barrier()
    if tl.atomic_add(ended + row * key_heads + key_head, 1, sem="acq_rel") == splits - 1:
        if length > 1:
            _merged_rows(parts, stats, out, head, live, d, inside, size, splits)
        else:
            for i in range(groups):
                one = (row * key_heads + key_head) * groups + i
                _merged(parts, stats, out, one, d, inside, size, splits, splits_padded)
        tl.store(ended + row * key_heads + key_head, 0)


@triton.jit
def attend_many(
    z, keys, values, starts, cos, sin, mask, index, parts, stats, ended, out, capacity, rotary_stride, z_stride, scale,
    heads: tl.constexpr, key_heads: tl.constexpr, size: tl.constexpr, padded: tl.constexpr, interleaved: tl.constexpr,
    z_splits: tl.constexpr, splits: tl.constexpr, splits_padded: tl.constexpr, chunk: tl.constexpr, block: tl.constexpr,
    grouped: tl.constexpr, length: tl.constexpr, length_padded: tl.constexpr, stages: tl.constexpr, early: tl.constexpr,
):  # fmt: skip
    """A program has one key head, `chunk` keys and the `length` new tokens of a row, of which none stands after the last one.

    The queries of a key head, those of all its tokens, are padded to `grouped` for the tensor cores.
    """
    key_head, split, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    groups: tl.constexpr = heads // key_heads
    wide: tl.constexpr = (heads + 2 * key_heads) * size
    d, g, j = tl.arange(0, padded), tl.arange(0, grouped), tl.arange(0, block)
    inside, partner, live = d < size, _partner(d, size, interleaved), g < groups * length
    wanted = live[:, None] & inside[None, :]
    here = tl.load(index + row * length + length - 1).to(tl.int32)
    share = _share(starts, here, splits, chunk, block)
    first = split * share
    base = (_start(starts, row, capacity) * key_heads + key_head) * size
    wait_early(early)
    top, mass = tl.full([grouped], -float("inf"), tl.float32), tl.zeros([grouped], tl.float32)
    total = tl.zeros([grouped, padded], tl.float32)
    k_at = (heads + key_head) * size
    if length == 1:
        head, c, s = row * heads + key_head * groups + g, None, None
        q_at = row * wide + (key_head * groups + g)[:, None] * size
        q = _summed(z, q_at + d[None, :], z_stride, z_splits, wanted)
        if cos is not None:
            c = tl.load(cos + row * rotary_stride + d, mask=inside, other=0.0).to(tl.float32)
            s = tl.load(sin + row * rotary_stride + d, mask=inside, other=0.0).to(tl.float32)
            q = q * c[None, :] + _summed(z, q_at + partner[None, :], z_stride, z_splits, wanted) * s[None, :]
        q = q.to(keys.dtype.element_ty)
        if (here >= first) & (here < first + share):
            to = base + here * key_heads * size
            at, apart = row * wide + k_at, key_heads * size
            key, value = _write_one(z, at, keys, values, to, d, partner, inside, cos, c, s, z_stride, z_splits, apart)
            top = tl.sum(q.to(tl.float32) * key[None, :], 1) * scale
            mass += 1.0
            total += value[None, :]
        last = tl.minimum(first + share, here)
    else:
        token, one = row * length + g // groups, key_head * groups + g % groups  # of each query
        head, q_at = token * heads + one, (token * wide + one * size)[:, None]
        q = _turned(z, q_at, d, partner, cos, sin, token * rotary_stride, z_stride, z_splits, wanted).to(keys.dtype.element_ty)
        stands = tl.load(index + token, mask=live, other=0).to(tl.int32)
        last = tl.minimum(first + share, here + 1)
        if (here >= first) & (tl.load(index + row * length) < last):
            _write_several(
                z, k_at, keys, values, base, cos, sin, index, row, rotary_stride, z_stride, first, last, d, partner, inside,
                key_heads, size, wide, z_splits, length, length_padded,
            )  # fmt: skip
    for begin in tl.range(first, last, block, num_stages=stages):
        at = begin + j
        held, held_across = (at < last)[:, None], (at < last)[None, :]
        if padded != size:
            held, held_across = held & inside[None, :], held_across & inside[:, None]
        k = tl.load(keys + base + at[None, :] * key_heads * size + d[:, None], mask=held_across, other=0.0)
        v = tl.load(values + base + at[:, None] * key_heads * size + d[None, :], mask=held, other=0.0)
        scores = tl.dot(q, k, input_precision="ieee") * scale
        if mask is not None:
            seen = tl.load(mask + row * capacity + at, mask=at < last, other=-float("inf")).to(tl.float32)
            scores += seen[None, :]
        scores = tl.where((at < last)[None, :], scores, -float("inf"))
        if length > 1:
            scores = tl.where(at[None, :] <= stands[:, None], scores, -float("inf"))
        new = tl.maximum(top, tl.max(scores, 1))
        safe = tl.where(new == -float("inf"), 0.0, new)
        old, p = tl.exp(top - safe), tl.exp(scores - safe[:, None])
        mass = mass * old + tl.sum(p, 1)
        total = tl.dot(p.to(v.dtype), v, total * old[:, None], input_precision="ieee")
        top = new
    go_early(early)
    if splits == 1:
        tl.store(out + head[:, None] * size + d[None, :], total / mass[:, None], mask=wanted)
    else:
        _part_done(
            parts, stats, ended, out, head, split, row, key_head, top, mass, total, live, d, inside,
            groups, key_heads, size, splits, splits_padded, length,
        )  # fmt: skip
