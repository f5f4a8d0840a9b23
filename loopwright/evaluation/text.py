"""Held-out loss of running text at stated contexts and depths, as a likelihood or marked as none.

Files are cut into passages of at most `context` tokens that are scored alone. No passage holds two documents, no token is in two
passages, and what ends a document is not scored: losses count text alone, so that they can be told per byte. A passage begins
with what the tokenizer puts before any text (a BOS, or nothing); the first token of one without such an opening is read but not
scored, since nothing stands before it.

The loss is the mean over scored tokens, Σ −log p / N: a passage weighs what its tokens weigh. Intervals are over documents (over
passages, where the text is one document alone): tokens of one text are not independent of each other. A model whose answers
depend on later tokens is refused, since its one-pass loss is no likelihood; where it is scored all the same the report says so,
and `honest` gives the loss that it has when each token is predicted from its prefix alone.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor

from loopwright.checking.probes import Verdict
from loopwright.data.batch import IGNORED, Batch
from loopwright.data.records import Files, text_field
from loopwright.data.text import GROUP
from loopwright.data.tokenizer import Tokenizer
from loopwright.evaluation.by_depth import evaluating
from loopwright.evaluation.likelihood import NOT_A_LIKELIHOOD, need_likelihood
from loopwright.evaluation.report import ByDepth, Column, Progress, column, columns_of, ends, number, number_table, over
from loopwright.generation.readings import check_depths, readings
from loopwright.metrics.intervals import mean_interval
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.schema import check_whole

if TYPE_CHECKING:
    from rich.table import Table


CONTEXT = 512  # tokens of a passage, where nothing is said and the model has as many positions
# logits of one pass, beside which the loss needs about two more of their size
LOGITS_AT_ONCE = {"cpu": 2**27, "cuda": 2**30}


@dataclass(frozen=True)
class Passage:
    """One passage: its tokens with their opening, the place of the first that is scored, the bytes of text that the scored ones
    stand for, and the document it is of, counted from 0."""

    ids: tuple[int, ...]
    first: int
    bytes: int
    document: int

    @property
    def targets(self) -> int:
        """The number of tokens that are scored."""
        return len(self.ids) - self.first


@dataclass(frozen=True)
class Passages:
    """The passages of one text in the order of its documents, and whose ids they are."""

    name: str
    context: int
    rows: tuple[Passage, ...]
    vocab_size: int

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def fingerprint(self) -> str:
        """The sha256 of the passages: two reports with the same one scored the same tokens."""
        digest = hashlib.sha256()
        for row in self.rows:
            digest.update(f"{row.document} {row.first} {row.bytes} {row.ids}\n".encode())
        return digest.hexdigest()

    def check_fit(self, model: LoopedForCausalLM) -> None:
        """Raises a ValueError where the ids go beyond a model's vocabulary."""
        if self.vocab_size > model.config.vocab_size:
            raise ValueError(
                f"{self.name}: its ids go up to {self.vocab_size - 1}, the model has {model.config.vocab_size} tokens; "
                "allowed: the model's own tokenizer"
            )

    def drawn(self, count: int) -> Passages:
        """Returns so many passages of all the documents, drawn evenly and always alike, in order; all where they are fewer."""
        check_whole("rows", count, 1)
        chosen = torch.randperm(len(self), generator=torch.Generator().manual_seed(0))[:count].sort().values
        return replace(self, rows=tuple(self.rows[place] for place in chosen.tolist()))

    def targets(self) -> Tensor:
        """Returns how many tokens of each passage are scored [passages]."""
        return torch.tensor([row.targets for row in self.rows])

    def by_length(self) -> list[int]:
        """Returns the places of the passages, the longest first: neighbours need little padding."""
        return sorted(range(len(self.rows)), key=lambda place: -len(self.rows[place].ids))

    def batch(self, places: Sequence[int]) -> Batch:
        """Returns the passages at these places, padded on the right, with a mask, where they differ in length."""
        rows = [self.rows[place] for place in places]
        return padded_batch([row.ids for row in rows], [range(row.first, len(row.ids)) for row in rows])


