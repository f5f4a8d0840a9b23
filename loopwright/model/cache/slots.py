"""SlotTable: what a cache keeps for every (slot, row, token), in one tensor that grows on any axis."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from loopwright.model.forward.span import Span


class SlotTable:
    """A tensor [slots, B, capacity, …] with a ready view of each slot: a decode step writes hundreds of times."""

    def __init__(self, shape: tuple[int, ...], like: Tensor) -> None:
        self._hold(torch.zeros(shape, dtype=like.dtype, device=like.device))

    def _hold(self, data: Tensor) -> None:
        self.data = data
        self.views = data.unbind(0)

    @property
    def bytes(self) -> int:
        """The bytes allocated."""
        return self.data.numel() * self.data.element_size()

    def holds(self, slots: int, rows: int, capacity: int) -> bool:
        """Whether there is room for this many slots, rows and tokens."""
        return all(have >= want for have, want in zip(self.data.shape, (slots, rows, capacity), strict=False))

    def grow(self, slots: int, rows: int, capacity: int) -> None:
        """Makes at least this many slots, rows and tokens, keeping what is there."""
        old = self.data
        wanted = tuple(max(have, want) for have, want in zip(old.shape, (slots, rows, capacity), strict=False))
        if wanted != old.shape[:3]:
            new = old.new_zeros(wanted + old.shape[3:])
            new[: old.shape[0], : old.shape[1], : old.shape[2]] = old
            self._hold(new)

    def choose_rows(self, rows: Tensor) -> None:
        """Replaces the rows by the chosen ones, in that order."""
        self._hold(self.data.index_select(1, rows.to(self.data.device)))

    def copy_row(self, row: int, other: SlotTable, other_row: int, length: int, slots: Sequence[int]) -> None:
        """Copies the first `length` tokens of a row of another table; `slots` are those here that its slots stand for."""
        self.data[torch.tensor(slots, device=self.data.device), row, :length] = other.data[:, other_row, :length].to(self.data)

    def at(self, slot: int | Tensor, index: Tensor) -> Tensor:
        """Returns the entries [B, …] at one token index per row, of one slot or one per row."""
        return self.data[slot, torch.arange(len(index), device=self.data.device), index]

    def write(self, slot: int | Tensor, new: Tensor, span: Span) -> Tensor:
        """Stores `new` [B, T, …] at the span, in one slot or one per row; returns all up to the span's end [B, N, …]."""
        if isinstance(slot, int) and span.plain:
            view = self.views[slot]
            if torch.is_grad_enabled():  # even where `new` is frozen: autograd keeps what attention reads
                with torch.no_grad():
                    view.narrow(1, span.offset, span.length).copy_(new)
                # what autograd may follow: earlier tokens as constants, the new ones as they came
                return torch.cat([view.narrow(1, 0, span.offset).clone(), new.to(view.dtype)], dim=1)
            view.narrow(1, span.offset, span.length).copy_(new)
            return view.narrow(1, 0, span.extent)
        if new.requires_grad and torch.is_grad_enabled():
            raise ValueError("cache: rows that are padded, packed or at their own steps are cached under torch.no_grad() only")
        new = new.to(self.data.dtype)
        if isinstance(slot, int):
            self.views[slot].flatten(0, 1).index_copy_(0, span.flat_index(self.data.shape[2]), new.flatten(0, 1))
            return self.views[slot].narrow(1, 0, span.extent)
        rows = torch.arange(span.rows, device=self.data.device)
        index = span.index
        if index is None:
            index = torch.arange(span.offset, span.extent, device=self.data.device).expand(span.rows, -1)
        slot = slot.to(self.data.device)
        self.data[slot[:, None], rows[:, None], index] = new
        return self.data[slot, rows, : span.extent]
