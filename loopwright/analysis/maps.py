"""Attention maps made again from tapped queries and keys, some rows at a time, so that no whole set of maps is ever held.

A map has T×T entries per head; what is held at once is bounded by CHUNK, whatever T is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from loopwright.metrics.attention import AttentionSums
from loopwright.model.span import Span

CHUNK = 2**25  # entries of maps held at once
UNSEEN = -1e30


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

    def bias(self, part: slice, keys: int, kind: torch.dtype) -> Tensor:
        """Returns what is added to the scores of some queries: zero where a key is seen, and so little elsewhere that nothing is
        left of it (a number, not −∞, whose product with a weight of zero would be none)."""
        device = self.valid.device
        if self.visible is None:
            seen = torch.arange(keys, device=device) <= torch.arange(part.start, part.stop, device=device)[:, None]
        else:
            seen = self.visible[:, :, part]
        return torch.zeros(seen.shape, dtype=kind, device=device).masked_fill_(~seen, UNSEEN)


@dataclass(frozen=True)
class Rows:
    """The rows of some queries, `part`: `attention`, which sums to 1, and the `scores` it is the softmax of, less the largest of
    each row; both [B, H, rows, N]."""

    part: slice
    scores: Tensor
    attention: Tensor

    @property
    def entropy(self) -> Tensor:
        """−Σ_j a_j log a_j of each row [B, H, rows], with no logarithm per entry: log a_j is s_j + log max a."""
        return -self.attention.amax(-1).log() - (self.attention * self.scores).sum(-1)


def attention_rows(q: Tensor, k: Tensor, view: View, *, chunk: int = CHUNK) -> Iterator[Rows]:
    """Yields the rows of softmax(q kᵀ / √K) in float32 or wider, as many queries at a time as fit into `chunk` entries.

    q is [B, T, H, K] and k [B, N, Hk, K], after the rotation, as a tap sees them; heads share keys where Hk < H.
    """
    for part, scores in _scores(q, k, view, chunk):
        scores.sub_(scores.amax(-1, keepdim=True))
        yield Rows(part, scores, scores.softmax(-1))


def _scores(q: Tensor, k: Tensor, view: View, chunk: int) -> Iterator[tuple[slice, Tensor]]:
    rows, length, heads, width = q.shape
    kind = torch.promote_types(q.dtype, torch.float32)
    query = q.to(kind).mul(width**-0.5).transpose(1, 2)
    key = k.to(kind).permute(0, 2, 3, 1)
    if heads != k.shape[2]:
        key = key.repeat_interleave(heads // k.shape[2], dim=1)
    size = max(1, chunk // max(1, rows * heads * k.shape[1]))
    for start in range(0, length, size):
        part = slice(start, min(start + size, length))
        yield part, (query[:, :, part] @ key).add_(view.bias(part, k.shape[1], kind))


def sum_maps(
    q: Tensor, k: Tensor, view: View, others: Sequence[tuple[Tensor, Tensor]] = (), *, chunk: int = CHUNK
) -> tuple[AttentionSums, list[Tensor]]:
    """Returns the sums of the maps of q and k over valid tokens, and for each other pair of queries and keys the Frobenius norm
    of the difference between its maps and these, over the rows of valid tokens [B, H]."""
    sums: AttentionSums | None = None
    squares: list[Tensor] = []
    chunk //= 1 + len(others)
    compared = [_scores(*pair, view, chunk) for pair in others]
    for here, *rest in zip(attention_rows(q, k, view, chunk=chunk), *compared, strict=True):
        real = view.valid[:, None, None, here.part].to(here.attention.dtype)
        more = AttentionSums((real @ here.attention)[:, :, 0], (real @ here.entropy[..., None])[:, :, 0, 0])
        sums = more if sums is None else sums + more
        apart = [torch.linalg.vector_norm(there.softmax(-1).sub_(here.attention), dim=-1).square() for _, there in rest]
        found = [(real @ square[..., None])[:, :, 0, 0] for square in apart]
        squares = [a + b for a, b in zip(squares, found, strict=True)] if squares else found
    assert sums is not None
    return sums, [square.sqrt() for square in squares]