def padded_batch(ids: Sequence[Sequence[int]], scored: Sequence[Sequence[int]]) -> Batch:
    """Returns rows of ids of which the places `scored` are predicted, padded on the right and masked where lengths differ."""
    width = max(map(len, ids))
    tokens = torch.zeros(len(ids), width, dtype=torch.long)
    labels, mask = torch.full_like(tokens, IGNORED), torch.zeros_like(tokens)
    for row, (own, places) in enumerate(zip(ids, scored, strict=True)):
        tokens[row, : len(own)] = torch.tensor(own)
        mask[row, : len(own)] = 1
        labels[row, list(places)] = tokens[row, list(places)]
    return Batch(tokens, labels, attention_mask=None if bool(mask.all()) else mask)


def passage_length(room: int, context: int | None) -> int:
    """Returns the tokens of a passage for a model with `room` positions: as many as are asked for, or CONTEXT."""
    if context is not None and not 2 <= context <= room:
        raise ValueError(f"context must be from 2 to {room}, the positions of the model (got {context})")
    return min(CONTEXT, room) if context is None else context


def read_passages(
    name: str,
    files: str | Path | Sequence[str],
    tokenizer: Tokenizer,
    context: int,
    *,
    field: str = "text",
    most: int | None = None,
) -> Passages:
    """Returns the first `most` passages of files (JSON lines or plain text, gzipped or not; patterns allowed)."""
    check_whole("context", context, 2 + len(tokenizer.opening))
    if most is not None:
        check_whole("rows", most, 1)
    passages: list[Passage] = []
    records = iter(Files(str(files) if isinstance(files, Path) else files, field=field))
    document = 0
    while (most is None or len(passages) < most) and (group := list(islice(records, GROUP))):
        texts = [text for record in group if (text := text_field(record, field)) is not None]
        for ids, word_ends in tokenizer.encode_with_ends(texts) if texts else []:
            passages += _cut(ids, word_ends, tokenizer.opening, context, document)
            document += 1
    if not passages:
        raise ValueError(f"{name}: {files} holds no text of two tokens or more")
    return Passages(name, context, tuple(passages[:most]), tokenizer.vocab_size)


def _cut(ids: Sequence[int], word_ends: Sequence[int], opening: Sequence[int], context: int, document: int) -> list[Passage]:
    """The passages of one document. Bytes run from where the token before the first scored one ends: some tokenizers do not count
    the blank before a word into its beginning, but all know where a word ends (blanks alone may count to the next passage)."""
    size, passages = context - len(opening), []
    for start in range(0, len(ids), size):
        piece = ids[start : start + size]
        unscored = 0 if opening else 1
        if len(piece) <= unscored:
            continue
        place = start + unscored
        begin = 0 if place == 0 else word_ends[place - 1]
        count = word_ends[start + len(piece) - 1] - begin
        passages.append(Passage((*opening, *piece), len(opening) + unscored, count, document))
    return passages


@dataclass(frozen=True)
class Honest:
    """A sample of scored tokens, each predicted from its prefix alone, beside the same tokens in the one pass (`forced`).

    `gain` is what the one pass owes to seeing the future: honest − forced, 0 up to rounding for a causal model.
    """

    positions: int
    loss: Column
    loss_low: Column
    loss_high: Column
    forced: Column
    gain: Column
    gain_low: Column
    gain_high: Column


