"""Packed layers, opened without the gguf package = what that package dequantises, and the model that `dequantise` writes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig

import loopwright as lw
from experiments.gguf import dequantise
from experiments.sft.blocks import dequantised, pack, unpack
from tests.checkpoints.parity import tiny
from tests.experiments.test_gguf import write_gguf


@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0"])
def test_blocks_are_opened_as_gguf_does(kind: str) -> None:
    gguf = pytest.importorskip("gguf")
    weights = np.random.default_rng(0).normal(size=(5, 96)).astype(np.float32)
    raw = gguf.quants.quantize(weights, gguf.GGMLQuantizationType[kind])
    wanted = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind])
    assert np.array_equal(dequantised(raw, kind).numpy(), wanted)


def test_all_layers_are_the_model_and_some_are_a_smaller_one(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    model = tiny(LlamaConfig, num_key_value_heads=2)
    write_gguf(model, tmp_path / "model.gguf")
    model.save_pretrained(tmp_path / "config")
    layers = model.config.num_hidden_layers
    whole = lw.load(dequantise(tmp_path / "model.gguf", tmp_path / "config", tmp_path / "whole"), dtype="float32")
    again = lw.load(
        unpack(pack(tmp_path / "model.gguf", tmp_path / "config", tmp_path / "packed", range(layers)), tmp_path / "again")
    )
    ids = torch.arange(9)[None]
    assert torch.equal(whole(ids).logits, again(ids).logits)
    few = pack(tmp_path / "model.gguf", tmp_path / "config", tmp_path / "few", [0, layers - 1])
    assert json.loads((few / "config.json").read_text())["num_hidden_layers"] == 2
    found, wanted = (lw.load(folder).state_dict() for folder in (unpack(few, tmp_path / "two"), tmp_path / "whole"))
    last = next(name for name in wanted if f".{layers - 1}." in name)
    assert torch.equal(found[last.replace(f".{layers - 1}.", ".1.")], wanted[last])
