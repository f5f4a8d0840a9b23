"""Where the tokens of one pass stand: their index among the keys, their document, their position, and who sees whom.

Most passes are *plain*: no padding, one document, all rows equally long. Then everything is a Python int and no mask is
built. Documents follow one another: each change of the segment id begins a new one, also where an id comes back. Where a caller
gives positions and no segment ids, a position that does not rise begins one, as transformers' packed rows say it. Otherwise
the same facts are tensors: `index[b, i]` counts keys from the start of the row's buffer, `first[b, i]` is
the index of the first token of the same document, `valid[b, j]` says whether key j is a real token. A `Ledger` holds the same of
the tokens that a cache keeps; a `RowSpan` says where the tokens of a pool's rows stand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from loopwright.model.traced import is_recorded, is_unguarded

_CHECKED: ContextVar[bool] = ContextVar("checked", default=False)


def check_documents(segment_ids: Tensor) -> None:
    """Refuses document ids below 0; waits for their device."""
    if bool((segment_ids < 0).any()):
        raise ValueError("segment_ids: negative entries; number the documents of a row 0, 1, 2 … (padding: attention_mask)")


@contextmanager
def documents_checked(checked: bool = True) -> Iterator[None]:
    """Says that document ids were looked at while they lay on the host: to ask a device again would be to wait for it."""
    before = _CHECKED.set(checked)
    try:
        yield
    finally:
        _CHECKED.reset(before)


@dataclass(frozen=True)
class Span:
    """`length` new tokens after `offset` cached ones (`offset` is the longest row's); tensors are None in a plain pass."""

    rows: int
    length: int
    offset: int
    positions: Tensor
    index: Tensor | None = None
    first: Tensor | None = None
    valid: Tensor | None = None
    segments: Tensor | None = None
    explicit: bool = False  # whether the caller gave the positions
    padded: bool = False  # whether tokens may be padding, or the cache holds such
    _flat: dict[int, Tensor] = field(default_factory=dict, repr=False, compare=False)

    @property
    def plain(self) -> bool:
        """Whether all rows are equally long, unpadded and one document each."""
        return self.index is None

    @property
    def extent(self) -> int:
        """The number of keys a token of this pass can index."""
        return self.offset + self.length

    def mask(self, window: int | None) -> tuple[Tensor | None, bool]:
        """Returns (mask [B, 1, T, N] or None, causal): what scaled-dot-product attention needs."""
        device = self.positions.device
        if self.plain:
            # a program that is recorded for other lengths has no say later in whether they fit the window
            if (window is None or (not is_unguarded() and self.extent <= window)) and (self.offset == 0 or self.length == 1):
                return None, self.offset == 0
            query = torch.arange(self.offset, self.extent, device=device)[:, None]
            key = torch.arange(self.extent, device=device)
            visible = key <= query
            if window is not None:
                visible &= key > query - window
            return visible[None, None], False
        assert self.index is not None and self.first is not None and self.valid is not None
        query = self.index[:, :, None]
        key = torch.arange(self.extent, device=device)
        visible = (key <= query) & (key >= self.first[:, :, None]) & self.valid[:, None, :]
        if window is not None:  # counted in real tokens: padding must not use it up
            seen = self._seen()
            visible &= seen[:, None, :] > seen.gather(1, self.index)[..., None] - window
        # a padding token sees itself, so that no row of the softmax is empty
        return (visible | (key == query))[:, None], False

    def flat_index(self, capacity: int) -> Tensor:
        """Returns where each new token stands in rows of `capacity` laid end to end [B·T]; made once, used by every layer."""
        assert self.index is not None
        if capacity not in self._flat:
            start = torch.arange(self.rows, device=self.index.device)[:, None] * capacity
            self._flat[capacity] = (start + self.index).flatten()
        return self._flat[capacity]

    def ordinal(self) -> Tensor:
        """Returns, for each new token, how many real tokens of its document stand up to it, itself included [B or 1, T]."""
        if self.plain:
            return torch.arange(self.offset + 1, self.extent + 1, device=self.positions.device)[None]
        assert self.index is not None and self.first is not None
        seen = self._seen()
        before = torch.where(self.first > 0, seen.gather(1, (self.first - 1).clamp(min=0)), 0)
        return (seen.gather(1, self.index) - before).clamp(min=1)

    def places(self) -> Tensor:
        """Returns how many real tokens of its row stand before each new token [B or 1, T], whatever document they are of."""
        if self.plain:
            return torch.arange(self.offset, self.extent, device=self.positions.device)[None]
        assert self.index is not None
        return (self._seen().gather(1, self.index) - 1).clamp(min=0)

    def back(self, count: Tensor) -> Tensor:
        """Returns the index of the real token that stands `count` real tokens before each new token [B, T]."""
        if self.plain:
            index = torch.arange(self.offset, self.extent, device=self.positions.device)[None]
            return (index - count).expand(self.rows, -1)
        assert self.index is not None and self.valid is not None
        seen, places = counted(self.valid)
        return places.gather(1, (seen.gather(1, self.index) - count).clamp(min=0)).clamp(min=0)

    def document_sum(self, x: Tensor, carried: Tensor | None) -> Tensor:
        """Returns the running sum of x [B, T, W] over each token's document; `carried` [B, W] is the sum cached so far."""
        if self.plain:
            total = running_sum(x)
            return total if carried is None else total + carried[:, None]
        assert self.index is not None and self.first is not None and self.valid is not None
        total = running_sum(x * self.valid.gather(1, self.index)[..., None])
        start = self.first - (self.index[:, :1])  # in tokens of this pass; negative: the document began before it
        before = total.gather(1, (start - 1).clamp(min=0)[..., None].expand_as(total))
        total = total - torch.where((start > 0)[..., None], before, 0)
        if carried is not None:
            total = total + torch.where((start < 0)[..., None], carried[:, None], 0)
        return total

    def _seen(self) -> Tensor:
        assert self.valid is not None
        return self.valid.long().cumsum(1)


@dataclass(frozen=True)
class RowSpan:
    """`length` new tokens in each row, after `offsets` earlier ones; one document per row, no padding."""

    offsets: tuple[int, ...]
    length: int
    positions: Tensor
    plain: bool = False
    explicit: bool = False

    @property
    def rows(self) -> int:
        """The number of rows of the pass."""
        return len(self.offsets)

    @property
    def extent(self) -> int:
        """The number of tokens of the longest row."""
        return max(self.offsets) + self.length

    def mask(self, window: int | None) -> tuple[None, bool]:
        """Returns that there is no mask for all rows: `PooledRows` attends row by row."""
        return None, False

    def ordinal(self) -> Tensor:
        """Returns how many tokens stand up to each new one, itself included [R, T]."""
        return self.positions + 1

    def back(self, count: Tensor) -> Tensor:
        """Returns the index of the token that stands `count` tokens before each new one [R, T]."""
        return self.positions - count

    def document_sum(self, x: Tensor, carried: Tensor | None) -> Tensor:
        """Returns the running sum of x [R, T, W]; `carried` [R, W] is the sum of the tokens before."""
        total = running_sum(x)
        return total if carried is None else total + carried[:, None]


class FixedSpan(RowSpan):
    """New tokens of which a row's last one may be there several times."""

    def document_sum(self, x: Tensor, carried: Tensor | None) -> Tensor:
        """Returns the running sum of x [R, T, W], repeated tokens counted once; `carried` [R, W] is the sum of those before."""
        if self.length > 1:
            new = torch.ones_like(self.positions, dtype=torch.bool)
            new[:, 1:] = self.positions[:, 1:] != self.positions[:, :-1]
            x = torch.where(new[..., None], x, 0)
        return super().document_sum(x, carried)


def running_sum(x: Tensor) -> Tensor:
    """Returns the running sum of x [B, T, W] over T."""
    # along the last axis a GPU's threads share a row; along another each walks down a column by itself
    return x.transpose(1, 2).cumsum(2).transpose(1, 2) if x.is_cuda else x.cumsum(1)


def counted(marked: Tensor) -> tuple[Tensor, Tensor]:
    """Returns how many tokens are marked up to each [B, T], and where the c-th of them stands [B, T + 1]; −1 for c = 0.

    What a running maximum or a search would say besides: ONNX has neither.
    """
    rows, length = marked.shape
    count = marked.long().cumsum(1)
    here = torch.arange(length, device=marked.device).expand(rows, length)
    places = torch.full((rows, length + 1), -1, dtype=torch.long, device=marked.device)
    return count, places.scatter(1, torch.where(marked, count, 0), torch.where(marked, here, -1))


def last_marked(marked: Tensor, *, before: bool = False) -> Tensor:
    """Returns where the last marked token up to each one stands, or `before` it [B, T]; −1 where there is none."""
    count, places = counted(marked)
    return places.gather(1, count - marked.long() if before else count)


PER_KEY = ("valid", "first", "positions", "segments")


@dataclass
class Ledger:
    """What is known of each cached key [B, capacity], and how long each row is [B]."""

    lengths: Tensor
    valid: Tensor
    first: Tensor
    positions: Tensor
    segments: Tensor

    def last(self) -> tuple[Tensor, Tensor, Tensor]:
        """Returns segment, first index and position of the last real token of each row; −1 where there is none."""
        order = torch.arange(1, self.valid.shape[1] + 1, device=self.valid.device)
        latest, at = (self.valid * order).max(1)
        some = latest > 0
        pick = (table.gather(1, at[:, None])[:, 0] for table in (self.segments, self.first, self.positions))
        segment, first, position = (torch.where(some, value, -1) for value in pick)
        return segment, first, position

    def map_rows(self, rows: Tensor) -> Ledger:
        """Returns the ledger of the chosen rows, in that order."""
        return Ledger(*(getattr(self, name).index_select(0, rows) for name in self.__dataclass_fields__))

    def widened(self, capacity: int) -> Ledger:
        """Returns the ledger with room for at least `capacity` keys per row."""
        missing = capacity - self.valid.shape[1]
        if missing <= 0:
            return self
        wide = {name: torch.nn.functional.pad(getattr(self, name), (0, missing)) for name in PER_KEY}
        return Ledger(self.lengths, **wide)

    def extend(self, span: Span) -> None:
        """Adds the tokens of a pass."""
        assert span.index is not None and span.first is not None and span.valid is not None and span.segments is not None
        self.valid[:, : span.extent] = span.valid
        self.first.scatter_(1, span.index, span.first)
        self.positions.scatter_(1, span.index, span.positions.expand(span.rows, span.length))
        self.segments.scatter_(1, span.index, span.segments)
        self.lengths = self.lengths + span.length

    def crop(self, lengths: Sequence[int]) -> None:
        """Keeps the first so many tokens of each row."""
        self.lengths = torch.tensor(lengths, device=self.lengths.device)
        order = torch.arange(self.valid.shape[1], device=self.lengths.device)
        self.valid = self.valid & (order < self.lengths[:, None])


def plain_ledger(lengths: Sequence[int], capacity: int, positions: Tensor | None, device: torch.device) -> Ledger:
    """Returns the ledger of rows without padding, one document each; `positions` [B or 1, N] where they do not count from 0."""
    held = torch.tensor(lengths, device=device)
    order = torch.arange(capacity, device=device).expand(len(lengths), -1)
    zeros = torch.zeros_like(order)
    placed = order.clone()
    if positions is not None:
        placed[:, : positions.shape[1]] = positions
    return Ledger(held, order < held[:, None], zeros.clone(), placed, zeros.clone())


class HeldTokens(Protocol):
    """What is known of the tokens that a cache holds: where new ones go on."""

    @property
    def length(self) -> int:
        """The number of tokens held (of the longest row)."""

    @property
    def plain(self) -> bool:
        """Whether no row has padding, or several documents, among its earlier tokens."""

    @property
    def next_position(self) -> Tensor | None:
        """Where plain rows go on [B or 1, 1]; None where they go on at their length."""

    def ledger(self, rows: int, device: torch.device) -> Ledger:
        """Returns what is known of each earlier token."""


def place_tokens(
    rows: int,
    length: int,
    device: torch.device,
    *,
    cache: HeldTokens | None = None,
    attention_mask: Tensor | None = None,
    position_ids: Tensor | None = None,
    segment_ids: Tensor | None = None,
) -> Span:
    """Returns the span of `length` new tokens per row, after what the cache holds."""
    offset = 0 if cache is None else cache.length
    _check_shapes(rows, length, offset, attention_mask, position_ids, segment_ids)
    # what is recorded must not depend on what a tensor holds: there, a mask counts as padding whatever it says
    if attention_mask is not None and not is_recorded() and bool(attention_mask.all()):
        attention_mask = None
    explicit = position_ids is not None
    if position_ids is not None:
        position_ids = position_ids.view(-1, length)
    packed = position_ids is not None and segment_ids is None and _restarts(position_ids, offset, cache)
    if attention_mask is None and segment_ids is None and not packed and (cache is None or cache.plain):
        if position_ids is None:
            here = torch.arange(length, device=device)[None]
            position_ids = here + (offset if cache is None or cache.next_position is None else cache.next_position)
        return Span(rows, length, offset, position_ids, explicit=explicit)

    old = None if cache is None or not cache.length else cache.ledger(rows, device)
    lengths = torch.zeros(rows, dtype=torch.long, device=device) if old is None else old.lengths
    index = lengths[:, None] + torch.arange(length, device=device)
    real = torch.ones(rows, length, dtype=torch.bool, device=device)
    if attention_mask is not None:
        real = attention_mask[:, -length:].bool()
    if old is None:
        last_segment = torch.full((rows,), -1, dtype=torch.long, device=device)
        last_first, last_position = last_segment, last_segment
    else:
        last_segment, last_first, last_position = old.last()
    # the last real token before each token in this pass; below 0: in the cache, or none
    previous = last_marked(real, before=True)
    segments = last_segment.clamp(min=0)[:, None].expand(rows, length) if segment_ids is None else segment_ids.long()
    if packed:
        assert position_ids is not None
        positions = position_ids.expand(rows, length)
        reached = torch.where(previous >= 0, positions.gather(1, previous.clamp(min=0)), last_position[:, None])
        segments = segments + (real & (positions <= reached)).long().cumsum(1)
    before = torch.where(previous >= 0, segments.gather(1, previous.clamp(min=0)), last_segment[:, None])
    begins = real & (before != segments)
    begun = last_marked(begins)
    first = torch.where(begun >= 0, lengths[:, None] + begun, last_first[:, None])
    first = torch.where(first >= 0, first, index)  # padding before the first document

    if position_ids is None:
        count = real.long().cumsum(1)
        at_start = count.gather(1, begun.clamp(min=0))
        position_ids = torch.where(begun >= 0, count - at_start, last_position[:, None] + count).clamp(min=0)

    valid = torch.zeros(rows, offset + length, dtype=torch.bool, device=device)
    if old is not None:
        valid[:, :offset] = old.valid[:, :offset]
    valid.scatter_(1, index, real)
    padded = attention_mask is not None or old is not None
    return Span(rows, length, offset, position_ids, index, first, valid, segments, explicit, padded)


def _restarts(position_ids: Tensor, offset: int, cache: HeldTokens | None) -> bool:
    """Whether a position may not lie above the one before it, in the pass or in the cache; padding is not told apart here."""
    if is_recorded():  # what is recorded must not depend on what a tensor holds
        return True
    if bool((position_ids.diff() <= 0).any()):
        return True
    if not offset:
        return False
    if cache is None or not cache.plain:
        return True
    return bool((position_ids[:, :1] < (offset if cache.next_position is None else cache.next_position)).any())


def _check_shapes(
    rows: int, length: int, offset: int, attention_mask: Tensor | None, position_ids: Tensor | None, segment_ids: Tensor | None
) -> None:
    if attention_mask is not None and attention_mask.shape not in ((rows, offset + length), (rows, length)):
        raise ValueError(
            f"attention_mask: shape {tuple(attention_mask.shape)}; allowed: {(rows, offset + length)} "
            "(one entry per cached and new token) or one entry per new token"
        )
    if position_ids is not None and position_ids.shape not in ((rows, length), (1, length), (length,)):
        raise ValueError(f"position_ids: shape {tuple(position_ids.shape)}; allowed: {(rows, length)} or {(length,)}")
    if segment_ids is not None:
        if segment_ids.shape != (rows, length):
            raise ValueError(f"segment_ids: shape {tuple(segment_ids.shape)}; allowed: {(rows, length)}")
        if not is_recorded() and not _CHECKED.get():
            check_documents(segment_ids)