@dataclass(frozen=True)
class HeldOut(ByDepth):
    """One text at every depth, a column per measure, intervals at 95 %. `losses` are summed per depth and passage, and
    `document_of`, `targets_of` say what each passage is, so that two models can be compared passage by passage. `source` is where
    the weights stood ("" where nobody said), `dtype` what they were in, `seed` that of every draw."""

    what: ClassVar[str] = "a report of held-out loss"

    text: str
    context: int
    unit: str
    documents: int
    passages: int
    targets: int
    bytes: int
    fingerprint: str
    likelihood: bool
    causality: str
    depth: tuple[int, ...]
    loss: Column
    loss_low: Column
    loss_high: Column
    perplexity: Column
    bits_per_byte: Column
    document_of: tuple[int, ...]
    targets_of: tuple[int, ...]
    losses: tuple[Column, ...]
    honest: Honest | None = None
    source: str = ""
    dtype: str = ""
    seed: int = 0

    def __repr__(self) -> str:
        """What was measured: the losses of all passages would fill a notebook, and `table` shows the rest."""
        losses = ", ".join(f"{number(loss)} at depth {depth}" for depth, loss in zip(self.depth, self.loss, strict=True))
        return f"HeldOut({self.text!r}: {self.passages:,} passages, {self.targets:,} tokens; loss {losses})"

    @property
    def name(self) -> str:
        """The text."""
        return self.text

    @property
    def note(self) -> str:
        """What must be said beside every number: nothing where it is a likelihood."""
        return "" if self.likelihood else NOT_A_LIKELIHOOD

    def at(self, depth: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Returns summed loss, targets and unit of each passage at a depth (the last where none is given)."""
        if depth is not None and depth not in self.depth:
            raise ValueError(f"{self.text}: depth {depth} was not measured; allowed: {', '.join(map(str, self.depth))}")
        row = self.losses[-1 if depth is None else self.depth.index(depth)]
        values = torch.tensor([math.nan if x is None else x for x in row], dtype=torch.float64)
        targets = torch.tensor(self.targets_of)
        return values, targets, units_of(self.document_of)

    def written(self) -> dict[str, Any]:
        """Returns what is written: what must be said of the numbers comes first."""
        return {"note": self.note, **super().written()}

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Self:
        """Returns the report that plain data describes."""
        honest = data["honest"] and Honest(**columns_of(Honest, data["honest"]))
        return cls(**columns_of(cls, data) | {"honest": honest})

    def table(self, width: int | None = None) -> Table:
        """Returns the numbers as a rich table for a window of this width, marked where they are no likelihood."""
        mark = "" if self.likelihood else f" ({NOT_A_LIKELIHOOD})"
        more = ["loss, prefix by prefix", "gain"] if self.honest else []
        rows = []
        for i, depth in enumerate(self.depth):
            row = [str(depth), number(self.loss[i]) + ends(self.loss_low[i], self.loss_high[i], " to ")]
            row += [number(self.perplexity[i]), number(self.bits_per_byte[i])]
            if self.honest is not None:
                h = self.honest
                row += [
                    number(h.loss[i]) + ends(h.loss_low[i], h.loss_high[i], " to "),
                    number(h.gain[i]) + ends(h.gain_low[i], h.gain_high[i], " to "),
                ]
            rows.append(row)
        table = number_table(["depth", f"loss{mark}", "perplexity", "bits per byte", *more], rows, width)
        table.title = (
            f"{self.text}: {self.targets:,} tokens of {self.documents:,} documents in {self.passages:,} passages of up to "
            f"{self.context:,}; {over(self.documents if self.unit == 'document' else self.passages, self.unit)}"
        )
        lines = [] if self.likelihood else [f"{NOT_A_LIKELIHOOD}; causality: {self.causality}"]
        if self.honest is not None:
            lines.append(
                f"prefix by prefix: {self.honest.positions:,} tokens; gain: the same tokens in one pass are lower by so much"
            )
        table.caption = "\n".join(lines)
        table.caption_style = "none" if self.likelihood else "bold red"
        return table


def held_out(
    model: LoopedForCausalLM,
    passages: Passages,
    *,
    depths: Iterable[int] | None = None,
    causality: Verdict | None = None,
    marked: bool = False,
    honest: int = 0,
    batch_size: int | None = None,
    source: str = "",
    progress: Progress | None = None,
) -> HeldOut:
    """Returns the report of a text at every depth, from one pass over its passages; the model's mode comes back as it was.

    Args:
        causality: what `need_likelihood` found, where it has been asked already; else it is asked here.
        marked: score a model that is not causal too, its report marked.
        honest: how many tokens to score from their prefixes alone as well.
        batch_size: passages of a pass; left out: as many as the logits leave room for.
        source: where the model's weights stand, for the report to say.
    """
    verdict = need_likelihood(model, marked=marked or honest > 0, known=causality)
    passages.check_fit(model)
    wanted = check_depths(model.config, depths)
    size = passages_of_a_pass(model, passages.context) if batch_size is None else batch_size
    table = _scored(model, passages.batch, passages.by_length(), wanted, size, progress)
    documents = tuple(row.document for row in passages.rows)
    targets, total_bytes = passages.targets(), sum(row.bytes for row in passages.rows)
    loss = table.sum(1) / targets.sum()
    low, high = mean_interval(table, targets, units_of(documents))
    sample = _honest(model, passages, wanted, honest, size) if honest else None
    return HeldOut(
        passages.name, passages.context, unit_of(documents), len(set(documents)), len(passages), int(targets.sum()), total_bytes,
        passages.fingerprint, verdict.passed is True, verdict.detail, tuple(wanted),
        column(loss), column(low), column(high), column(loss.exp()), column(table.sum(1) / (math.log(2) * total_bytes)),
        documents, tuple(targets.tolist()), tuple(column(row, digits=9) for row in table), sample,
        source, str(model.dtype).removeprefix("torch."),
    )  # fmt: skip


def unit_of(documents: Sequence[int]) -> str:
    """Returns what intervals are over, by the document of each passage: documents, or of one alone its passages."""
    return "document" if len(set(documents)) > 1 else "passage"


def units_of(documents: Sequence[int]) -> Tensor:
    """Returns what each passage is of that: its document, or itself."""
    return torch.tensor(documents) if unit_of(documents) == "document" else torch.arange(len(documents))


def passages_of_a_pass(model: LoopedForCausalLM, context: int) -> int:
    """Returns how many passages of a context go through a model at once: as many as the logits leave room for."""
    room = LOGITS_AT_ONCE.get(model.device.type, LOGITS_AT_ONCE["cpu"])
    return max(1, room // (context * model.config.vocab_size))


def _scored(
    model: LoopedForCausalLM,
    batch_of: Callable[[Sequence[int]], Batch],
    order: Sequence[int],
    depths: list[int],
    size: int,
    progress: Progress | None = None,
) -> Tensor:
    """Returns the summed loss of each row at each depth [depths, rows], all depths of a batch from one pass."""
    check_whole("batch", size, 1)
    losses = torch.zeros(len(depths), len(order), dtype=torch.float64)
    starts = range(0, len(order), size)
    with evaluating(model):
        for done, start in enumerate(starts, start=1):
            places = list(order[start : start + size])
            batch = batch_of(places).to(model.device)
            losses[:, places] = torch.stack([reading.loss for reading in readings(model, batch, depths)]).cpu()
            if progress is not None:
                progress(done, len(starts))
    return losses


def _honest(model: LoopedForCausalLM, passages: Passages, depths: list[int], count: int, size: int) -> Honest:
    """Scores a sample of tokens twice: from the prefix alone, and in the whole passage."""
    spots = _sample(passages, count)
    order = sorted(range(len(spots)), key=lambda i: -spots[i][1])

    def prefixes(places: Sequence[int]) -> Batch:
        return prefix_batch([passages.rows[spots[i][0]].ids[: spots[i][1] + 1] for i in places])

    def whole(places: Sequence[int]) -> Batch:
        return padded_batch([passages.rows[spots[i][0]].ids for i in places], [[spots[i][1]] for i in places])

    alone, forced = (_scored(model, make, order, depths, size) for make in (prefixes, whole))
    whose = units_of([row.document for row in passages.rows])
    units = whose[[row for row, _ in spots]]
    ones = torch.ones(len(spots), dtype=torch.long)
    low, high = mean_interval(alone, ones, units)
    gain_low, gain_high = mean_interval(alone - forced, ones, units)
    columns = (alone.mean(1), low, high, forced.mean(1), (alone - forced).mean(1), gain_low, gain_high)
    return Honest(len(spots), *(column(values) for values in columns))


def prefix_batch(rows: Sequence[Sequence[int]]) -> Batch:
    """Returns rows in which only the last token is predicted, and none holds it: another, masked token stands in its place."""
    batch = padded_batch(rows, [[len(row) - 1] for row in rows])
    mask = torch.ones_like(batch.input_ids) if batch.attention_mask is None else batch.attention_mask
    for row, ids in enumerate(rows):
        mask[row, len(ids) - 1 :] = 0
    return Batch(batch.input_ids * mask, batch.labels, attention_mask=mask)


def _sample(passages: Passages, count: int) -> list[tuple[int, int]]:
    """Returns (passage, place) of scored tokens drawn without repetition, each as likely as another; all where there are fewer."""
    targets = passages.targets()
    ends = targets.cumsum(0)
    total = int(ends[-1])
    chosen = torch.randperm(total, generator=torch.Generator().manual_seed(0))[:count].sort().values
    rows = torch.searchsorted(ends, chosen, right=True)
    inside = chosen - (ends - targets)[rows]
    return [(row, passages.rows[row].first + place) for row, place in zip(rows.tolist(), inside.tolist(), strict=True)]
