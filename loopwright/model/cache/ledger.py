"""Ledger: what a cache knows of its keys where rows are padded, packed or unequally long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from loopwright.model.forward.span import Span

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

    def admit(self, row: int, other: Ledger, other_row: int, length: int) -> None:
        """Replaces a row by the first `length` keys of a row of another ledger."""
        for name in PER_KEY:
            getattr(self, name)[row] = 0
            getattr(self, name)[row, :length] = getattr(other, name)[other_row, :length]
        self.lengths[row] = length


def plain_ledger(lengths: Sequence[int], capacity: int, positions: Tensor | None, device: torch.device) -> Ledger:
    """Returns the ledger of rows without padding, one document each; `positions` [B or 1, N] where they do not count from 0."""
    held = torch.tensor(lengths, device=device)
    order = torch.arange(capacity, device=device).expand(len(lengths), -1)
    zeros = torch.zeros_like(order)
    placed = order.clone()
    if positions is not None:
        placed[:, : positions.shape[1]] = positions
    return Ledger(held, order < held[:, None], zeros.clone(), placed, zeros.clone())
