"""What only Huginn has: its stored table, its fused biases, its tied head stored twice."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import loopwright as lw
from loopwright.checkpoints.families.raven import rotary_table
from tests.cases import gap, golden_folders
from tests.checkpoints.parity import folder_copy

FOLDER = golden_folders("huginn-tiny")[0]


def test_stored_table_is_the_one_we_compute() -> None:
    assert gap(rotary_table(lw.load(FOLDER).config), load_file(FOLDER / "model.safetensors")["freqs_cis"]) < 1e-6


def test_fused_biases_are_split_in_order() -> None:
    model, stored = lw.load(FOLDER), load_file(FOLDER / "model.safetensors")
    bias = stored["transformer.core_block.1.attn.qk_bias"]
    assert torch.equal(model.core[1].self_attn.q_proj.bias, bias[0].flatten())
    assert torch.equal(model.core[1].self_attn.k_proj.bias, bias[1].flatten())
    fused = stored["transformer.coda.0.attn.Wqkv.weight"]
    assert torch.equal(model.coda[0].self_attn.v_proj.weight, fused[64:])


def test_a_tied_head_that_is_not_the_embedding_is_refused(tmp_path: Path) -> None:
    folder = folder_copy(FOLDER, tmp_path / "odd")
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"][3, 4] += 1
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"lm_head.weight is not equal to transformer.wte.weight"):
        lw.load(folder)


def test_neither_copy_nor_table_is_needed(tmp_path: Path) -> None:
    folder = folder_copy(FOLDER, tmp_path / "lean")
    tensors = load_file(folder / "model.safetensors")
    del tensors["lm_head.weight"], tensors["freqs_cis"]
    save_file(tensors, folder / "model.safetensors")
    ids = torch.arange(9)[None]
    assert torch.equal(lw.load(folder)(ids, depth=2).logits, lw.load(FOLDER)(ids, depth=2).logits)
