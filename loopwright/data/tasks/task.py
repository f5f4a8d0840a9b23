"""What algorithmic tasks share: rows in groups of one hardness, some trained on, some harder ones only measured."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from loopwright.data.batch import Progress, Splits
from loopwright.data.tasks.draw import Matrix, apart, shares, shuffled, stream
from loopwright.data.tasks.table import Alphabet, Rows, Table, stack
from loopwright.values import check_count, check_numbers

MOST_TOKENS = 2**30  # of all rows of a task, which are held in memory
SPLITS = ("train", "valid", "test")


class Task(ABC):
    """Rows of `trained` groups, split apart into train, valid and test, and tests of the groups that lie `beyond`.

    A group is a whole number (digits, hops, operations): the option that says how hard a row is. Its test is called
    `unit-group`, as `digits-6`; the groups that are trained on have one too where they are several.
    """

    where: str  # named in errors
    unit: str
    alphabet: Alphabet
    trained: tuple[int, ...]
    beyond: tuple[int, ...]
    counts: Mapping[str, int]  # rows of test, valid and train, in this order
    seed: int
    padding: str
    in_place: bool = False  # whether answers stand at the tokens they are about, not after them
    reading: str = ""  # how an answer is to be read, where one would read it wrong

    def hold(
        self, kind: str, trained: Mapping[str, Sequence[int]], beyond: Mapping[str, Sequence[int]], *,
        test: int, valid: int, train: int, seed: int,
    ) -> str:  # fmt: skip
        """Checks and keeps what every task is given, the groups under the names of their options; returns how errors begin."""
        self.where = where = f"data ({kind})"
        self.counts = {"test": test, "valid": valid, "train": train}
        for name, count in self.counts.items():
            check_count(where, name, count, least=1)
        ((name, groups),), ((other, more),) = trained.items(), beyond.items()
        self.trained = check_numbers(where, name, groups)
        self.beyond = check_numbers(where, other, more, apart_from=self.trained)
        self.seed = check_count(where, "seed", seed)
        return where

    @abstractmethod
    def draw(self, group: int, bits: np.random.PCG64, count: int) -> Matrix:
        """Returns up to `count` random problems of a group; two problems are the same where their numbers are."""

    @abstractmethod
    def room(self, group: int, held: Matrix | None) -> int:
        """Returns how many problems of a group there are at most, beside those with a key among `held`."""

    @abstractmethod
    def extent(self, group: int) -> int:
        """Returns the tokens of the longest row of a group."""

    @abstractmethod
    def write(self, group: int, problems: Matrix, bits: np.random.PCG64, extent: int) -> Rows:
        """Returns the rows of problems, `extent` tokens wide."""

    def key(self, problems: Matrix) -> Matrix:
        """Returns what must not be shared between splits: the problems, brought to one form where several say the same."""
        return problems

    def arrange(self, needs: np.ndarray, bits: np.random.PCG64) -> np.ndarray:
        """Returns the order of the training rows, given what each needs: mixed, so that any stretch of them is a sample."""
        return shuffled(bits, len(needs))

    def splits(self, folder: Path | None = None, progress: Progress | None = None) -> Splits:
        """Returns the tables; nothing is written."""
        rows, extent = sum(self.counts.values()), max(self.extent(group) for group in (*self.trained, *self.beyond))
        if rows * extent > MOST_TOKENS:
            raise ValueError(
                f"{self.where}: {rows:,} rows of up to {extent:,} tokens; allowed: at most {MOST_TOKENS:,} tokens in all"
            )
        problems = self._problems()
        tables = {name: self._table(problems[name], place) for place, name in enumerate(SPLITS)}
        by_group = dict(problems["test"]) if len(self.trained) > 1 else {}
        for group in self.beyond:
            counts = {"test": min(self.counts["test"], self.room(group, None))}
            by_group[group] = apart(self._named(group), partial(self.draw, group), counts, (self.seed, group))["test"]
        tests = {f"{self.unit}-{group}": self._table({group: by_group[group]}, len(SPLITS) + group) for group in sorted(by_group)}
        return Splits(
            tables["train"],
            tables["valid"],
            {"test": tables["test"], **tests},
            vocab_size=len(self.alphabet),
            eos_id=self.alphabet.eos_id,
            pad_id=self.alphabet.pad_id,
            exact=True,
            in_place=self.in_place,
            tokenizer=self.alphabet.tokenizer(self.reading),
            notes={"example": tables["train"].show(0), "rows": {name: len(table) for name, table in tables.items()}},
        )

    def _problems(self) -> dict[str, dict[int, Matrix]]:
        """Returns the problems of each split, by group; groups share a split evenly, as far as they have problems."""
        rooms = [self.room(group, None) for group in self.trained]
        # where groups are mixed, a small one gives half of its problems to training at most, and a tenth to each of the others
        parts = {"train": 2, "valid": 10, "test": 10} if len(rooms) > 1 else dict.fromkeys(SPLITS, 1)
        wanted = {split: shares(count, [room // parts[split] for room in rooms]) for split, count in self.counts.items()}
        for split, given in wanted.items():
            if sum(given) < self.counts[split]:
                groups = ", ".join(f"{self.unit} {group}" for group in self.trained)
                asked = f"{self.counts[split]:,} rows asked for {split}"
                there = f"{groups} can give it {sum(given):,} of {sum(rooms):,} different ones"
                raise ValueError(f"{self.where}: {asked}; {there}: ask for fewer ({split}: …)")
        result: dict[str, dict[int, Matrix]] = {split: {} for split in self.counts}
        for place, group in enumerate(self.trained):
            counts = {split: wanted[split][place] for split in self.counts}
            draw, room = partial(self.draw, group), partial(self.room, group)
            problems = apart(self._named(group), draw, counts, (self.seed, group), key=self.key, room=room)
            for split, rows in problems.items():
                result[split][group] = rows
        return result

    def _table(self, problems: Mapping[int, Matrix], place: int) -> Table:
        bits = stream(self.seed, 0, place)
        extent = max(self.extent(group) for group in problems)
        parts = [self.write(group, rows, bits, extent) for group, rows in problems.items()]
        needs = np.concatenate([part.needs for part in parts])
        order = self.arrange(needs, bits) if place == SPLITS.index("train") else shuffled(bits, len(needs))
        return stack(parts, order).table(self.alphabet, self.padding)

    def _named(self, group: int) -> str:
        return f"{self.where}: {self.unit} {group}, {self.room(group, None):,} problems in all"
