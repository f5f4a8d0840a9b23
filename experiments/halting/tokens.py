"""What is asked of a model on each task, and what is known of the tokens asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from loopwright.data.batch import IGNORED, Batch
from loopwright.data.tasks.addition import BASE
from loopwright.data.tasks.task import Table
from loopwright.data.tokens import Windows

BLOCKS = 50  # rows are counted into so many blocks, which are drawn for an interval over rows
ROWS = 250  # of a pass over columns
WINDOWS, AT_ONCE = 400, 50  # of text: read in all, and in a pass
TOLERANCE = 0.1  # nats above its loss at full depth that a token of text may have and count as settled
TENTHS = 10

Batches = Iterator[tuple[Sequence[int], Batch]]


@dataclass(frozen=True)
class Known:
    """What is known of each token [N]: the step from which it is `settled`; what it `wants` (steps that it needs, or nats that it
    gains by depth) and its `group` by that; the `answer` that is right where all its tokens are; the `block` it is drawn with."""

    settled: Tensor
    wants: Tensor
    group: Tensor
    answer: Tensor
    block: Tensor


class Tokens(Protocol):
    """The held-out tokens of a task."""

    def batches(self) -> Batches: ...

    def known(self, row: Tensor, losses: Tensor, right: Tensor) -> Known: ...


class ColumnTokens:
    """Digits of sums. How often a carry is handed on is what its column needs; a row is right as a whole."""

    def __init__(self, rows: Table) -> None:
        self.rows = rows

    def batches(self) -> Batches:
        """Yields all rows with their numbers."""
        for part in parts(len(self.rows), ROWS):
            yield part, self.rows.batch(part)

    def known(self, row: Tensor, losses: Tensor, right: Tensor) -> Known:
        """Returns what is known of the tokens of these rows [N], with loss and right [S, N]."""
        needs = token_needs(self.rows)
        return Known(first_settled(right), needs, needs, row, row % BLOCKS)


class TextTokens:
    """Tokens of windows at even distances in a held-out text. A token wants depth as far as depth lowers its loss, and is settled
    from where its loss stays within TOLERANCE of that at full depth; a block is a stretch of the text."""

    def __init__(self, windows: Windows) -> None:
        count = min(WINDOWS, len(windows))
        self.windows, self.places = windows, [i * len(windows) // count for i in range(count)]

    def batches(self) -> Batches:
        """Yields the windows, counted from 0."""
        for part in parts(len(self.places), AT_ONCE):
            yield part, self.windows.batch([self.places[i] for i in part])

    def known(self, row: Tensor, losses: Tensor, right: Tensor) -> Known:
        """Returns what is known of the tokens of these windows [N], with loss and right [S, N]; each is an answer of its own."""
        gain = (losses[0] - losses[-1]).double()
        settled = first_settled(losses <= losses[-1] + TOLERANCE)
        return Known(settled, gain, tenths(gain), torch.arange(len(row)), row * BLOCKS // len(self.places))


TOKENS: dict[str, type[Any]] = {"columns": ColumnTokens, "text": TextTokens}


def parts(count: int, size: int) -> Iterator[range]:
    """Yields 0 … count − 1 in ranges of at most `size`."""
    return (range(start, min(start + size, count)) for start in range(0, count, size))


def tenths(values: Tensor) -> Tensor:
    """Returns for each value [N] in which tenth of all of them it is, the least first."""
    return values.argsort(stable=True).argsort(stable=True) * TENTHS // len(values)


def first_settled(right: Tensor) -> Tensor:
    """Returns the depth from which a token stays right [N], for right [S, N]; the last depth where it never does."""
    held = right.flip(0).int().cumprod(0).sum(0)  # how many of the last depths are right
    return (len(right) - held + 1).clamp(max=len(right))


def token_needs(rows: Table) -> Tensor:
    """Returns what each target of the task `columns` needs: how often the carry of its column is handed on."""
    batch = rows.batch(range(len(rows)))
    asked = batch.labels[:, 1:] != IGNORED
    ids = batch.input_ids[:, :-1]
    sums = ids // BASE + ids % BASE
    handed, each = torch.ones(len(ids), dtype=torch.long), []
    for column in range(1, ids.shape[1]):  # after the mark; what is no column is asked nothing
        each.append(handed)
        handed = torch.where(sums[:, column] == BASE - 1, handed, 0) + 1
    return torch.stack([torch.zeros(len(ids), dtype=torch.long), *each], dim=1)[asked]
