"""What algorithmic tasks share: rows in groups of one hardness, some trained on, some harder ones only measured.

Rows are drawn by seed, all different, and split so that nothing measured was trained on. They are held in tables, so that a
batch is one gather, on any device.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from loopwright.data.batch import IGNORED, Batch, Progress, Splits, digest_of
from loopwright.schema import check_count, check_numbers, suggest

PAD, EOS = "Ʌ", "§"
PADDINGS = ("masked", "plain")
ANSWERS = ("last", "every")  # what a row is asked: its end, or every token of it, in place


class Alphabet:
    """The symbols of a task, in the order of their ids; `separator` stands between them in text."""

    def __init__(self, symbols: Sequence[str], separator: str = "") -> None:
        self.symbols, self.separator = tuple(symbols), separator
        self._ids = {symbol: i for i, symbol in enumerate(self.symbols)}
        missing = [symbol for symbol in (PAD, EOS) if symbol not in self._ids]
        if missing or not len(self._ids) == len(self.symbols) <= 256:
            what = f"without {missing[0]!r}" if missing else f"{len(self.symbols)}, of which {len(self._ids)} differ"
            raise ValueError(
                f"alphabet: symbols must be at most 256, all different, {PAD!r} (padding) and {EOS!r} (the end) among them "
                f"(got {what})"
            )

    def __len__(self) -> int:
        return len(self.symbols)

    @property
    def pad_id(self) -> int:
        """The id of the padding symbol."""
        return self._ids[PAD]

    @property
    def eos_id(self) -> int:
        """The id of the symbol that ends an answer."""
        return self._ids[EOS]

    def encode(self, text: str) -> list[int]:
        """Returns the ids of a text in these symbols."""
        return self.encode_all(text.split(self.separator) if self.separator else list(text))

    def encode_all(self, words: Sequence[str]) -> list[int]:
        """Returns the ids of symbols."""
        unknown = next((word for word in words if word not in self._ids), None)
        if unknown is not None:
            raise ValueError(f"text: {unknown!r} is no symbol of this task; {suggest(unknown, self.symbols)}")
        return [self._ids[word] for word in words]

    def tokenizer(self, reading: str = "") -> Any:
        """Returns the symbols as a transformers tokenizer with the same ids, so that a trained model can be asked in text.

        `reading` says in words how answers are to be read; it is saved with the tokenizer, as `reading` in its settings.
        """
        from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
        from transformers import PreTrainedTokenizerFast

        inner = Tokenizer(models.WordLevel(dict(self._ids)))  # without a word for the unknown: what is no symbol is refused
        if self.separator:
            inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        else:
            inner.pre_tokenizer, inner.decoder = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated"), decoders.Fuse()
        options = {"reading": reading} if reading else {}
        return PreTrainedTokenizerFast(
            tokenizer_object=inner, pad_token=PAD, eos_token=EOS, clean_up_tokenization_spaces=False, **options
        )

    def decode(self, ids: Sequence[int] | Tensor) -> str:
        """Returns the text of ids; padding is left out."""
        return self.separator.join(self.symbols[int(i)] for i in ids if int(i) != self.pad_id)


@dataclass(frozen=True)
class Table:
    """Rows of ids [N, T] (bytes), padded on the right; the answer of row i, EOS included, is ids[i, starts[i]:lengths[i]].

    `answers` [N, T] stands for ids there where an answer is not what comes next in the row, but said at the tokens it is about.
    `required_depth` [N] counts the operations that an answer needs one after another: the depth of a model that does one a step.
    `padding` says how batches tell their padding: by an attention mask ("masked", right for every model), or by `lengths` alone
    ("plain": a causal model computes the same on real tokens, with the faster kernels that take no mask).
    """

    ids: Tensor
    starts: Tensor
    lengths: Tensor
    required_depth: Tensor
    alphabet: Alphabet
    padding: str = "masked"
    ragged: bool = True  # whether any row is padded at all
    answers: Tensor | None = None

    def __len__(self) -> int:
        return self.ids.shape[0]

    def made_of(self) -> dict[str, str]:
        """Returns a digest of the rows."""
        return {"rows": digest_of(self.ids, self.starts, self.lengths, self.answers)}

    def batch(self, indices: Sequence[int] | Tensor) -> Batch:
        """Returns the rows of these indices as one batch, always as wide as the table."""
        chosen = torch.as_tensor(indices, dtype=torch.long, device=self.ids.device)
        ids = self.ids[chosen].long()
        lengths = self.lengths[chosen]
        place = torch.arange(ids.shape[1], device=ids.device)
        real = place < lengths[:, None]
        answers = ids if self.answers is None else self.answers[chosen].long()
        labels = torch.where(real & (place >= self.starts[chosen][:, None]), answers, IGNORED)
        if not self.ragged:
            return Batch(ids, labels)
        return Batch(ids, labels, attention_mask=real.long() if self.padding == "masked" else None, lengths=lengths)

    def show(self, row: int) -> str:
        """Returns the text of a row."""
        return self.alphabet.decode(self.ids[row])

    def to(self, device: torch.device | str) -> Table:
        """Returns the same rows on a device."""
        held = {name: getattr(self, name) for name in ("ids", "starts", "lengths", "required_depth", "answers")}
        return replace(self, **{name: x.to(device) for name, x in held.items() if x is not None})


@dataclass(frozen=True)
class TaskRows:
    """Rows under construction: ids [N, T] with the answer at [starts, lengths), what each needs, and answers in place."""

    ids: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    required_depth: np.ndarray
    answers: np.ndarray | None = None

    def table(self, alphabet: Alphabet, padding: str) -> Table:
        """Returns the finished table."""
        numbers = (self.starts, self.lengths, self.required_depth)
        starts, lengths, required_depth = (torch.from_numpy(x.astype(np.int64)) for x in numbers)
        ragged = bool((self.lengths < self.ids.shape[1]).any())
        ids, answers = (None if x is None else torch.from_numpy(x.astype(np.uint8)) for x in (self.ids, self.answers))
        assert ids is not None
        return Table(ids, starts, lengths, required_depth, alphabet, padding, ragged, answers)


def stack(parts: Sequence[TaskRows], order: np.ndarray) -> TaskRows:
    """Returns rows of several kinds as one, in the given order, so that any stretch of them is a mixture."""
    named = [name for name in ("ids", "starts", "lengths", "required_depth", "answers") if getattr(parts[0], name) is not None]
    return TaskRows(**{name: np.concatenate([getattr(part, name) for part in parts])[order] for name in named})


Matrix = np.ndarray  # small whole numbers below 256, one row per sample
QUIET_ROUNDS = 40  # rounds of draws in which nothing new came, before a task is called exhausted


def stream(*path: int) -> np.random.PCG64:
    """Returns the random bits that belong to a path of numbers: the same on every platform and for every numpy."""
    return np.random.PCG64(np.random.SeedSequence(path))


def below(bits: np.random.PCG64, high: int, *shape: int) -> Matrix:
    """Returns whole numbers from 0 to high − 1. Raw bits, whose stream numpy never changes; the bias is below 1e-16."""
    return (bits.random_raw(shape) % np.uint64(high)).astype(np.int64)


def shuffled(bits: np.random.PCG64, length: int) -> np.ndarray:
    """Returns a permutation of 0 … length − 1."""
    return np.argsort(bits.random_raw(length), kind="stable")


def disjoint_splits(
    where: str,
    draw: Callable[[np.random.PCG64, int], Matrix],
    counts: Mapping[str, int],
    path: Sequence[int],
    *,
    key: Callable[[Matrix], Matrix] = lambda rows: rows,
    capacity: Callable[[Matrix | None], int | None] = lambda held: None,
) -> dict[str, Matrix]:
    """Returns `counts[name]` different rows for each name, with no `key` in two of them.

    Names draw from streams of their own, in their order: what is measured comes first, so that it is the same whatever the
    number of rows trained on. `capacity` says how many rows there are beside those of `held` keys, where it is known.
    """
    result: dict[str, Matrix] = {}
    held: Matrix | None = None
    for place, (name, count) in enumerate(counts.items()):
        beside = f" beside {' and '.join(result)}" if result else ""
        left = capacity(held)
        if left is not None and count > left:
            raise ValueError(f"{where}: {count:,} rows asked for {name}; there are {left:,} different ones{beside}")
        rows = _distinct(draw, stream(*path, place), count, held, key)
        if len(rows) < count:
            raise ValueError(f"{where}: {count:,} rows asked for {name}; only {len(rows):,} different ones were found{beside}")
        result[name] = rows
        if count:
            held = key(rows) if held is None else np.concatenate([held, key(rows)])
    return result


def _distinct(
    draw: Callable[[np.random.PCG64, int], Matrix], bits: np.random.PCG64, count: int, held: Matrix | None, key: Callable
) -> Matrix:
    values, quiet = draw(bits, 0), 0
    size = max(count + (0 if held is None else len(held)), 256)  # where few rows are left, a round still comes by all of them
    while len(values) < count and quiet < QUIET_ROUNDS:
        rows = draw(bits, size)
        if held is not None:
            rows = rows[~np.isin(_words(key(rows)), _words(held))]
        together = np.concatenate([values, rows])
        first = np.sort(np.unique(_words(together), return_index=True)[1])
        quiet = quiet + 1 if len(first) == len(values) else 0
        values = together[first]
    return values[:count]


def _words(rows: Matrix) -> np.ndarray:
    """One comparable value per row: equal where the rows are (all are of one width, so cut-off zeros tell nothing)."""
    return np.ascontiguousarray(rows, dtype=np.uint8).view(f"S{max(rows.shape[1], 1)}")[:, 0]


def shares(total: int, caps: Sequence[int]) -> list[int]:
    """Returns how `total` rows are divided over groups that can give `caps` at most: evenly, the large ones standing in for
    the small. Where all of them are too small the sum is less than `total`."""
    left, counts = total, [0] * len(caps)
    for done, group in enumerate(sorted(range(len(caps)), key=caps.__getitem__)):
        counts[group] = min(caps[group], left // (len(caps) - done))
        left -= counts[group]
    return counts


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

    def configure(
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
    def capacity(self, group: int, held: Matrix | None) -> int:
        """Returns how many problems of a group there are at most, beside those with a key among `held`."""

    @abstractmethod
    def extent(self, group: int) -> int:
        """Returns the tokens of the longest row of a group."""

    @abstractmethod
    def write(self, group: int, problems: Matrix, bits: np.random.PCG64, extent: int) -> TaskRows:
        """Returns the rows of problems, `extent` tokens wide."""

    def key(self, problems: Matrix) -> Matrix:
        """Returns what must not be shared between splits: the problems, brought to one form where several say the same."""
        return problems

    def arrange(self, required_depth: np.ndarray, bits: np.random.PCG64) -> np.ndarray:
        """Returns the order of the training rows, given what each needs: mixed, so that any stretch of them is a sample."""
        return shuffled(bits, len(required_depth))

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
            counts = {"test": min(self.counts["test"], self.capacity(group, None))}
            by_group[group] = disjoint_splits(self._named(group), partial(self.draw, group), counts, (self.seed, group))["test"]
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
        capacities = [self.capacity(group, None) for group in self.trained]
        # where groups are mixed, a small one gives half of its problems to training at most, and a tenth to each of the others
        parts = {"train": 2, "valid": 10, "test": 10} if len(capacities) > 1 else dict.fromkeys(SPLITS, 1)
        wanted = {split: shares(count, [c // parts[split] for c in capacities]) for split, count in self.counts.items()}
        for split, given in wanted.items():
            if sum(given) < self.counts[split]:
                groups = ", ".join(f"{self.unit} {group}" for group in self.trained)
                asked = f"{self.counts[split]:,} rows asked for {split}"
                offer = f"{groups} can give it {sum(given):,} of {sum(capacities):,} different ones"
                raise ValueError(f"{self.where}: {asked}; {offer}: ask for fewer ({split}: …)")
        result: dict[str, dict[int, Matrix]] = {split: {} for split in self.counts}
        for place, group in enumerate(self.trained):
            counts = {split: wanted[split][place] for split in self.counts}
            draw, capacity = partial(self.draw, group), partial(self.capacity, group)
            problems = disjoint_splits(self._named(group), draw, counts, (self.seed, group), key=self.key, capacity=capacity)
            for split, rows in problems.items():
                result[split][group] = rows
        return result

    def _table(self, problems: Mapping[int, Matrix], place: int) -> Table:
        bits = stream(self.seed, 0, place)
        extent = max(self.extent(group) for group in problems)
        parts = [self.write(group, rows, bits, extent) for group, rows in problems.items()]
        required_depth = np.concatenate([part.required_depth for part in parts])
        order = self.arrange(required_depth, bits) if place == SPLITS.index("train") else shuffled(bits, len(required_depth))
        return stack(parts, order).table(self.alphabet, self.padding)

    def _named(self, group: int) -> str:
        return f"{self.where}: {self.unit} {group}, {self.capacity(group, None):,} problems in all"
