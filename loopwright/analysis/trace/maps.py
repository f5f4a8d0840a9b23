"""Attention maps made again from tapped queries and keys, some rows at a time, so that no whole set of maps is ever held.

A map has T×T entries per head; what is held at once is bounded by CHUNK, whatever T is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, repeat

import torch
from torch import Tensor

from loopwright.metrics.attention import AttentionSums
from loopwright.metrics.distance import bound_of_sizes, query_key_bound
from loopwright.model.forward.span import Span
from loopwright.model.fused.offer import has_kernels

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


@dataclass(frozen=True)
class MapChange:
    """How far maps are from those of an earlier pair of queries and keys, ‖A − A'‖_F over the rows of valid tokens, and how far
    queries and keys allow (`query_key_bound`, not Proposition 4.2's own), which is worked out when it is asked for; both [B, H]."""

    distance: Tensor
    allowed: Callable[[], Tensor]

    @property
    def bound(self) -> Tensor:
        """The most that the distance can be."""
        return self.allowed()


def sum_maps(
    q: Tensor, k: Tensor, view: View, before: tuple[Tensor, Tensor] | None = None, *, chunk: int = CHUNK
) -> tuple[AttentionSums, MapChange | None]:
    """Returns the sums of the maps of q and k over valid tokens, and the change since the pair `before` where there is one.

    On a GPU (from OLDEST on, where kernels can be compiled) one kernel makes and sums the tiles of all maps; elsewhere, and for
    float64, `sum_rows` does: the same numbers to rounding, more slowly.
    """
    return _by_kernel(q, k, view, before) if has_kernels(q) else sum_rows(q, k, view, before, chunk=chunk)


def _by_kernel(q: Tensor, k: Tensor, view: View, before: tuple[Tensor, Tensor] | None) -> tuple[AttentionSums, MapChange | None]:
    from loopwright.analysis.trace.map_kernel import map_sums  # Triton comes with torch, where there is a GPU

    columns, entropy, distance, sizes = map_sums(q, k, view.visible, view.valid, before)
    if distance is None or sizes is None:
        return AttentionSums(columns, entropy), None
    return AttentionSums(columns, entropy), MapChange(distance, partial(bound_of_sizes, *sizes, head_dim=q.shape[-1]))


def sum_rows(
    q: Tensor, k: Tensor, view: View, before: tuple[Tensor, Tensor] | None = None, *, chunk: int = CHUNK
) -> tuple[AttentionSums, MapChange | None]:
    """Returns what `sum_maps` does, from some rows of the maps at a time."""
    sums: AttentionSums | None = None
    squares: Tensor | None = None
    chunk //= 1 if before is None else 2
    earlier = repeat(None) if before is None else _scores(*before, view, chunk)
    for here, there in zip(attention_rows(q, k, view, chunk=chunk), earlier):  # noqa: B905 (repeat has no end)
        real = view.valid[:, None, None, here.part].to(here.attention.dtype)
        more = AttentionSums((real @ here.attention)[:, :, 0], (real @ here.entropy[..., None])[:, :, 0, 0])
        sums = more if sums is None else sums + more
        if there is not None:
            apart = torch.linalg.vector_norm(there[1].softmax(-1).sub_(here.attention), dim=-1).square()
            found = (real @ apart[..., None])[:, :, 0, 0]
            squares = found if squares is None else squares + found
    assert sums is not None
    if before is None or squares is None:
        return sums, None
    allowed = partial(query_key_bound, *(x.transpose(1, 2) for x in (q, k, *before)), valid=view.padding)
    return sums, MapChange(squares.sqrt(), allowed)


def farthest_pairs(pairs: Sequence[tuple[Tensor, Tensor]], view: View) -> Tensor:
    """Returns `metrics.farthest_maps` [L, B] of the maps of layers' queries and keys: each two are compared once, none is kept."""
    apart = torch.zeros(len(pairs), len(pairs), view.valid.shape[0], device=view.valid.device)
    for a, b in combinations(range(len(pairs)), 2):
        _, change = sum_maps(*pairs[a], view, pairs[b])
        assert change is not None
        apart[a, b] = apart[b, a] = change.distance.mean(1)
    return apart.argmax(1)
