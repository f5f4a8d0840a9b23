"""Addition in columns, the last digits first, each digit of the sum asked for at its own column: `^ 7+5 2+7 0+0` → 2 0 1."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loopwright.data.tasks.draw import Matrix, below
from loopwright.data.tasks.table import EOS, PAD, PADDINGS, Alphabet, Rows
from loopwright.data.tasks.task import Task
from loopwright.values import check_choice

BASE = 10
PAIRS = [f"{a}+{b}" for a in range(BASE) for b in range(BASE)]
# without a mark before it the first of two equal columns would be told from the second by nothing in a narrow window: rotary
# positions turn queries and keys, and a mean of two equal values is the value
START = "^"
COLUMNS_ALPHABET = Alphabet([*PAIRS, *map(str, range(BASE)), START, PAD, EOS], separator=" ")
FIRST_DIGIT = len(PAIRS)  # the id of the answer 0


class Columns(Task):
    """Two numbers of one of `lengths` digits: `^`, a token per column from the last digits on, a column `0+0`, EOS.

    The answer to a column is the sum's digit there, (a + b + carry) mod 10, and at `0+0` the last carry. It stands at the column
    and is never an input: a carry has to be worked out, not read.

    A column that sums to 9 hands on the carry it gets; any other settles its carry alone. Rows are stretches: a random column
    alone or, as often, with 0 … n − 1 columns after it that sum to 9, n being the row's length. So carries travel far, and the
    farther the longer a row is; digits drawn at random would need some log n. `needs` counts how often the carry that travels
    farthest is handed on: the depth of a model that sees one column back a step (a `sliding_window` of 2).

    Where a row is in one split, no other split has it, nor one that exchanges the two digits of some columns.
    """

    unit = "length"
    alphabet = COLUMNS_ALPHABET
    in_place = True
    reading = "the first new token answers the last column of the prompt; what comes after it means nothing"

    def __init__(
        self,
        *,
        lengths: Sequence[int] = (4, 5, 6, 7, 8),
        longer: Sequence[int] = (),
        train: int = 100_000,
        valid: int = 1_000,
        test: int = 5_000,
        seed: int = 0,
        padding: str = "masked",
    ) -> None:
        where = self.hold("columns", {"lengths": lengths}, {"longer": longer}, test=test, valid=valid, train=train, seed=seed)
        self.padding = check_choice(where, "padding", padding, PADDINGS)

    def draw(self, group: int, bits: np.random.PCG64, count: int) -> Matrix:
        """Returns random columns [count, 2 · group]: a and b of the last digits, of those before them …"""
        drawn = below(bits, BASE, count, group, 2)
        nines = np.maximum(below(bits, 2 * group, count, group) - group, 0)  # how many follow, where a stretch begins
        left = np.zeros(count, dtype=np.int64)
        for column in range(group):
            drawn[left > 0, column, 1] = BASE - 1 - drawn[left > 0, column, 0]
            left = np.where(left > 0, left - 1, nines[:, column])
        return drawn.reshape(count, 2 * group)

    def key(self, problems: Matrix) -> Matrix:
        """Returns the columns with the smaller digit first: their exchange changes no sum."""
        return np.sort(problems.reshape(len(problems), -1, 2), axis=2).reshape(problems.shape)

    def room(self, group: int, held: Matrix | None) -> int:
        if held is None:
            return len(PAIRS) ** group
        keys = np.unique(held, axis=0)
        exchanges = (keys[:, ::2] != keys[:, 1::2]).sum(1)
        return len(PAIRS) ** group - sum(2 ** int(n) for n in exchanges)

    def extent(self, group: int) -> int:
        return group + 3

    def write(self, group: int, problems: Matrix, bits: np.random.PCG64, extent: int) -> Rows:
        count = len(problems)
        columns = np.pad(problems.reshape(count, group, 2), ((0, 0), (0, 1), (0, 0)))  # the last one is 0+0
        ids = np.full((count, extent), self.alphabet.pad_id)
        ids[:, 0], ids[:, group + 2] = self.alphabet.encode(f"{START} {EOS}")
        ids[:, 1 : group + 2] = columns[:, :, 0] * BASE + columns[:, :, 1]
        digits, needs = add_columns(columns.sum(2))
        answers = np.full_like(ids, self.alphabet.pad_id)
        answers[:, 2 : group + 3] = digits + FIRST_DIGIT  # one place on: the model shifts labels
        return Rows(ids, np.full(count, 2), np.full(count, group + 3), needs, answers)


def add_columns(sums: Matrix) -> tuple[Matrix, np.ndarray]:
    """Returns the digits of a sum [N, n] from the sums of its columns, and how often its farthest carry is handed on [N]."""
    carry, most, handed = (np.full(len(sums), start) for start in (0, 0, 1))  # the first column is handed "none"
    digits = []
    for column in sums.T:
        most = np.maximum(most, handed)
        digits.append((column + carry) % BASE)
        handed = np.where(column == BASE - 1, handed, 0) + 1
        carry = (column + carry) // BASE
    return np.stack(digits, axis=1), most
