"""Qwen3, both ways."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen3Config

import loopwright as lw
from tests.cases import gap
from tests.convert.parity import ROPES, assert_both_ways, assert_same_tokens, tiny

VARIANTS: dict[str, dict[str, Any]] = {
    "grouped": {"num_key_value_heads": 2, "head_dim": 16},
    "tied": {"tie_word_embeddings": True, "head_dim": 8},
    "biases": {"attention_bias": True, "head_dim": 8},
    "linear": {"rope_parameters": ROPES["linear"], "head_dim": 8},
    "window": {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 0, "head_dim": 8},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_qwen3_both_ways(variant: str, tmp_path: Path) -> None:
    assert_both_ways(tiny(Qwen3Config, **VARIANTS[variant]), tmp_path, family="qwen3")


@pytest.mark.parametrize("variant", ["grouped"])
def test_greedy_tokens(variant: str, tmp_path: Path) -> None:
    assert_same_tokens(tiny(Qwen3Config, **VARIANTS[variant]), tmp_path)


def test_the_head_norm_matters(tmp_path: Path) -> None:
    theirs = tiny(Qwen3Config, head_dim=8)
    theirs.save_pretrained(tmp_path)
    ours = lw.load(tmp_path)
    ids = torch.arange(2, 26)[None]
    with torch.no_grad():
        ours.prelude[1].self_attn.k_norm.weight.mul_(1.5)
        assert gap(ours(ids).logits, theirs(ids).logits) > 1e-3
