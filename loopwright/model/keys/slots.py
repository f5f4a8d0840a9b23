"""SlotTable: what a cache keeps for every (slot, row, token), in one tensor that grows on any axis.

Ledger: what a cache knows of its keys where rows are padded, packed or unequally long.

Filled: which rows of a cache miss earlier tokens of a step or a reading. Plain numbers on the host.

A group is the slots that one run of a stack writes: a step of the core, or a reading of the coda. A row that was not run at a
group for some token can never be run there again: its later tokens would attend to keys that were never made. So only the rows
that fell behind are kept, and a pass at an unchanged depth changes nothing here.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from loopwright.model.parts.part import RowSteps
from loopwright.model.passes import Expected

if TYPE_CHECKING:
    from loopwright.model.span import Span


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


Group = tuple[str, Hashable]  # the stack, and the step or the reading


class Filled:
    """For each group, the rows that miss tokens, with the number of tokens that they hold."""

    def __init__(self) -> None:
        self.missing: dict[Group, dict[int, int]] = {}
        self._ran: dict[Group, set[int] | None] = {}  # by the pass at hand; None: all rows

    def begin(self) -> None:
        """Begins a pass. What a pass that failed had run is not counted: its tokens are not held."""
        self._ran = {}

    def short(self, group: Group, rows: Iterable[int] | None, lengths: Sequence[int]) -> tuple[int, int] | None:
        """Returns the first of the rows (None: all) that misses tokens of a group and how many it holds, or None."""
        missing = self.missing.get(group)
        if missing is not None and not missing:
            return None
        for row in range(len(lengths)) if rows is None else rows:
            if missing is None and lengths[row]:
                return row, 0
            if missing is not None and row in missing:
                return row, missing[row]
        return None

    def ran(self, group: Group, rows: Iterable[int] | None, lengths: Sequence[int]) -> None:
        """Notes that the pass ran these rows (None: all) at a group."""
        if group not in self.missing:
            self.missing[group] = {row: 0 for row, length in enumerate(lengths) if length}
        before = self._ran.get(group, set())
        self._ran[group] = None if rows is None or before is None else before | set(rows)

    def advance(self, lengths: Sequence[int]) -> None:
        """Ends a pass over rows that held `lengths` tokens before it: whoever was not run at a group falls behind there."""
        for group, missing in self.missing.items():
            ran = self._ran.get(group, set())
            if ran is not None:
                for row, length in enumerate(lengths):
                    if row not in ran:
                        missing.setdefault(row, length)
        self._ran = {}

    def crop(self, lengths: Sequence[int]) -> None:
        """Keeps these many tokens per row: a row that holds as many of a group misses none of it."""
        for missing in self.missing.values():
            for row in [row for row, held in missing.items() if held >= lengths[row]]:
                del missing[row]

    def choose_rows(self, rows: Sequence[int]) -> None:
        """Replaces the rows by the chosen ones, in that order."""
        for group, missing in self.missing.items():
            self.missing[group] = {new: missing[old] for new, old in enumerate(rows) if old in missing}

    def admit(self, row: int, other: Filled, other_row: int, lengths: Sequence[int]) -> None:
        """Takes over a row of another cache; `lengths` are those of all rows here with the new one in its place."""
        for group in {**self.missing, **other.missing}:
            if group not in self.missing:
                self.missing[group] = {i: 0 for i, length in enumerate(lengths) if length and i != row}
            self.missing[group].pop(row, None)
            held = other.missing.get(group, {other_row: 0}).get(other_row)
            if held is not None and held < lengths[row]:
                self.missing[group][row] = held


def refusal(stack: str, at: int | Expected, count: str) -> str:
    """Returns the line that refuses a step or a reading of which only `count` earlier tokens are there."""
    if stack == "core":
        return f"cache: step {at} holds {count}, so they were run less deep; keep one depth for a sequence, or use policy 'last'"
    if isinstance(at, Expected):
        where, how = f"the expected state of depth {at.depth}", "run them with select='expected' at that depth too"
    else:
        where, how = f"depth {at}", f"run them at depth={at} too, or at every depth with output_steps=True"
    return f"cache: the coda read {count} at {where}; {how}, or use policy 'last'"


def by_row(at: int | Tensor | RowSteps | Expected, count: int) -> list[tuple[Any, list[int] | None]]:
    """Returns each step or reading with its rows (None: all). The one place where one per row is brought to the host."""
    if not isinstance(at, Tensor | RowSteps):
        return [(at, None)]
    shape = at.shape if isinstance(at, Tensor) else (len(at.values),)
    if shape != (count,):
        raise ValueError(f"cache: steps of shape {tuple(shape)}; allowed: one number, or one per row ({count},)")
    rows: dict[int, list[int]] = {}
    for row, one in enumerate(at.tolist() if isinstance(at, Tensor) else at.values):
        rows.setdefault(one, []).append(row)
    return list(rows.items())
