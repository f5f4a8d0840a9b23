"""Filled: which rows of a cache miss earlier tokens of a step or a reading. Plain numbers on the host.

A group is the slots that one run of a stack writes: a step of the core, or a reading of the coda. A row that was not run at a
group for some token can never be run there again: its later tokens would attend to keys that were never made. So only the rows
that fell behind are kept, and a pass at an unchanged depth changes nothing here.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

from torch import Tensor

from loopwright.model.forward.context import Expected
from loopwright.model.parts.part import RowSteps

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
