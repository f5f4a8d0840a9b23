"""What data hands to training and evaluation: batches, sources of them (rows of token ids in memory among them), the splits of a
dataset, and the order of samples.

The order is a pure function of the place, so that resuming in the middle of an epoch takes one whole number.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from loopwright.metrics.score import IGNORED
from loopwright.model.span import check_documents
from loopwright.schema import check_whole

Progress = Callable[[str, int, int | None], None]  # what is being done, how much of it is, and of how much, where that is known


@dataclass(frozen=True)
class Batch:
    """Rows of tokens. `labels` are the input ids where a token is to be predicted, else −100; the model shifts them, once.
    Where answers stand in place (`Splits.in_place`) they are the answer to the token before.

    `attention_mask` is None where no row is padded, `segment_ids` where each row is one document. `rows` holds the place of
    each row in the global order of samples, neighbours in it, the same whatever the number of processes. `lengths` counts the
    real tokens of rows that are padded on the right without a mask: a causal model needs none there, but what averages over
    tokens must know. `asked` is made by `ready`. `seeds` decide how each row's state starts where it is drawn [B]; None: as the
    model says.
    """

    input_ids: Tensor
    labels: Tensor
    attention_mask: Tensor | None = None
    segment_ids: Tensor | None = None
    rows: Tensor | None = None
    lengths: Tensor | None = None
    asked: Tensor | None = None
    seeds: Tensor | None = None

    def __len__(self) -> int:
        return self.input_ids.shape[0]

    @property
    def targets(self) -> int:
        """The number of tokens that are to be predicted: what losses are averaged over."""
        return int((self.labels[:, 1:] != IGNORED).sum())

    @property
    def valid(self) -> Tensor:
        """Which tokens are real, not padding [B, T]."""
        if self.attention_mask is not None:
            return self.attention_mask.bool()
        if self.lengths is not None:
            return torch.arange(self.input_ids.shape[1], device=self.input_ids.device) < self.lengths[:, None]
        return torch.ones_like(self.input_ids, dtype=torch.bool)

    @property
    def padded(self) -> bool:
        """Whether rows may hold padding."""
        return self.attention_mask is not None or self.lengths is not None

    def target_places(self) -> Tensor:
        """Returns the places of the tokens that are to be predicted, in the rows laid end to end [N]; a first token never is."""
        wanted = self.labels != IGNORED
        wanted[:, 0] = False
        return wanted.flatten().nonzero()[:, 0]

    def ready(self, *, coarse: bool = False) -> Batch:
        """Returns the batch with `asked`: the places of the targets in the rows laid end to end, filled up with zeros (the
        first token is never asked for) to a multiple of the rows. Where rows hold documents, `coarse` fills up to all tokens if
        three quarters or more are targets, as in text, else to a multiple of an eighth, so that most batches have one shape.

        Found once, before the batch goes to a device: there the number of targets would have to be waited for, and a number
        that changes from batch to batch would be another shape each time. For the same reason document ids are checked here.
        """
        if self.segment_ids is not None:
            check_documents(self.segment_ids)
        places = self.target_places()
        unit, tokens = len(self), self.input_ids.numel()
        if coarse and self.segment_ids is not None:
            unit = tokens if 4 * places.numel() >= 3 * tokens else -(-tokens // 8)
        missing = -places.numel() % unit
        return replace(self, asked=torch.nn.functional.pad(places, (0, missing)))

    def to(self, device: torch.device | str) -> Batch:
        """Returns the same rows on a device."""
        held = {f.name: x for f in fields(self) if (x := getattr(self, f.name)) is not None}
        if torch.device(device).type == "cuda":  # from memory that may be paged out a copy waits for the work before it
            held = {name: x if x.is_cuda else x.pin_memory() for name, x in held.items()}
        return replace(self, **{name: x.to(device, non_blocking=True) for name, x in held.items()})


class BatchSource(Protocol):
    """Samples that can be asked for by index, in any order, any number of times, always with the same answer."""

    def __len__(self) -> int: ...

    def batch(self, indices: Sequence[int] | Tensor) -> Batch:
        """Returns the samples of these indices as one batch."""
        ...


def made_of(source: BatchSource) -> dict[str, str]:
    """Returns digests of a source's samples (`rows`), and of what these came from where it knows that. A source may have a method
    `made_of` that tells it; of others up to 64 samples, spread over them, are read."""
    describe = getattr(source, "made_of", None)
    if describe is not None:
        digests: dict[str, str] = describe()
        return digests
    whole = hashlib.sha256(f"{len(source)}".encode())
    for place in torch.linspace(0, len(source) - 1, min(len(source), 64), dtype=torch.float64).long().unique().tolist():
        batch = source.batch([place])
        for x in (batch.input_ids, batch.labels):
            whole.update(f"{x.tolist()}".encode())
    return {"rows": whole.hexdigest()[:12]}


def digest_of(*tensors: Tensor | None) -> str:
    """Returns a digest of tensors: their shapes and values."""
    whole = hashlib.sha256()
    for x in tensors:
        whole.update(b"none" if x is None else f"{x.dtype} {list(x.shape)}".encode() + x.cpu().contiguous().numpy().tobytes())
    return whole.hexdigest()[:12]


class FirstRows:
    """The first rows of a source."""

    def __init__(self, source: BatchSource, rows: int) -> None:
        self.source, self.rows = source, min(rows, len(source))

    def __len__(self) -> int:
        return self.rows

    def batch(self, indices: Sequence[int] | Tensor) -> Batch:
        """Returns the samples of these indices as one batch."""
        return self.source.batch(indices)

    def documents(self, indices: Sequence[int] | Tensor) -> Tensor | None:
        """Returns the document of each token [B, T], where the source tells it."""
        return documents_of(self.source, indices)


@dataclass(frozen=True)
class Owners:
    """The documents that the targets of a batch belong to: their numbers [U], how many targets each has there [U], and which of
    them each token belongs to [B, T]."""

    documents: Tensor
    targets: Tensor
    places: Tensor


def documents_of(source: BatchSource, indices: Sequence[int] | Tensor) -> Tensor | None:
    """Returns the document of each token [B, T] of these samples, numbered through the source. None where each sample stands for
    itself: a source whose samples hold parts of documents, as windows of text do, has a method `documents` that tells it."""
    asked = getattr(source, "documents", None)
    return None if asked is None else asked(indices)


def owners_of(source: BatchSource, indices: Sequence[int] | Tensor, batch: Batch) -> Owners | None:
    """Returns the documents of a batch's targets; None where each sample stands for itself."""
    document_ids = documents_of(source, indices)
    if document_ids is None:
        return None
    asked = batch.labels[:, 1:] != IGNORED
    documents, places = document_ids.unique(return_inverse=True)
    targets = places[:, 1:][asked].bincount(minlength=len(documents))
    return Owners(documents, targets, places)


