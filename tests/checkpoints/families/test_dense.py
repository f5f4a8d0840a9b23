"""The dense families, both ways."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, MistralConfig, Olmo2Config, Qwen2Config, Qwen3Config

import loopwright as lw
from tests.cases import HERE, gap
from tests.checkpoints.parity import ROPES, assert_both_ways, assert_same_tokens, folder_copy, tiny

SHARED = HERE.parent.parent / "shared" / "data"
LLAMA: dict[str, dict[str, Any]] = {
    "plain": {},
    "tied": {"tie_word_embeddings": True},
    "grouped": {"num_key_value_heads": 2},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "head_dim": {"head_dim": 20, "num_key_value_heads": 1},
    "eps": {"rms_norm_eps": 1e-2},
    "theta": {"rope_parameters": {"rope_type": "default", "rope_theta": 300.0}},
    **{kind: {"rope_parameters": rope} for kind, rope in ROPES.items()},
}


@pytest.mark.parametrize("variant", LLAMA)
def test_llama_both_ways(variant: str, tmp_path: Path) -> None:
    assert_both_ways(tiny(LlamaConfig, **LLAMA[variant]), tmp_path, family="llama")


@pytest.mark.parametrize("variant", ["grouped", "biases"])
def test_greedy_tokens_of_llama(variant: str, tmp_path: Path) -> None:
    assert_same_tokens(tiny(LlamaConfig, **LLAMA[variant]), tmp_path)


def test_sharded_both_ways_of_llama(tmp_path: Path) -> None:
    assert_both_ways(tiny(LlamaConfig), tmp_path, family="llama", max_shard_size="20KB", shard_bytes=20_000)
    for name in ("theirs", "back"):
        assert len(list((tmp_path / name).glob("model-*-of-*.safetensors"))) > 2


def test_older_layout_of_rope_of_llama(tmp_path: Path) -> None:
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


def test_stories260k_has_its_known_loss_of_llama() -> None:
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


MISTRAL: dict[str, dict[str, Any]] = {
    "window": {"sliding_window": 6},  # shorter than the text
    "no-window": {"sliding_window": None, "num_key_value_heads": 2},
    "head_dim": {"head_dim": 12, "sliding_window": None, "tie_word_embeddings": True},
}


@pytest.mark.parametrize("variant", MISTRAL)
def test_mistral_both_ways(variant: str, tmp_path: Path) -> None:
    assert_both_ways(tiny(MistralConfig, **MISTRAL[variant]), tmp_path, family="mistral")


@pytest.mark.parametrize("variant", ["window"])
def test_greedy_tokens_of_mistral(variant: str, tmp_path: Path) -> None:
    assert_same_tokens(tiny(MistralConfig, **MISTRAL[variant]), tmp_path)


def test_the_window_matters_of_mistral(tmp_path: Path) -> None:
    theirs = tiny(MistralConfig, sliding_window=6)
    theirs.save_pretrained(tmp_path / "a")
    wider = lw.load(folder_copy(tmp_path / "a", tmp_path / "b", sliding_window=12))
    ids = torch.arange(2, 26)[None]
    assert gap(wider(ids).logits, theirs(ids).logits) > 1e-2


def test_absent_fields_mean_what_the_class_takes_of_mistral(tmp_path: Path) -> None:
    """An absent window is 4,096 and absent key/value heads are 8; a null window is none."""
    theirs = tiny(MistralConfig, num_attention_heads=16, num_key_value_heads=8)
    theirs.save_pretrained(tmp_path / "a")
    absent = lw.load(folder_copy(tmp_path / "a", tmp_path / "b", sliding_window=None, num_key_value_heads=None))
    assert absent.config.sliding_window == 4096 and absent.config.num_key_value_heads == 8


QWEN2: dict[str, dict[str, Any]] = {
    "grouped": {"num_key_value_heads": 2},
    "tied": {"tie_word_embeddings": True},
    "yarn": {"rope_parameters": ROPES["yarn"]},
    "window": {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 0},
    "head_dim": {"head_dim": 12},
}


@pytest.mark.parametrize("variant", QWEN2)
def test_qwen2_both_ways(variant: str, tmp_path: Path) -> None:
    assert_both_ways(tiny(Qwen2Config, **QWEN2[variant]), tmp_path, family="qwen2")


@pytest.mark.parametrize("variant", ["grouped"])
def test_greedy_tokens_of_qwen2(variant: str, tmp_path: Path) -> None:
    assert_same_tokens(tiny(Qwen2Config, **QWEN2[variant]), tmp_path)


def test_layers_that_differ_are_refused_of_qwen2(tmp_path: Path) -> None:
    mixed = tiny(Qwen2Config, use_sliding_window=True, sliding_window=6, max_window_layers=1)
    mixed.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"layer_types .* gives the 2 layers different attention"):
        lw.load(tmp_path)


QWEN3: dict[str, dict[str, Any]] = {
    "grouped": {"num_key_value_heads": 2, "head_dim": 16},
    "tied": {"tie_word_embeddings": True, "head_dim": 8},
    "biases": {"attention_bias": True, "head_dim": 8},
    "linear": {"rope_parameters": ROPES["linear"], "head_dim": 8},
    "window": {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 0, "head_dim": 8},
}


@pytest.mark.parametrize("variant", QWEN3)
def test_qwen3_both_ways(variant: str, tmp_path: Path) -> None:
    assert_both_ways(tiny(Qwen3Config, **QWEN3[variant]), tmp_path, family="qwen3")


@pytest.mark.parametrize("variant", ["grouped"])
def test_greedy_tokens_of_qwen3(variant: str, tmp_path: Path) -> None:
    assert_same_tokens(tiny(Qwen3Config, **QWEN3[variant]), tmp_path)


def test_the_head_norm_matters_of_qwen3(tmp_path: Path) -> None:
    theirs = tiny(Qwen3Config, head_dim=8)
    theirs.save_pretrained(tmp_path)
    ours = lw.load(tmp_path)
    ids = torch.arange(2, 26)[None]
    with torch.no_grad():
        ours.prelude[1].self_attn.k_norm.weight.mul_(1.5)
        assert gap(ours(ids).logits, theirs(ids).logits) > 1e-3


OLMO2: dict[str, dict[str, Any]] = {
    "plain": {},
    "grouped": {"num_key_value_heads": 2},
    "biases": {"attention_bias": True, "tie_word_embeddings": True},
    "llama3": {"rope_parameters": ROPES["llama3"]},
}


@pytest.mark.parametrize("variant", OLMO2)
def test_olmo2_both_ways(variant: str, tmp_path: Path) -> None:
    assert_both_ways(tiny(Olmo2Config, **OLMO2[variant]), tmp_path, family="olmo2")


@pytest.mark.parametrize("variant", ["grouped"])
def test_greedy_tokens_of_olmo2(variant: str, tmp_path: Path) -> None:
    assert_same_tokens(tiny(Olmo2Config, **OLMO2[variant]), tmp_path)
