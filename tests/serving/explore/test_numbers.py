"""Numbers for JSON, and tokens as they read inside a line."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.serving.explore.passes import TokenTexts, rounded
from tests.generation.tiny import word_tokenizer


@settings(max_examples=20)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=8), st.integers(0, 6))
def test_rounded_numbers_are_within_half_a_digit(values: list[float], digits: int) -> None:
    found = rounded(torch.tensor(values, dtype=torch.float64), digits)
    assert all(abs(a - b) <= 0.5001 * 10**-digits for a, b in zip(found, values, strict=True))


def test_what_is_not_finite_is_none() -> None:
    assert rounded(torch.tensor([[1.23456, float("nan")], [float("inf"), -2.0]]), 2) == [[1.23, None], [None, -2.0]]


def test_tokens_keep_the_space_before_a_word() -> None:
    tokenizer = word_tokenizer()
    texts = TokenTexts(tokenizer)
    assert texts(4) == " cat" and texts(0) == "<unk>"
    assert "".join(map(texts, [2, 4, 8])).strip() == tokenizer.decode([2, 4, 8])
