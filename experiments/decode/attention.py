"""Attention of one new query per row, with rotary embedding and cache write in the same kernel, split over keys."""

# ruff: noqa: N803, N806
# what Triton compiles is not Python's to type; names are those of the equations
from __future__ import annotations

import triton
import triton.language as tl

from experiments.decode.kernels import _go, _wait


@triton.jit
def attend_one(
    QKV, KEYS, VALUES, COS, SIN, INDEX, PARTS, STATS, COUNT, OUT, capacity, scale,
    H: tl.constexpr, HK: tl.constexpr, D: tl.constexpr, SPLITS: tl.constexpr, SP: tl.constexpr, CHUNK: tl.constexpr,
    BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A program has one query head and CHUNK keys; each lane keeps a softmax of its own, merged at the end. For few rows."""
    head, split, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    _go(PDL)
    d, j = tl.arange(0, D), tl.arange(0, BLOCK)
    kv = head // (H // HK)
    here = tl.load(INDEX + row)
    first = split * CHUNK
    cos, sin = tl.load(COS + row * D + d).to(tl.float32), tl.load(SIN + row * D + d).to(tl.float32)
    keys = KEYS + ((row * capacity).to(tl.int64) * HK + kv) * D
    values = VALUES + ((row * capacity).to(tl.int64) * HK + kv) * D
    _wait(PDL)
    mine = QKV + row * (H + 2 * HK) * D
    partner = (d + D // 2) % D
    q_at, k_at = mine + head * D, mine + (H + kv) * D
    q = (tl.load(q_at + d).to(tl.float32) * cos + tl.load(q_at + partner).to(tl.float32) * sin) * scale
    key = tl.load(k_at + d).to(tl.float32) * cos + tl.load(k_at + partner).to(tl.float32) * sin
    key = key.to(KEYS.dtype.element_ty)
    value = tl.load(mine + (H + HK + kv) * D + d).to(VALUES.dtype.element_ty)
    if (here >= first) & (here < first + CHUNK) & (head % (H // HK) == 0):
        tl.store(keys + here * HK * D + d, key)
        tl.store(values + here * HK * D + d, value)
    top = tl.full([BLOCK], -float("inf"), tl.float32)
    mass = tl.zeros([BLOCK], tl.float32)
    total = tl.zeros([BLOCK, D], tl.float32)
    for c in range(0, CHUNK, BLOCK):
        at = first + c + j
        k = tl.load(keys + at[:, None] * HK * D + d[None, :], mask=(at < here)[:, None], other=0.0).to(tl.float32)
        v = tl.load(values + at[:, None] * HK * D + d[None, :], mask=(at < here)[:, None], other=0.0).to(tl.float32)
        k = tl.where((at == here)[:, None], key.to(tl.float32)[None, :], k)  # the new token's own is not read back
        v = tl.where((at == here)[:, None], value.to(tl.float32)[None, :], v)
        s = tl.where(at <= here, tl.sum(k * q[None, :], 1), -float("inf"))
        new = tl.maximum(top, s)
        safe = tl.where(new == -float("inf"), 0.0, new)
        old, p = tl.exp(top - safe), tl.exp(s - safe)
        mass = mass * old + p
        total = total * old[:, None] + p[:, None] * v
        top = new
    big = tl.max(top, 0)
    weight = tl.exp(top - tl.where(big == -float("inf"), 0.0, big))
    slot = (row * H + head) * SPLITS
    tl.store(PARTS + (slot + split) * D + d, tl.sum(total * weight[:, None], 0))
    tl.store(STATS + (slot + split) * 2, big)
    tl.store(STATS + (slot + split) * 2 + 1, tl.sum(mass * weight, 0))
    tl.debug_barrier()
    if tl.atomic_add(COUNT + row * H + head, 1, sem="acq_rel") == SPLITS - 1:
        i = tl.arange(0, SP)
        tops = tl.load(STATS + (slot + i) * 2, mask=i < SPLITS, other=-float("inf"))
        masses = tl.load(STATS + (slot + i) * 2 + 1, mask=i < SPLITS, other=0.0)
        f = tl.exp(tops - tl.max(tops, 0))
        parts = tl.load(PARTS + (slot + i)[:, None] * D + d[None, :], mask=(i < SPLITS)[:, None], other=0.0)
        tl.store(OUT + (row * H + head) * D + d, tl.sum(parts * f[:, None], 0) / tl.sum(masses * f, 0))
        tl.store(COUNT + row * H + head, 0)


@triton.jit
def attend_many(
    QKV, KEYS, VALUES, COS, SIN, INDEX, PARTS, STATS, COUNT, OUT, capacity, scale,
    H: tl.constexpr, HK: tl.constexpr, D: tl.constexpr, SPLITS: tl.constexpr, SP: tl.constexpr, CHUNK: tl.constexpr,
    BLOCK: tl.constexpr, G: tl.constexpr, STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Rotary, cache write and attention of one query per row: a program has one key head and CHUNK keys; the last of a head to
    end adds up its parts. Queries of a key head are padded to G rows, so that tensor cores serve."""
    kv, split, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    _go(PDL)
    R: tl.constexpr = H // HK
    d, g, j = tl.arange(0, D), tl.arange(0, G), tl.arange(0, BLOCK)
    here = tl.load(INDEX + row)
    first = split * CHUNK
    cos, sin = tl.load(COS + row * D + d).to(tl.float32), tl.load(SIN + row * D + d).to(tl.float32)
    keys = KEYS + ((row * capacity).to(tl.int64) * HK + kv) * D
    values = VALUES + ((row * capacity).to(tl.int64) * HK + kv) * D
    _wait(PDL)
    mine = QKV + row * (H + 2 * HK) * D
    partner = (d + D // 2) % D
    live = (g < R)[:, None]
    q_at = mine + (kv * R + g)[:, None] * D
    q = tl.load(q_at + d[None, :], mask=live, other=0.0).to(tl.float32) * cos[None, :]
    q += tl.load(q_at + partner[None, :], mask=live, other=0.0).to(tl.float32) * sin[None, :]
    q = q.to(KEYS.dtype.element_ty)
    top = tl.full([G], -float("inf"), tl.float32)
    mass = tl.zeros([G], tl.float32)
    total = tl.zeros([G, D], tl.float32)
    if (here >= first) & (here < first + CHUNK):  # the new token's own key: written, and counted here, never read back
        k_at = mine + (H + kv) * D
        key = tl.load(k_at + d).to(tl.float32) * cos + tl.load(k_at + partner).to(tl.float32) * sin
        key = key.to(KEYS.dtype.element_ty)
        value = tl.load(mine + (H + HK + kv) * D + d).to(VALUES.dtype.element_ty)
        tl.store(keys + here * HK * D + d, key)
        tl.store(values + here * HK * D + d, value)
        top = tl.sum(q.to(tl.float32) * key.to(tl.float32)[None, :], 1) * scale
        mass += 1.0
        total += value.to(tl.float32)[None, :]
    last = tl.minimum(first + CHUNK, here)
    for c in tl.range(first, last, BLOCK, num_stages=STAGES):
        at = c + j
        k = tl.load(keys + at[None, :] * HK * D + d[:, None], mask=(at < last)[None, :], other=0.0)
        v = tl.load(values + at[:, None] * HK * D + d[None, :], mask=(at < last)[:, None], other=0.0)
        s = tl.where((at < last)[None, :], tl.dot(q, k) * scale, -float("inf"))
        new = tl.maximum(top, tl.max(s, 1))
        old, p = tl.exp(top - new), tl.exp(s - new[:, None])
        mass = mass * old + tl.sum(p, 1)
        total = tl.dot(p.to(v.dtype), v, total * old[:, None])
        top = new
    heads = kv * R + g
    if SPLITS == 1:
        tl.store(OUT + (row * H + heads)[:, None] * D + d[None, :], total / mass[:, None], mask=live)
    else:
        slot = (row * H + heads) * SPLITS + split
        tl.store(PARTS + slot[:, None] * D + d[None, :], total, mask=live)
        tl.store(STATS + slot * 2, top, mask=g < R)
        tl.store(STATS + slot * 2 + 1, mass, mask=g < R)
        tl.debug_barrier()
        if tl.atomic_add(COUNT + row * HK + kv, 1, sem="acq_rel") == SPLITS - 1:
            i = tl.arange(0, SP)
            for r in range(R):
                base = (row * H + kv * R + r) * SPLITS
                tops = tl.load(STATS + (base + i) * 2, mask=i < SPLITS, other=-float("inf"))
                masses = tl.load(STATS + (base + i) * 2 + 1, mask=i < SPLITS, other=0.0)
                f = tl.exp(tops - tl.max(tops, 0))
                parts = tl.load(PARTS + (base + i)[:, None] * D + d[None, :], mask=(i < SPLITS)[:, None], other=0.0)
                tl.store(OUT + (row * H + kv * R + r) * D + d, tl.sum(parts * f[:, None], 0) / tl.sum(masses * f, 0))
            tl.store(COUNT + row * HK + kv, 0)
