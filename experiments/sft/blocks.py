"""Some layers of a GGUF file as they are stored, in 4- and 8-bit blocks: small, and opened without a package.

`pack` needs the `gguf` package; `unpack` needs numpy alone. The weights are those that `experiments.gguf.dequantise` gives.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from experiments.gguf import find_gguf, their_name, unpermute

BLOCKS, FILES = "blocks.safetensors", (".json", ".jinja", ".model", ".txt")
SIZES = {"Q4_1": 20, "Q8_0": 34}  # bytes of a block of 32 numbers


def pack(package_or_file: str | Path, config_folder: str | Path, out: str | Path, layers: Sequence[int]) -> Path:
    """Writes these layers, embedding and last norm of a GGUF file into a folder, with config and tokenizer; returns the folder."""
    import gguf

    out, source = Path(out), Path(config_folder)
    out.mkdir(parents=True, exist_ok=True)
    file, tensors = find_gguf(package_or_file), {}
    for entry in gguf.GGUFReader(file).tensors:
        name = their_name(entry.name, file)
        if name is None:
            continue
        parts = name.split(".")
        if parts[1] == "layers":
            if int(parts[2]) not in layers:
                continue
            name = ".".join([*parts[:2], str(list(layers).index(int(parts[2]))), *parts[3:]])
        kind = entry.tensor_type.name
        if kind not in (*SIZES, "F32"):
            raise ValueError(f"{file}: {entry.name} is {kind}; allowed: F32, {', '.join(SIZES)}")
        tensors[f"{name}|{kind}"] = torch.from_numpy(np.array(entry.data))
    save_file(tensors, out / BLOCKS)
    for path in source.iterdir():
        if path.is_file() and path.suffix in FILES:
            shutil.copyfile(path, out / path.name)
    config = json.loads((source / "config.json").read_text())
    (out / "config.json").write_text(json.dumps(config | {"num_hidden_layers": len(layers)}, indent=2) + "\n")
    return out


def unpack(folder: str | Path, out: str | Path, dtype: torch.dtype = torch.float32) -> Path:
    """Writes the dense model folder of packed layers, and returns it."""
    folder, out = Path(folder), Path(out)
    out.mkdir(parents=True, exist_ok=True)
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    tensors = {}
    for name, raw in load_file(folder / BLOCKS).items():
        name, kind = name.split("|")
        value = raw if kind == "F32" else dequantised(raw.numpy(), kind)
        part = name.split(".")[-2]
        tensors[name] = (unpermute(value, heads[part]) if part in heads else value).to(dtype).contiguous()
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    for path in folder.iterdir():
        if path.suffix in FILES:
            shutil.copyfile(path, out / path.name)
    return out


def unpack_once(folder: str | Path, out: str | Path) -> None:
    """Writes the dense model folder of packed layers where it is not there, and says so."""
    if not (Path(out) / "model.safetensors").is_file():
        print(unpack(folder, out), flush=True)


def dequantised(raw: np.ndarray, kind: str) -> Tensor:
    """Returns the float32 numbers of rows of blocks [rows, bytes]."""
    blocks = raw.reshape(raw.shape[0], -1, SIZES[kind])
    scale = blocks[..., :2].copy().view(np.float16).astype(np.float32)
    if kind == "Q8_0":
        return torch.from_numpy((blocks[..., 2:].view(np.int8) * scale).reshape(raw.shape[0], -1))
    least = blocks[..., 2:4].copy().view(np.float16).astype(np.float32)
    packed = blocks[..., 4:]
    numbers = np.concatenate([packed & 15, packed >> 4], axis=-1).astype(np.float32)
    return torch.from_numpy((numbers * scale + least).reshape(raw.shape[0], -1))
