"""A checkpoint of Ouroboros' public code, put on the model it was trained on."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import torch

from loopwright.checkpoints.families.ouroboros import read_parts
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.retrofitting.surgery import convert
from loopwright.retrofitting.systems import make_plan


def load_published(base: LoopedForCausalLM, path: Path) -> LoopedForCausalLM:
    """Returns the base with the parts of a file of Ouroboros' public code.

    A dense base is cut as published (8 layers, the middle one, 8 of 36) with bases of its own, and pools as the parts were trained:
    over the whole sequence, future tokens included. A looped base, from `lw.retrofit(source, "ouroboros", …)`, keeps its layout,
    its scale and its pooling. What halts is read where the base has a halter.
    """
    parts = read_parts(path)
    if base.config.is_looped:
        model = deepcopy(base)
    else:
        rank, style = parts["adapters.0.heads"].shape[0] // 7, parts["adapters.0.heads"].shape[1]
        sizes = {"rank": rank, "style": style, "pooling": "sequence", "leak_future": True}
        model = convert(base, make_plan("ouroboros", {"adapters": sizes, "max_steps": parts["end_norm.weight"].shape[0]})).model
    held = dict(model.named_parameters())
    if "halting.last.weight" not in held:
        parts = {name: value for name, value in parts.items() if not name.startswith("halting.")}
    wrong = [name for name, value in parts.items() if name not in held or held[name].shape != value.shape]
    if wrong:
        there = f"has {tuple(held[wrong[0]].shape)}" if wrong[0] in held else "has none"
        raise ValueError(
            f"{path}: {wrong[0]} is {tuple(parts[wrong[0]].shape)}, the base {there}; allowed: the dense source, or a retrofit of "
            "system ouroboros with the file's rank, style and max_steps"
        )
    with torch.no_grad():
        for name, value in parts.items():
            held[name].copy_(value)
    return model
