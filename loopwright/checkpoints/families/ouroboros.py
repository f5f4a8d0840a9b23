"""The parts that Ouroboros' public trainer saves: controller, gate, step norms and what halts, without layers, bases or sizes.

A file has the state of each part under its name: nested in a .pt, flat (`gate.gate_proj.weight`) in a .safetensors.
"""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from loopwright.untrusted import first_line

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")  # in the order of our heads
_FIXED = {
    "step_norm.weights": "end_norm.weight",
    "gate.gate_proj.weight": "gate.weight",
    "gate.gate_proj.bias": "gate.bias",
    "controller.step_embed.weight": "adapters.0.step_embedding",
}
# linear maps of a chain, in order: what stands between them, activations and perhaps dropout, moves their numbers
_CHAINS = {
    "controller.state_proj": ("adapters.0.state_proj",),
    "controller.style_net": ("adapters.0.style1", "adapters.0.style2"),
    "halter": ("halting.first", "halting.second", "halting.last"),
}
_HEAD = "controller.target_heads.{}.weight"


def read_parts(path: Path) -> dict[str, Tensor]:
    """Returns the tensors of a file under our names. Of a .pt tensors alone are read: what could run code is refused."""
    try:
        held = load_file(path) if path.suffix == ".safetensors" else torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, SafetensorError, RuntimeError, EOFError, ValueError) as error:
        raise ValueError(f"{path}: cannot be read as tensors ({first_line(error)})") from None
    try:
        return renamed(dict(_flat(held)))
    except KeyError as error:
        raise ValueError(
            f"{path}: no {error.args[0]}; allowed: the controller, gate and step norms of Ouroboros' trainer"
        ) from None


def renamed(theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the tensors of the public code under our names; a KeyError names one that is missing."""
    ours = {name: theirs[key] for key, name in _FIXED.items()}
    ours["adapters.0.heads"] = torch.cat([theirs[_HEAD.format(target)] for target in TARGETS])
    for chain, names in _CHAINS.items():
        numbers = sorted({int(found[1]) for key in theirs if (found := re.fullmatch(rf"{re.escape(chain)}\.(\d+)\.weight", key))})
        if chain == "halter" and len(numbers) != len(names):
            continue  # it is saved by the third phase alone
        if len(numbers) != len(names):
            raise KeyError(f"{chain} of {len(names)} linear maps")
        for number, name in zip(numbers, names, strict=True):
            ours |= {f"{name}.{part}": theirs[f"{chain}.{number}.{part}"] for part in ("weight", "bias")}
    return ours


def _flat(held: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    if isinstance(held, Tensor):
        yield path, held
    elif isinstance(held, Mapping):
        for name, value in held.items():
            yield from _flat(value, f"{path}.{name}" if path else str(name))
