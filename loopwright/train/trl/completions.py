"""Rows of a dataset as prompts and answers, and sampled tokens as completions."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from torch import Tensor

from loopwright.data.batch import Splits
from loopwright.generate.readings import split_rows


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
