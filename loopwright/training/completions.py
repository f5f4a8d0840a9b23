"""Rows of a dataset as prompts and answers, and sampled tokens as completions."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from loopwright.data.batch import Splits
from loopwright.generation.readings import split_rows
from loopwright.model.parts.state import mix, row_seeds, signed


class Prompts:
    """The training rows of a dataset: what stands before the first target is the prompt, the targets are the answer."""

    def __init__(self, splits: Splits) -> None:
        self.splits = splits
        self._held: dict[int, tuple[list[int], list[int]]] = {}

    def prompt(self, row: int) -> list[int]:
        """Returns the tokens of a prompt."""
        return self._row(row)[0]

    def answer(self, row: int) -> list[int]:
        """Returns the tokens of the data's answer, its end included."""
        return self._row(row)[1]

    def text(self, ids: Sequence[int]) -> str:
        """Returns tokens as text, without control tokens."""
        return self.splits.tokenizer.decode(ids, skip_special_tokens=True)

    def _row(self, row: int) -> tuple[list[int], list[int]]:
        if row not in self._held:
            if len(self._held) > 4096:
                self._held.clear()
            prompts, answers = split_rows(self.splits.train.batch([row]))
            self._held[row] = prompts[0].tolist(), answers[0].tolist()
        return self._held[row]


def cut(written: Tensor, ends: Collection[int]) -> list[list[int]]:
    """Returns each row up to its first end token, that one included."""
    rows = written.tolist()
    return [row[: next((place + 1 for place, token in enumerate(row) if token in ends), len(row))] for row in rows]


def prompt_seeds(seed: int, update: int, ids: Tensor, mask: Tensor) -> Tensor:
    """Returns a seed for each prompt of an update [B], from its tokens [B, T] where the mask says that they are real.

    Sampling, policy and reference find it again in any order of rows: a ratio of their likelihoods is that of one start. The
    completions of a group share it, so that none is better by its start.
    """
    places = mask.long().cumsum(1)
    words = mix(ids.long() * signed(0x9E3779B97F4A7C15) + places * signed(0xD1342543DE82EF95)) * mask.long()
    return mix(words.sum(1) + row_seeds(seed, torch.tensor([update], device=ids.device)))