@dataclass(frozen=True)
class Splits:
    """A dataset: what is trained on, what decides (when to stop, what is best), and what is only measured, by name."""

    train: BatchSource
    valid: BatchSource
    tests: Mapping[str, BatchSource] = field(default_factory=dict)
    vocab_size: int = 0
    eos_id: int | None = None
    pad_id: int | None = None
    exact: bool = False  # whether an answer is right or wrong as a whole: tasks and question/answer pairs, not running text
    in_place: bool = False  # whether answers stand at the tokens they are about, so that there is nothing to decode
    alike: bool = False  # whether all batches of as many rows have one shape: windows of text
    tokenizer: Any = None  # transformers' own, of the text or of the task's symbols: what a checkpoint is saved with
    notes: Mapping[str, Any] = field(default_factory=dict)  # what a report may tell of the data: counts, what was left out

    def __post_init__(self) -> None:
        if self.tokenizer is not None and not callable(getattr(self.tokenizer, "save_pretrained", None)):  # asked for at every save
            kind = type(self.tokenizer).__name__
            raise TypeError(f"splits: tokenizer must be transformers' own, or Alphabet(symbols).tokenizer() (got {kind})")


Ids = Sequence[int] | Tensor


class TokenRows:
    """Rows of token ids, each of its own length. A batch is padded on the right, with a mask where its rows differ in length.

    `labels` holds, for each row, the id where a token is to be predicted and -100 elsewhere, in the places of the row itself (the
    model shifts them). Left out, every token but the first is predicted.
    """

    def __init__(self, rows: Sequence[Ids] | Tensor, labels: Sequence[Ids] | Tensor | None = None) -> None:
        self.rows = [_ids("rows", place, row) for place, row in enumerate(rows)]
        if not self.rows:
            raise ValueError("rows: there are none; give at least one row of token ids")
        answers = self.rows if labels is None else [_ids("labels", place, row) for place, row in enumerate(labels)]
        if [len(row) for row in answers] != [len(row) for row in self.rows]:
            raise ValueError("labels: must have the length of its row in every row (-100 where nothing is predicted)")
        self.labels = answers
        short = next((place for place, row in enumerate(self.rows) if len(row) < 2), None)
        if short is not None:
            raise ValueError(f"rows: row {short} has {len(self.rows[short])} tokens; the model predicts from 2 on")
        least = min(int(row.min()) for row in self.rows)
        if least < 0:
            raise ValueError(f"rows: ids must be >= 0 (got {least})")
        odd = next((int(row[(row < 0) & (row != IGNORED)][0]) for row in answers if ((row < 0) & (row != IGNORED)).any()), None)
        if odd is not None:
            raise ValueError(f"labels: must be ids >= 0, or {IGNORED} where nothing is predicted (got {odd})")
        if labels is not None and all(_shifted(row, answer) for row, answer in zip(self.rows, answers, strict=True)):
            message = "labels: each is the token after its place, and the model shifts labels once more"
            warnings.warn(f"{message}; give the ids themselves", stacklevel=2)

    def __repr__(self) -> str:
        return f"TokenRows({len(self):,} rows, {sum(map(len, self.rows)):,} tokens)"

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""
        return 1 + max(int(row.max()) for row in (*self.rows, *self.labels))

    def __len__(self) -> int:
        return len(self.rows)

    def made_of(self) -> dict[str, str]:
        """Returns a digest of the rows."""
        return {"rows": digest_of(*self.rows, *self.labels)}

    def batch(self, indices: Sequence[int] | Tensor) -> Batch:
        """Returns the rows of these indices as one batch."""
        chosen = [int(i) for i in indices]
        ids, labels = [self.rows[i] for i in chosen], [self.labels[i] for i in chosen]
        lengths = torch.tensor([len(row) for row in ids])
        mask = (torch.arange(int(lengths.max())) < lengths[:, None]).long()
        return Batch(
            torch.nn.utils.rnn.pad_sequence(ids, batch_first=True),
            torch.nn.utils.rnn.pad_sequence(labels, batch_first=True, padding_value=IGNORED),
            attention_mask=None if bool(mask.all()) else mask,
        )


