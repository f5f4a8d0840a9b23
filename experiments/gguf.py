"""GGUF files of the Llama architecture, dequantised into an ordinary folder. Needs the `gguf` package, when used."""

from __future__ import annotations

import importlib.util
import re
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from loopwright.checkpoints.families.dense import LLAMA
from loopwright.checkpoints.load import empty_model, parameter_shapes
from loopwright.checkpoints.save import model_folder
from loopwright.checkpoints.weights import SINGLE, read_json

_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_BLOCK = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}


def dequantise(package_or_file: str | Path, config_folder: str | Path, out_folder: str | Path) -> Path:
    """Writes a model folder with the weights of a GGUF file and the config and tokenizer of `config_folder`.

    The GGUF is a file, or the only one inside an installed package of that name. Weights are stored in the config's dtype.
    """
    import gguf

    file, source = find_gguf(package_or_file), Path(config_folder)
    settings = read_json(source / "config.json")
    config = LLAMA.config(settings, str(source / "config.json"))
    dtype = getattr(torch, settings.get("dtype") or settings.get("torch_dtype") or "float32")
    reader = gguf.GGUFReader(file)
    kind = reader.get_field("general.architecture").contents()
    if kind != "llama":
        raise ValueError(f"{file}: its architecture is {kind!r}; allowed: llama")
    tensors: dict[str, Tensor] = {}
    for entry in reader.tensors:
        name = their_name(entry.name, file)
        if name is None:
            continue
        value = torch.from_numpy(gguf.quants.dequantize(entry.data, entry.tensor_type).copy())
        if name.endswith("q_proj.weight"):
            value = unpermute(value, config.num_attention_heads)
        elif name.endswith("k_proj.weight"):
            value = unpermute(value, config.num_key_value_heads)
        tensors[name] = value.to(dtype)
    _check(file, tensors, config)
    with model_folder(out_folder, tensors.values()) as place:
        save_file(tensors, place / SINGLE, metadata={"format": "pt"})
        for path in source.iterdir():
            if path.is_file() and path.suffix in (".json", ".jinja", ".model", ".txt"):
                shutil.copy(path, place / path.name)
    return Path(out_folder)


def find_gguf(package_or_file: str | Path) -> Path:
    """Returns a GGUF file: the one named, or the only one inside an installed package, which is not imported."""
    path = Path(package_or_file)
    if path.is_file():
        return path
    spec = importlib.util.find_spec(str(package_or_file)) if str(package_or_file).isidentifier() else None
    folders = [] if spec is None else list(spec.submodule_search_locations or [])
    found = sorted(file for folder in folders for file in Path(folder).glob("*.gguf"))
    if len(found) != 1:
        raise FileNotFoundError(f"{package_or_file}: neither a GGUF file nor an installed package that holds exactly one")
    return found[0]


def unpermute(weight: Tensor, heads: int) -> Tensor:
    """Returns a query or key projection with the two halves of each head apart again; GGUF stores them as pairs."""
    return weight.reshape(heads, -1, 2, weight.shape[-1]).transpose(1, 2).reshape(weight.shape).contiguous()


def their_name(name: str, file: Path) -> str | None:
    """Returns the name that a tensor of a GGUF file has in a Llama folder; None for what the config says already."""
    if name in _TOP:
        return _TOP[name]
    if name == "rope_freqs.weight":  # follows from the config
        return None
    found = re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name)
    if found is None or found[2] not in _BLOCK:
        raise ValueError(f"{file}: unknown tensor {name!r}; allowed: those of a Llama without biases")
    return f"model.layers.{found[1]}.{_BLOCK[found[2]]}.weight"


def _check(file: Path, tensors: dict[str, Tensor], config: Any) -> None:
    rules = LLAMA.rules(config, parameter_shapes(empty_model(config)))
    wanted = {rule.theirs: rule.shape for rule in rules}
    wrong = [name for name, shape in wanted.items() if name not in tensors or tuple(tensors[name].shape) != shape]
    if wrong:
        raise ValueError(f"{file}: does not fit the config; missing or of another shape: {', '.join(wrong[:5])}")
