"""Tensors as plain lists for JSON, and tokens as text."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from loopwright.untrusted import visible

REMEMBERED = 65_536  # texts of single tokens


def rounded(values: Tensor, digits: int = 4) -> Any:
    """Returns a tensor as nested lists with so many decimals; None where a number is not finite."""
    scale = 10**digits
    wide = values.detach().double().cpu()
    plain = torch.round(wide * scale) / scale
    finite = wide.isfinite()
    return plain.tolist() if bool(finite.all()) else _without(plain.tolist(), finite.tolist())


def _without(values: Any, kept: Any) -> Any:
    if isinstance(values, list):
        return [_without(value, keep) for value, keep in zip(values, kept, strict=True)]
    return values if kept else None


class TokenTexts:
    """The text of single tokens as they stand inside a line: with the space before a word, where the tokenizer has one."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self._special = set(tokenizer.all_special_ids)
        self._text = lru_cache(REMEMBERED)(lambda token: visible(self._decode(token)))
        self._before = next((token for token in range(len(tokenizer)) if token not in self._special), 0)

    def __call__(self, token: int) -> str:
        """Returns the text of a token; what would mislead who reads it is written out."""
        return self._text(token)

    def _decode(self, token: int) -> str:
        alone = str(self.tokenizer.decode([token]))
        if token in self._special:
            return alone
        # some tokenizers drop the space before the first word of a text: read it behind another token
        first = str(self.tokenizer.decode([self._before]))
        both = str(self.tokenizer.decode([self._before, token]))
        return both[len(first) :] if both.startswith(first) and len(both) > len(first) else alone
