"""Held-out text as passages: the documents of files, each cut into pieces of at most `context` tokens that are scored alone.

No passage holds two documents, no token is in two passages, and what ends a document is not scored: losses count text alone,
so that they can be told per byte. A passage begins with what the tokenizer puts before any text (a BOS, or nothing); the first
token of one without such an opening is read but not scored, since nothing stands before it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from loopwright.data.batch import IGNORED, Batch
from loopwright.data.records import Files, text_field
from loopwright.data.text import GROUP
from loopwright.data.tokenizer import Tokenizer
from loopwright.values import check_whole

CONTEXT = 512  # tokens of a passage, where nothing is said and the model has as many positions


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
        for ids, ends in tokenizer.encode_with_ends(texts) if texts else []:
            passages += _cut(ids, ends, tokenizer.opening, context, document)
            document += 1
    if not passages:
        raise ValueError(f"{name}: {files} holds no text of two tokens or more")
    return Passages(name, context, tuple(passages[:most]), tokenizer.vocab_size)


def _cut(ids: Sequence[int], ends: Sequence[int], opening: Sequence[int], context: int, document: int) -> list[Passage]:
    """The passages of one document. Bytes run from where the token before the first scored one ends: some tokenizers do not count
    the blank before a word into its beginning, but all know where a word ends (blanks alone may count to the next passage)."""
    size, passages = context - len(opening), []
    for start in range(0, len(ids), size):
        piece = ids[start : start + size]
        unscored = 0 if opening else 1
        if len(piece) <= unscored:
            continue
        place = start + unscored
        begin = 0 if place == 0 else ends[place - 1]
        count = ends[start + len(piece) - 1] - begin
        passages.append(Passage((*opening, *piece), len(opening) + unscored, count, document))
    return passages
