"""Attention maps made again from tapped queries and keys, some rows at a time, so that no whole set of maps is ever held.

A map has T×T entries per head; what is held at once is bounded by CHUNK, whatever T is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from loopwright.model.span import Span

CHUNK = 2**25  # entries of maps held at once


@dataclass(frozen=True)
class View:
    """Who sees whom in a pass: `visible` [B or 1, 1, T, N], or None where every token sees itself and all before it; and which
    tokens are `valid` [B, T] (the others are padding)."""

    visible: Tensor | None
    valid: Tensor

    @classmethod
    def of(cls, span: Span, window: int | None) -> View:
        """Returns what the model itself shows its attention for tokens that stand at `span`, with nothing cached."""
        visible, _ = span.mask(window)
        shape = (span.rows, span.length)
        return cls(visible, torch.ones(shape, dtype=torch.bool, device=span.positions.device) if span.valid is None else span.valid)

    @property
    def count(self) -> Tensor:
        """The number of valid tokens of each row [B]."""
        return self.valid.sum(1)


def attention_rows(q: Tensor, k: Tensor, view: View, *, chunk: int = CHUNK) -> Iterator[tuple[slice, Tensor]]:
    """Yields softmax(q kᵀ / √K) in float32, or q's dtype where that is wider, some queries at a time: their slice, and their rows [B, H, rows, N].

    q is [B, T, H, K] and k [B, N, Hk, K], after the rotation, as a tap sees them; heads share keys where Hk < H.
    """
    rows, length, heads, width = q.shape
    kind = torch.promote_types(q.dtype, torch.float32)
    groups = heads // k.shape[2]
    query = q.to(kind).mul(width**-0.5).transpose(1, 2)
    key = k.to(kind).permute(0, 2, 3, 1)
    if groups > 1:
        key = key.repeat_interleave(groups, dim=1)
    size = max(1, chunk // max(1, rows * heads * k.shape[1]))
    for start in range(0, length, size):
        part = slice(start, min(start + size, length))
        scores = query[:, :, part] @ key
        yield part, scores.add_(_bias(view, part, k.shape[1], kind, q.device)).softmax(-1)


def _bias(view: View, part: slice, keys: int, kind: torch.dtype, device: torch.device) -> Tensor:
    if view.visible is None:
        seen = torch.arange(keys, device=device) <= torch.arange(part.start, part.stop, device=device)[:, None]
    else:
        seen = view.visible[:, :, part]
    return torch.zeros(seen.shape, dtype=kind, device=device).masked_fill_(~seen, float("-inf"))


@dataclass(frozen=True)
class MapSums:
    """What one reading of a layer's maps leaves: `columns` [B, H, N], the attention each token receives from valid ones;
    `entropy` [B, H], the sum over valid rows of each row's entropy; `distances`, for each other pair of queries and keys the
    Frobenius norm of the difference [B, H]."""

    columns: Tensor
    entropy: Tensor
    distances: list[Tensor]


def sum_maps(q: Tensor, k: Tensor, view: View, others: Sequence[tuple[Tensor, Tensor]] = (), *, chunk: int = CHUNK) -> MapSums:
    """Returns the sums of the maps of q and k over valid tokens, and how far the maps of other pairs lie from them."""
    columns: Tensor | None = None
    entropy: Tensor | None = None
    squares: list[Tensor | None] = [None] * len(others)
    chunk = chunk // (1 + len(others))
    for parts in zip(*(attention_rows(*pair, view, chunk=chunk) for pair in ((q, k), *others)), strict=True):
        part, here = parts[0]
        weight = view.valid[:, None, None, part].to(here.dtype)
        columns = _plus(columns, (weight @ here)[:, :, 0])
        entropy = _plus(entropy, (weight @ torch.special.entr(here).sum(-1, keepdim=True))[:, :, 0, 0])
        for place, (_, there) in enumerate(parts[1:]):
            apart = (there.sub_(here)).square_().sum(-1, keepdim=True)
            squares[place] = _plus(squares[place], (weight @ apart)[:, :, 0, 0])
    assert columns is not None and entropy is not None
    return MapSums(columns, entropy, [square.sqrt() for square in squares if square is not None])


def _plus(total: Tensor | None, more: Tensor) -> Tensor:
    return more if total is None else total + more