def splits(
    train: BatchSource | Sequence[Ids] | Tensor,
    valid: BatchSource | Sequence[Ids] | Tensor,
    *,
    tests: Mapping[str, BatchSource | Sequence[Ids] | Tensor] | None = None,
    tokenizer: Any = None,
    exact: bool = False,
    eos_id: int | None = None,
    pad_id: int | None = None,
) -> Splits:
    """Makes a data set of your own for `lw.train` and `lw.evaluate`.

    Args:
        train, valid, tests: rows of token ids, or objects with `__len__` and `batch(indices)` (`lw.TokenRows` is one).
        tokenizer: transformers' own, or `Alphabet(symbols).tokenizer()`; saved with every checkpoint, so that the model takes
            text as a prompt.
        exact: whether an answer is right or wrong as a whole; if so, exact match is measured too.
        eos_id, pad_id: needed to decode exact answers; default: the tokenizer's.
    """
    if tests is not None and not isinstance(tests, Mapping):
        raise TypeError(f"tests must be named rows, such as {{'test': rows}} (got {type(tests).__name__})")
    taken = [name for name in tests or {} if name in ("train", "valid")]
    if taken:
        raise ValueError(f"tests: {taken[0]!r} is the name of another split; give the test another name")
    parts = [_source(train), _source(valid)]
    measured = {name: _source(rows) for name, rows in (tests or {}).items()}
    sizes = [part.vocab_size for part in (*parts, *measured.values()) if isinstance(part, TokenRows)]
    return Splits(
        parts[0], parts[1], measured,
        vocab_size=max(sizes, default=0), exact=exact, tokenizer=tokenizer,
        eos_id=eos_id if eos_id is not None else getattr(tokenizer, "eos_token_id", None),
        pad_id=pad_id if pad_id is not None else getattr(tokenizer, "pad_token_id", None),
    )  # fmt: skip


def _source(rows: Any) -> BatchSource:
    return rows if callable(getattr(rows, "batch", None)) else TokenRows(rows)


