"""Llama, both ways."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig

import loopwright as lw
from tests.cases import HERE, gap
from tests.convert.parity import ROPES, assert_both_ways, assert_same_tokens, tiny

SHARED = HERE.parent.parent / "shared" / "data"
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "tied": {"tie_word_embeddings": True},
    "grouped": {"num_key_value_heads": 2},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "head_dim": {"head_dim": 20, "num_key_value_heads": 1},
    "eps": {"rms_norm_eps": 1e-2},
    "theta": {"rope_parameters": {"rope_type": "default", "rope_theta": 300.0}},
    **{kind: {"rope_parameters": rope} for kind, rope in ROPES.items()},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_llama_both_ways(variant: str, tmp_path: Path) -> None:
    assert_both_ways(tiny(LlamaConfig, **VARIANTS[variant]), tmp_path, family="llama")


@pytest.mark.parametrize("variant", ["grouped", "biases"])
def test_greedy_tokens(variant: str, tmp_path: Path) -> None:
    assert_same_tokens(tiny(LlamaConfig, **VARIANTS[variant]), tmp_path)


def test_sharded_both_ways(tmp_path: Path) -> None:
    assert_both_ways(tiny(LlamaConfig), tmp_path, family="llama", max_shard_size="20KB", shard_bytes=20_000)
    for name in ("theirs", "back"):
        assert len(list((tmp_path / name).glob("model-*-of-*.safetensors"))) > 2


def test_older_layout_of_rope(tmp_path: Path) -> None:
    """rope_theta with rope_scaling, "type" for "rope_type", and the fields that only old files have."""
    theirs = tiny(LlamaConfig, rope_parameters=ROPES["llama3"])
    theirs.save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    rope = settings.pop("rope_parameters")
    settings["rope_theta"] = rope.pop("rope_theta")
    settings["rope_scaling"] = {"type": rope.pop("rope_type"), **rope}
    settings |= {"pretraining_tp": 1, "pad_token_id": -1, "torch_dtype": "float32", "max_sequence_length": 128, "top_p": 0.9}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    ours = lw.load(tmp_path)
    ids = torch.arange(2, 40)[None]
    assert ours.config.pad_token_id is None
    assert gap(ours(ids).logits, theirs(ids).logits) < 1e-5


def test_stories260k_has_its_known_loss() -> None:
    folder, text = SHARED / "models" / "stories260K", SHARED / "text" / "tinystories_sample.txt"
    if not folder.is_dir() or not text.is_file():
        pytest.skip("the shared data are not here")
    model, tokenizer = lw.load(folder), lw.tokenizer(folder)
    total = count = 0.0
    for story in filter(None, map(str.strip, text.read_text().split("<|endoftext|>"))):
        ids = tokenizer(story, return_tensors="pt").input_ids
        with torch.no_grad():
            total += model(ids, labels=ids).loss.item() * (ids.shape[1] - 1)
        count += ids.shape[1] - 1
    assert count == 1804
    assert total / count == pytest.approx(1.2664, abs=1e-4)
