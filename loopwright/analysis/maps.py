"""Attention maps made again from tapped queries and keys, some rows at a time, so that no whole set of maps is ever held.

A map has T×T entries per head; what is held at once is bounded by CHUNK, whatever T is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from loopwright.metrics.attention import AttentionSums, attention_sums
from loopwright.model.span import Span

CHUNK = 2**25  # entries of maps held at once


@dataclass(frozen=True)
class View:
    """Who sees whom in a pass: `visible` [B or 1, 1, T, N], or None where every token sees itself and all before it; and which
    tokens are `valid` [B, T] (the others are padding); `whole` where all are."""

    visible: Tensor | None
    valid: Tensor
    whole: bool

    @classmethod
    def of(cls, span: Span, window: int | None) -> View:
        """Returns what the model itself shows its attention for tokens that stand at `span`, with nothing cached."""
        visible, _ = span.mask(window)
        valid = span.valid
        if valid is None:
            valid = torch.ones(span.rows, span.length, dtype=torch.bool, device=span.positions.device)
        return cls(visible, valid, bool(valid.all()))

    @property
    def count(self) -> Tensor:
        """The number of valid tokens of each row [B]."""
        return self.valid.sum(1)

    @property
    def padding(self) -> Tensor | None:
        """The valid tokens [B, T], or None where all are: what the metrics take."""
        return None if self.whole else self.valid


def attention_rows(q: Tensor, k: Tensor, view: View, *, chunk: int = CHUNK) -> Iterator[tuple[slice, Tensor]]:
    """Yields softmax(q kᵀ / √K), in float32 or wider, some queries at a time: their slice, and their rows [B, H, rows, N].

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


def sum_maps(
    q: Tensor, k: Tensor, view: View, others: Sequence[tuple[Tensor, Tensor]] = (), *, chunk: int = CHUNK
) -> tuple[AttentionSums, list[Tensor]]:
    """Returns the sums of the maps of q and k over valid tokens, and for each other pair of queries and keys the Frobenius norm
    of the difference between its maps and these, over the rows of valid tokens [B, H]."""
    sums: AttentionSums | None = None
    squares: list[Tensor] = []
    chunk //= 1 + len(others)
    for parts in zip(*(attention_rows(*pair, view, chunk=chunk) for pair in ((q, k), *others)), strict=True):
        part, here = parts[0]
        valid_rows = None if view.whole else view.valid[:, part]
        more = attention_sums(here, view.padding, valid_rows=valid_rows)
        sums = more if sums is None else sums + more
        apart = [_squares(there.sub_(here), valid_rows) for _, there in parts[1:]]
        squares = [a + b for a, b in zip(squares, apart, strict=True)] if squares else apart
    assert sums is not None
    return sums, [square.sqrt() for square in squares]


def _squares(difference: Tensor, valid_rows: Tensor | None) -> Tensor:
    rows = difference.square_().sum(-1)
    return (rows if valid_rows is None else rows.masked_fill(~valid_rows[:, None], 0)).sum(-1)
