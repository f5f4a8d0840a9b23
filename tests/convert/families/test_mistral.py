"""Mistral, both ways."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import MistralConfig

import loopwright as lw
from tests.cases import gap
from tests.convert.parity import assert_both_ways, assert_same_tokens, folder_copy, tiny

VARIANTS: dict[str, dict[str, Any]] = {
    "window": {"sliding_window": 6},  # shorter than the text
    "no-window": {"sliding_window": None, "num_key_value_heads": 2},
    "head_dim": {"head_dim": 12, "sliding_window": None, "tie_word_embeddings": True},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_mistral_both_ways(variant: str, tmp_path: Path) -> None:
    assert_both_ways(tiny(MistralConfig, **VARIANTS[variant]), tmp_path, family="mistral")


@pytest.mark.parametrize("variant", ["window"])
def test_greedy_tokens(variant: str, tmp_path: Path) -> None:
    assert_same_tokens(tiny(MistralConfig, **VARIANTS[variant]), tmp_path)


def test_the_window_matters(tmp_path: Path) -> None:
    theirs = tiny(MistralConfig, sliding_window=6)
    theirs.save_pretrained(tmp_path / "a")
    wider = lw.load(folder_copy(tmp_path / "a", tmp_path / "b", sliding_window=12))
    ids = torch.arange(2, 26)[None]
    assert gap(wider(ids).logits, theirs(ids).logits) > 1e-2


def test_absent_fields_mean_what_the_class_takes(tmp_path: Path) -> None:
    """An absent window is 4,096 and absent key/value heads are 8; a null window is none."""
    theirs = tiny(MistralConfig, num_attention_heads=16, num_key_value_heads=8)
    theirs.save_pretrained(tmp_path / "a")
    absent = lw.load(folder_copy(tmp_path / "a", tmp_path / "b", sliding_window=None, num_key_value_heads=None))
    assert absent.config.sliding_window == 4096 and absent.config.num_key_value_heads == 8
