"""What only the retrofitted models have: two flavours under Huginn's model_type, and rope fields that Raven lacks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import loopwright as lw
from tests.cases import gap, golden_folders
from tests.checkpoints.parity import folder_copy

LLAMA, OLMO2 = golden_folders("retrofit-llama")[0], golden_folders("retrofit-olmo2")[0]


def test_flavours_are_told_apart_by_their_tensors() -> None:
    llama, olmo2 = lw.load(LLAMA).config, lw.load(OLMO2).config
    assert (llama.norm_placement, llama.qk_norm) == (["input"], "none")
    assert (olmo2.norm_placement, olmo2.qk_norm) == (["output"], "full")
    assert llama.rope_layout == olmo2.rope_layout == "half" and llama.end_norm == olmo2.end_norm == "never"


def test_json_wins_over_what_the_class_derives() -> None:
    config = lw.load(LLAMA).config
    assert config.num_key_value_heads == 2 and config.embedding_scale == 1.0
    assert config.rope_parameters["rope_type"] == "llama3" and config.rope_parameters["original_max_position_embeddings"] == 256


def test_rope_theta_counts_and_rope_base_does_not(tmp_path: Path) -> None:
    ids, state = torch.arange(14)[None], torch.zeros(1, 14, 32)
    logits = lw.load(LLAMA)(ids, depth=2, initial_state=state).logits
    unused = lw.load(folder_copy(LLAMA, tmp_path / "a", rope_base=777.0))
    used = lw.load(folder_copy(LLAMA, tmp_path / "b", rope_theta=777.0))
    assert torch.equal(unused(ids, depth=2, initial_state=state).logits, logits)
    assert gap(used(ids, depth=2, initial_state=state).logits, logits) > 1e-3


def test_rope_theta_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="rope_theta is missing"):
        lw.load(folder_copy(OLMO2, tmp_path / "a", rope_theta=None))


def test_a_bias_on_q_and_k_is_huginns_alone(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="qk_bias is True, which is not supported; allowed: False"):
        lw.load(folder_copy(LLAMA, tmp_path / "a", qk_bias=True))
