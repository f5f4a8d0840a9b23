"""Addition of numbers, digit by digit, as the code of the STARS study writes it, `1750+4733= 3846§`, or as its paper does.

Addition in columns, the last digits first, each digit of the sum asked for at its own column: `^ 7+5 2+7 0+0` → 2 0 1.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loopwright.data.tasks.task import EOS, PAD, PADDINGS, Alphabet, Matrix, Task, TaskRows, below
from loopwright.schema import check_choice, check_count

ALPHABET = Alphabet([*"0123456789", "+", "=", " ", PAD, EOS])
PLUS, EQUALS, SPACE, PADDING, END = ALPHABET.encode(f"+= {PAD}{EOS}")
REVERSALS = ("answer", "all", "none")
READINGS = {
    "none": "",
    "answer": "the sum is written from its last digit on: 12+34= 64 says that the sum is 46",
    "all": "every number is written from its last digit on: 21+43= 64 says that 12 + 34 is 46",
}


class Addition(Task):
    """a + b of `digits` digits each, without leading zeros: the operands, one space, the sum from its last digit, EOS.

    The labels are the space, the sum and EOS. `reverse` "none" writes the sum from its first digit, `space` false leaves the space
    out: both together are the form that the STARS paper prints, `1234+5678=6912`. Where a + b is in one split, neither a + b nor
    b + a is in another.

    Needed depth: a carry may ripple through all digits (`required_depth` is the longest ripple of a row), but the sum is written
    from its last digit, so that each digit follows from four digits that can be seen: a constant depth can do it, whatever the
    length.
    From its first digit on, each digit hangs on all columns behind it.

    `train_digits` trains on several lengths, in equal parts as far as there are pairs; `longer` adds tests of other lengths.
    Three options serve generalisation over length: `reverse` "all" writes the operands from their last digit too; `width` fills
    operands with zeros up to so many digits, and sums up to one more, so that all rows have one shape and every position is
    trained; `offset` begins each row with 0 … offset spaces, drawn per row, so that no digit is tied to one position.
    """

    unit = "digits"
    alphabet = ALPHABET

    def __init__(
        self,
        *,
        digits: int = 4,
        train: int = 100_000,
        valid: int = 1_000,
        test: int = 5_000,
        seed: int = 0,
        longer: Sequence[int] = (),
        train_digits: Sequence[int] | None = None,
        reverse: str = "answer",
        space: bool = True,
        width: int | None = None,
        offset: int = 0,
        padding: str = "masked",
    ) -> None:
        check_count("data (addition)", "digits", digits, least=1)
        trained = {"train_digits": (digits,) if train_digits is None else train_digits}
        where = self.configure("addition", trained, {"longer": longer}, test=test, valid=valid, train=train, seed=seed)
        self.reverse = check_choice(where, "reverse", reverse, REVERSALS)
        self.reading, self.space = READINGS[reverse], space
        self.width = None if width is None else check_count(where, "width", width, least=max(*self.trained, *self.beyond, 1))
        self.offset = check_count(where, "offset", offset)
        self.padding = check_choice(where, "padding", padding, PADDINGS)

    def draw(self, group: int, bits: np.random.PCG64, count: int) -> Matrix:
        """Returns random pairs of numbers with exactly `group` digits [count, 2 · group], most significant digit first."""
        drawn = below(bits, 10, count, 2, group)
        if group > 1:
            drawn[:, :, 0] = 1 + below(bits, 9, count, 2)
        return drawn.reshape(count, 2 * group)

    def key(self, problems: Matrix) -> Matrix:
        """Returns the pairs with the smaller operand first: equal for a + b and b + a."""
        n = problems.shape[1] // 2
        a, b = problems[:, :n], problems[:, n:]
        differs = (a != b).argmax(1)[:, None]  # the first digit that does
        swapped = np.take_along_axis(a, differs, axis=1) > np.take_along_axis(b, differs, axis=1)
        return np.where(swapped, np.concatenate([b, a], axis=1), problems)

    def capacity(self, group: int, held: Matrix | None) -> int:
        pairs = (10 if group == 1 else 9 * 10 ** (group - 1)) ** 2
        if held is None:
            return pairs
        keys = np.unique(held, axis=0)
        doubles = int((keys[:, :group] == keys[:, group:]).all(1).sum())  # a + a has no other order
        return pairs - 2 * len(keys) + doubles

    def extent(self, group: int) -> int:
        return self.offset + 3 * (self.width or group) + 4 + self.space

    def write(self, group: int, problems: Matrix, bits: np.random.PCG64, extent: int) -> TaskRows:
        count, wide = len(problems), self.width or group
        operands = np.zeros((count, 2, wide), dtype=np.int64)
        operands[:, :, wide - group :] = problems.reshape(count, 2, group)
        total, ripple = add_digits(operands[:, 0, ::-1], operands[:, 1, ::-1])
        if self.reverse == "all":
            operands = operands[:, :, ::-1]
        plus, equals, space, end, padding = (np.full((count, 1), symbol) for symbol in (PLUS, EQUALS, SPACE, END, PADDING))
        leading = total.shape[1] - 1
        if self.reverse == "none":
            total, leading = total[:, ::-1], 0
        short = (total[:, [leading]] == 0) & (self.width is None)  # no leading zero: EOS moves up where there is no last carry
        answer = np.concatenate([total, end], axis=1)
        answer = np.where(short, np.concatenate([np.delete(total, leading, axis=1), end, padding], axis=1), answer)
        body = np.concatenate([operands[:, 0], plus, operands[:, 1], equals, *[space] * self.space, answer], axis=1)
        offsets = below(bits, self.offset + 1, count)
        ids = np.full((count, extent), PADDING)
        ids[np.arange(extent) < offsets[:, None]] = SPACE
        np.put_along_axis(ids, offsets[:, None] + np.arange(body.shape[1]), body, axis=1)
        return TaskRows(ids, offsets + 2 * wide + 2, offsets + (body != PADDING).sum(1), ripple)


def add_digits(a: Matrix, b: Matrix) -> tuple[Matrix, np.ndarray]:
    """Returns the digits of a + b [N, n + 1] and the longest ripple of a carry [N]; all digits stand from the last one on."""
    carry, ripple, longest = (np.zeros(len(a), dtype=np.int64) for _ in range(3))
    digits = []
    for x, y in zip(a.T, b.T, strict=True):
        plain = x + y
        digits.append((plain + carry) % 10)
        ripple = np.where(plain > 9, 1, np.where((plain == 9) & (carry == 1), ripple + 1, 0))
        carry = (plain + carry) // 10
        longest = np.maximum(longest, ripple)
    return np.stack([*digits, carry], axis=1), longest


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
    farther the longer a row is; digits drawn at random would need some log n. `required_depth` counts how often the carry that
    travels farthest is handed on: the depth of a model that sees one column back a step (a `sliding_window` of 2).

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
        where = self.configure("columns", {"lengths": lengths}, {"longer": longer}, test=test, valid=valid, train=train, seed=seed)
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

    def capacity(self, group: int, held: Matrix | None) -> int:
        if held is None:
            return len(PAIRS) ** group
        keys = np.unique(held, axis=0)
        exchanges = (keys[:, ::2] != keys[:, 1::2]).sum(1)
        return len(PAIRS) ** group - sum(2 ** int(n) for n in exchanges)

    def extent(self, group: int) -> int:
        return group + 3

    def write(self, group: int, problems: Matrix, bits: np.random.PCG64, extent: int) -> TaskRows:
        count = len(problems)
        columns = np.pad(problems.reshape(count, group, 2), ((0, 0), (0, 1), (0, 0)))  # the last one is 0+0
        ids = np.full((count, extent), self.alphabet.pad_id)
        ids[:, 0], ids[:, group + 2] = self.alphabet.encode(f"{START} {EOS}")
        ids[:, 1 : group + 2] = columns[:, :, 0] * BASE + columns[:, :, 1]
        digits, required_depth = add_columns(columns.sum(2))
        answers = np.full_like(ids, self.alphabet.pad_id)
        answers[:, 2 : group + 3] = digits + FIRST_DIGIT  # one place on: the model shifts labels
        return TaskRows(ids, np.full(count, 2), np.full(count, group + 3), required_depth, answers)


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
