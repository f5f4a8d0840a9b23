"""What data hands to training and evaluation: batches, sources of them, and the splits of a dataset."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from loopwright.metrics.score import IGNORED
from loopwright.model.forward.span import check_documents

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


class Source(Protocol):
    """Samples that can be asked for by index, in any order, any number of times, always with the same answer."""

    def __len__(self) -> int: ...

    def batch(self, indices: Sequence[int] | Tensor) -> Batch:
        """Returns the samples of these indices as one batch."""
        ...


def made_of(source: Source) -> dict[str, str]:
    """Returns digests of a source's samples (`rows`), and of what these came from where it knows that. A source may have a method
    `made_of` that tells it; of others up to 64 samples, spread over them, are read."""
    told = getattr(source, "made_of", None)
    if told is not None:
        found: dict[str, str] = told()
        return found
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

    def __init__(self, source: Source, rows: int) -> None:
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


def documents_of(source: Source, indices: Sequence[int] | Tensor) -> Tensor | None:
    """Returns the document of each token [B, T] of these samples, numbered through the source. None where each sample stands for
    itself: a source whose samples hold parts of documents, as windows of text do, has a method `documents` that tells it."""
    asked = getattr(source, "documents", None)
    return None if asked is None else asked(indices)


def owners_of(source: Source, indices: Sequence[int] | Tensor, batch: Batch) -> Owners | None:
    """Returns the documents of a batch's targets; None where each sample stands for itself."""
    found = documents_of(source, indices)
    if found is None:
        return None
    asked = batch.labels[:, 1:] != IGNORED
    documents, places = found.unique(return_inverse=True)
    targets = places[:, 1:][asked].bincount(minlength=len(documents))
    return Owners(documents, targets, places)


@dataclass(frozen=True)
class Splits:
    """A dataset: what is trained on, what decides (when to stop, what is best), and what is only measured, by name."""

    train: Source
    valid: Source
    tests: Mapping[str, Source] = field(default_factory=dict)
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
