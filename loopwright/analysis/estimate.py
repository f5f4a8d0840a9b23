"""How much memory an analysis takes, before it starts, and which batch would fit."""

from __future__ import annotations

import torch

from loopwright.analysis.trace.maps import CHUNK
from loopwright.analysis.trace.places import Places
from loopwright.model.config import LoopedConfig
from loopwright.model.cost.cost import inference_bytes, weight_bytes

MAPS = 4  # of a chunk's size: scores, maps, those of the step before, and what is between


def trace_bytes(config: LoopedConfig, *, batch: int, length: int, depth: int, dtype: torch.dtype) -> dict[str, int]:
    """Returns an estimate of the most bytes alive at once in a trace with everything gathered, by part.

    weights; the pass itself; what is held of one step to compare the next with: residual, queries and keys of each core layer,
    and what its lens said, and those of the farthest layer, picked row by row; the maps of one layer; the numbers, which alone
    grow with depth.
    """
    places = Places.of(config, depth)
    tokens, heads, vocabulary = batch * length, config.num_attention_heads, config.vocab_size
    held = config.hidden_size + (heads + config.num_key_value_heads) * config.head_dim
    maps = min(CHUNK, tokens * heads * length) * 4 * MAPS
    numbers = batch * places.count * (6 * heads + 16) * 4 + tokens * places.count * 2
    return {
        "weights": weight_bytes(config, dtype),
        "pass": inference_bytes(config, batch=batch, context=length, dtype=dtype)["blocks"],
        "held": tokens * held * (config.core_layers + 2) * dtype.itemsize + batch * vocabulary * (config.core_layers + 3) * 4,
        "maps": maps,
        "numbers": numbers,
    }


def fitting_batch(config: LoopedConfig, *, batch: int, length: int, depth: int, dtype: torch.dtype, free: int) -> int:
    """Returns the largest batch up to `batch` whose estimate fits into `free` bytes beside the weights; 0 where none does."""

    def fits(size: int) -> bool:
        parts = trace_bytes(config, batch=size, length=length, depth=depth, dtype=dtype)
        return sum(parts.values()) - parts["weights"] <= free

    return next((size for size in range(batch, 0, -1) if fits(size)), 0)
