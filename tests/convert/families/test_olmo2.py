"""OLMo-2, both ways."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import Olmo2Config

from tests.convert.parity import ROPES, assert_both_ways, assert_same_tokens, tiny

VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "grouped": {"num_key_value_heads": 2},
    "biases": {"attention_bias": True, "tie_word_embeddings": True},
    "llama3": {"rope_parameters": ROPES["llama3"]},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_olmo2_both_ways(variant: str, tmp_path: Path) -> None:
    assert_both_ways(tiny(Olmo2Config, **VARIANTS[variant]), tmp_path, family="olmo2")


@pytest.mark.parametrize("variant", ["grouped"])
def test_greedy_tokens(variant: str, tmp_path: Path) -> None:
    assert_same_tokens(tiny(Olmo2Config, **VARIANTS[variant]), tmp_path)
