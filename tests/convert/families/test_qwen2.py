"""Qwen2 and Qwen2.5, both ways."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import Qwen2Config

import loopwright as lw
from tests.convert.parity import ROPES, assert_both_ways, assert_same_tokens, tiny

VARIANTS: dict[str, dict[str, Any]] = {
    "grouped": {"num_key_value_heads": 2},
    "tied": {"tie_word_embeddings": True},
    "yarn": {"rope_parameters": ROPES["yarn"]},
    "window": {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 0},
    "head_dim": {"head_dim": 12},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_qwen2_both_ways(variant: str, tmp_path: Path) -> None:
    assert_both_ways(tiny(Qwen2Config, **VARIANTS[variant]), tmp_path, family="qwen2")


@pytest.mark.parametrize("variant", ["grouped"])
def test_greedy_tokens(variant: str, tmp_path: Path) -> None:
    assert_same_tokens(tiny(Qwen2Config, **VARIANTS[variant]), tmp_path)


def test_layers_that_differ_are_refused(tmp_path: Path) -> None:
    mixed = tiny(Qwen2Config, use_sliding_window=True, sliding_window=6, max_window_layers=1)
    mixed.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"layer_types .* gives the 2 layers different attention"):
        lw.load(tmp_path)
