"""Data of the user's own: rows of token ids in memory, and the splits that training reads."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from loopwright.data.batch import IGNORED, Batch, Source, Splits, digest_of

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
            told = "labels: each is the token after its place, and the model shifts labels once more"
            warnings.warn(f"{told}; give the ids themselves", stacklevel=2)

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
    train: Source | Sequence[Ids] | Tensor,
    valid: Source | Sequence[Ids] | Tensor,
    *,
    tests: Mapping[str, Source | Sequence[Ids] | Tensor] | None = None,
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


def _source(rows: Any) -> Source:
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
