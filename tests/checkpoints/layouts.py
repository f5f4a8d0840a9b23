"""A layout as plain data, and the conversion that goes with it: layers copied, nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

import loopwright as lw


@dataclass(frozen=True)
class Layout:
    """The source layers of each stack, and those that each layer of the core stands for."""

    prelude: tuple[int, ...]
    core: tuple[int, ...]
    coda: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]
    depth: int


def cut(source: lw.LoopedForCausalLM, layout: Layout, **parts: Any) -> lw.LoopedForCausalLM:
    """Returns a looped model with the layers of a dense one that a layout names."""
    stacks = {f"{name}_layers": len(getattr(layout, name)) for name in ("prelude", "core", "coda")}
    model = lw.LoopedForCausalLM(lw.LoopedConfig(**{**source.config.to_dict(), **stacks, "depth": layout.depth, **parts}))
    shared = {k: v for k, v in source.state_dict().items() if not k.startswith("prelude.")}
    assert not model.load_state_dict(shared, strict=False).unexpected_keys
    with torch.no_grad():
        for stack in ("prelude", "core", "coda"):
            for block, layer in zip(getattr(model, stack), getattr(layout, stack), strict=True):
                block.load_state_dict(source.prelude[layer].state_dict())
    return model.eval()
