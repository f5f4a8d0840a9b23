"""Chains of operations on a small value: `3 +4 *2 = 0`. How many there are is how deep one has to think."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from loopwright.data.tasks.task import ANSWERS, EOS, PAD, PADDINGS, Alphabet, Matrix, Task, TaskRows, below
from loopwright.schema import check_choice, check_count

Operations = dict[str, list[int]]  # name → what each value becomes


class Chain(Task):
    """A start value below `modulus`, operations that are applied from left to right, `=`, the last value and EOS.

    `operations` are "add" (`+k` modulo the modulus; with modulus 2 the answer is a parity), "affine" (`+k` and `*k` modulo a
    prime: their order matters), or "swap" (`i/j`: value i becomes j and j becomes i, as under the cups of a shell game).

    Needed depth: the number of operations, one a step (`required_depth`), or its logarithm where neighbours are joined first. With
    "swap" and 5 values or more the answers are those of the word problem of S₅, which no fixed depth solves at every length (unless
    TC⁰ = NC¹): depth must grow.

    With `answers` "every" there is no `=`, and a value is asked for after the start and after every operation (or `.`), in place:
    `2 0/2 1/3 §` and there 2, 0, 0. A row then holds the answers of all shorter chains that it begins with; one answer at the
    end of a row was not learned here (experiments/LOG.md).

    Rows hold one of `lengths` operations, tests of other lengths are `longer`. `places` scatters the operations over so many
    places with `.` between them, so that rows of every length have one shape and every position is trained.
    """

    unit = "length"

    def __init__(
        self,
        *,
        lengths: Sequence[int] = (1, 2, 3, 4, 5, 6, 7, 8),
        longer: Sequence[int] = (),
        modulus: int = 5,
        operations: str = "swap",
        places: int | None = None,
        answers: str = "last",
        train: int = 100_000,
        valid: int = 1_000,
        test: int = 5_000,
        seed: int = 0,
        padding: str = "masked",
    ) -> None:
        where = self.configure("chain", {"lengths": lengths}, {"longer": longer}, test=test, valid=valid, train=train, seed=seed)
        self.modulus = check_count(where, "modulus", modulus, least=2)
        table = OPERATIONS[check_choice(where, "operations", operations, OPERATIONS)](modulus)
        if not 0 < len(table) < 200 - modulus:
            raise ValueError(f"{where}: modulus is {modulus} with {operations!r}; allowed: {ALLOWED[operations]}")
        self.alphabet = Alphabet([*map(str, range(modulus)), *table, "=", ".", PAD, EOS], separator=" ")
        self.table = np.array(list(table.values()))
        self.places = None if places is None else check_count(where, "places", places, least=max(*self.trained, *self.beyond, 1))
        self.in_place = check_choice(where, "answers", answers, ANSWERS) == "every"
        self.padding = check_choice(where, "padding", padding, PADDINGS)

    def draw(self, group: int, bits: np.random.PCG64, count: int) -> Matrix:
        """Returns random start values and operations [count, 1 + group]."""
        return np.concatenate([below(bits, self.modulus, count, 1), below(bits, len(self.table), count, group)], axis=1)

    def capacity(self, group: int, held: Matrix | None) -> int:
        return self.modulus * len(self.table) ** group - (0 if held is None else len(held))

    def extent(self, group: int) -> int:
        return (self.places or group) + (2 if self.in_place else 4)

    def write(self, group: int, problems: Matrix, bits: np.random.PCG64, extent: int) -> TaskRows:
        count, places = len(problems), self.places or group
        equals, dot = self.alphabet.encode("= .")
        ids = np.full((count, extent), self.alphabet.pad_id)
        ids[:, 0] = problems[:, 0]
        ids[:, 1 : places + 1] = dot
        chosen = np.sort(np.argsort(bits.random_raw((count, places)), axis=1, kind="stable")[:, :group], axis=1)
        np.put_along_axis(ids, chosen + 1, problems[:, 1:] + self.modulus, axis=1)
        values, required_depth = self.values(ids[:, : places + 1]), np.full(count, group)
        if self.in_place:
            ids[:, places + 1] = self.alphabet.eos_id
            answers = np.full_like(ids, self.alphabet.pad_id)
            answers[:, 1 : places + 2] = values  # one place on: the model shifts labels
            return TaskRows(ids, np.ones(count, dtype=int), np.full(count, places + 2), required_depth, answers)
        ids[:, places + 1], ids[:, places + 2], ids[:, places + 3] = equals, values[:, -1], self.alphabet.eos_id
        return TaskRows(ids, np.full(count, places + 2), np.full(count, places + 4), required_depth)

    def values(self, ids: Matrix) -> Matrix:
        """Returns the value after each symbol of rows that hold a start value, then operations and `.` [N, 1 + places]."""
        kept = np.arange(self.modulus)
        become = np.stack([kept] * (self.modulus + len(self.table) + 2))  # what is no operation leaves every value
        become[self.modulus : self.modulus + len(self.table)] = self.table
        values = ids.copy()
        for place in range(1, ids.shape[1]):
            values[:, place] = become[ids[:, place], values[:, place - 1]]
        return values


def additions(m: int) -> Operations:
    """Returns +0 … +(m − 1), modulo m."""
    return {f"+{k}": [(v + k) % m for v in range(m)] for k in range(m)}


def affine(m: int) -> Operations:
    """Returns +1 … +(m − 1) and *2 … *(m − 1), modulo a prime m; nothing where m is none, since factors would lose values."""
    if m < 3 or any(m % k == 0 for k in range(2, m)):
        return {}
    return {f"+{k}": [(v + k) % m for v in range(m)] for k in range(1, m)} | {
        f"*{k}": [v * k % m for v in range(m)] for k in range(2, m)
    }


def swaps(m: int) -> Operations:
    """Returns the exchanges of two values below m."""
    return {f"{i}/{j}": [{i: j, j: i}.get(v, v) for v in range(m)] for i in range(m) for j in range(i + 1, m)}


OPERATIONS: dict[str, Callable[[int], Operations]] = {"add": additions, "affine": affine, "swap": swaps}
ALLOWED = {"add": "2 to 99", "affine": "a prime from 3 to 61", "swap": "2 to 18"}