def _shifted(row: Tensor, labels: Tensor) -> bool:
    """Whether labels are a row's ids, moved by one place to the left, as other code wants them."""
    known = labels[:-1] != IGNORED
    labels, after, here = labels[:-1][known], row[1:][known], row[:-1][known]
    return len(labels) > 0 and torch.equal(labels, after) and not torch.equal(labels, here)


def _ids(what: str, place: int, row: Ids) -> Tensor:
    try:
        ids = torch.as_tensor(row)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{what}: row {place} holds no token ids ({str(error).splitlines()[0]})") from None
    if ids.shape == (0,):
        raise ValueError(f"{what}: row {place} is empty; give at least two token ids")
    if ids.ndim != 1 or ids.is_floating_point() or ids.dtype == torch.bool:
        raise TypeError(f"{what}: row {place} must be one list of whole numbers (got {ids.dtype} of shape {tuple(ids.shape)})")
    return ids.long()


class Order:
    """Says which sample stands at place k = 0, 1, 2 … of an endless order in which every epoch holds each sample once.

    Epoch k // length has a permutation of its own, drawn from (seed, epoch) alone: nobody has to remember what came before.
    Without shuffling the epochs are all 0, 1, … length − 1. With `repeat` every `batch` samples come that many times in a row,
    and an epoch takes as many times longer: what a loader does whose workers all read the same stream.
    """

    def __init__(self, length: int, seed: int = 0, shuffled: bool = True, *, repeat: int = 1, batch: int = 1) -> None:
        check_whole("order: samples", length, 1)
        check_whole("order: seed", seed, 0)
        if repeat < 1 or batch < 1:
            raise ValueError(f"order: batches of {batch} repeated {repeat} times; allowed: 1 or more of each")
        self.length, self.seed, self.shuffled = length, seed, shuffled
        self.repeat, self.batch = repeat, batch
        self._held: dict[int, Tensor] = {}

    def indices(self, start: int, count: int) -> Tensor:
        """Returns the samples at places start … start + count − 1, over the borders of epochs [count]."""
        if start < 0 or count < 0:
            raise ValueError(f"order: {count} samples from place {start}; allowed: 0 or more of each")
        if self.repeat == 1:
            return self._once(start, count)
        batches = _stretches(start, count, self.batch)
        return _joined(self._once(number // self.repeat * self.batch + first, taken) for number, first, taken in batches)

    def _once(self, start: int, count: int) -> Tensor:
        """The samples at these places where nothing is repeated."""
        epochs = _stretches(start, count, self.length)
        return _joined(self._epoch(epoch)[first : first + taken] for epoch, first, taken in epochs)

    def share(self, start: int, count: int, rank: int, world: int) -> tuple[Tensor, Tensor]:
        """Returns what process `rank` of `world` takes of the `count` samples from `start`: the samples and their places.

        Each process takes one run of neighbours; together they take each place once.
        """
        if not 0 <= rank < world:
            raise ValueError(f"order: process {rank} of {world}; allowed: 0 to {world - 1}")
        if count % world:
            raise ValueError(f"order: a batch of {count} samples over {world} processes; allowed: a multiple of {world}")
        size = count // world
        first = start + rank * size
        return self.indices(first, size), torch.arange(first, first + size)

    def _epoch(self, epoch: int) -> Tensor:
        if not self.shuffled:
            epoch = 0
        if epoch not in self._held:
            while len(self._held) > 1:  # a batch lies in two epochs at most, unless it is longer than one
                self._held.pop(next(iter(self._held)))
            self._held[epoch] = _permutation(self.length, self.seed, epoch) if self.shuffled else torch.arange(self.length)
        return self._held[epoch]


def _stretches(start: int, count: int, size: int) -> Iterator[tuple[int, int, int]]:
    """Yields (number, first place in it, places) of each piece of `size` places that the places from `start` lie in."""
    place, end = start, start + count
    while place < end:
        number, first = divmod(place, size)
        taken = min(end - place, size - first)
        yield number, first, taken
        place += taken


def _joined(parts: Iterable[Tensor]) -> Tensor:
    return torch.cat([torch.empty(0, dtype=torch.long), *parts])


def _permutation(length: int, seed: int, epoch: int) -> Tensor:
    # from the raw stream, which numpy never changes; its own `permutation` may differ from one release to the next
    draws = np.random.PCG64(np.random.SeedSequence([seed, epoch])).random_raw(length)
    return torch.from_numpy(np.argsort(draws, kind="stable"))
