"""Tables of short rows: what algorithmic tasks are held in, so that a batch is one gather, on any device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from loopwright.data.batch import IGNORED, Batch, digest_of
from loopwright.settings import suggest

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
    `needs` [N] counts the operations that an answer needs one after another: the depth of a model that does one a step.
    `padding` says how batches tell their padding: by an attention mask ("masked", right for every model), or by `lengths` alone
    ("plain": a causal model computes the same on real tokens, with the faster kernels that take no mask).
    """

    ids: Tensor
    starts: Tensor
    lengths: Tensor
    needs: Tensor
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
        said = ids if self.answers is None else self.answers[chosen].long()
        labels = torch.where(real & (place >= self.starts[chosen][:, None]), said, IGNORED)
        if not self.ragged:
            return Batch(ids, labels)
        return Batch(ids, labels, attention_mask=real.long() if self.padding == "masked" else None, lengths=lengths)

    def show(self, row: int) -> str:
        """Returns the text of a row."""
        return self.alphabet.decode(self.ids[row])

    def to(self, device: torch.device | str) -> Table:
        """Returns the same rows on a device."""
        held = {name: getattr(self, name) for name in ("ids", "starts", "lengths", "needs", "answers")}
        return replace(self, **{name: x.to(device) for name, x in held.items() if x is not None})


@dataclass(frozen=True)
class Rows:
    """Rows under construction: ids [N, T] with the answer at [starts, lengths), what each needs, and answers in place."""

    ids: np.ndarray
    starts: np.ndarray
    lengths: np.ndarray
    needs: np.ndarray
    answers: np.ndarray | None = None

    def table(self, alphabet: Alphabet, padding: str) -> Table:
        """Returns the finished table."""
        starts, lengths, needs = (torch.from_numpy(x.astype(np.int64)) for x in (self.starts, self.lengths, self.needs))
        ragged = bool((self.lengths < self.ids.shape[1]).any())
        ids, answers = (None if x is None else torch.from_numpy(x.astype(np.uint8)) for x in (self.ids, self.answers))
        assert ids is not None
        return Table(ids, starts, lengths, needs, alphabet, padding, ragged, answers)


def stack(parts: Sequence[Rows], order: np.ndarray) -> Rows:
    """Returns rows of several kinds as one, in the given order, so that any stretch of them is a mixture."""
    named = [name for name in ("ids", "starts", "lengths", "needs", "answers") if getattr(parts[0], name) is not None]
    return Rows(**{name: np.concatenate([getattr(part, name) for part in parts])[order] for name in named})
