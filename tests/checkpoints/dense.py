"""Tiny random dense models of every family that can be retrofitted, as transformers makes them and as we load them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, MistralConfig, Olmo2Config, PreTrainedModel, Qwen2Config, Qwen3Config

import loopwright as lw
from tests.checkpoints.parity import tiny

LAYERS = 6
FAMILIES: dict[str, tuple[type, dict[str, Any]]] = {
    "llama": (LlamaConfig, {"num_key_value_heads": 2}),
    "mistral": (MistralConfig, {"sliding_window": 8}),
    "qwen2": (Qwen2Config, {"tie_word_embeddings": True}),
    "qwen3": (Qwen3Config, {"head_dim": 8}),
    "olmo2": (Olmo2Config, {"num_key_value_heads": 2}),
}
IDS = torch.randint(2, 96, (2, 20), generator=torch.Generator().manual_seed(5))


@cache
def pair(family: str) -> tuple[PreTrainedModel, lw.LoopedForCausalLM]:
    """Returns a model of six layers as transformers runs it and as we load it; neither may be changed."""
    kind, changes = FAMILIES[family]
    theirs = tiny(kind, num_hidden_layers=LAYERS, **changes)
    with TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        return theirs, lw.load(Path(folder))


def source(family: str = "llama") -> lw.LoopedForCausalLM:
    """Returns the model of a family as we load it; it may not be changed."""
    return pair(family)[1]


@torch.no_grad()
def their_logits(family: str, layers: list[int]) -> Tensor:
    """Returns the logits of transformers' own model with these layers alone, in this order."""
    theirs = pair(family)[0]
    whole: nn.ModuleList = theirs.model.layers
    config = theirs.model.config
    kinds = getattr(config, "layer_types", None)
    try:
        theirs.model.layers = nn.ModuleList(whole[layer] for layer in layers)
        config.num_hidden_layers = len(layers)
        if kinds:
            config.layer_types = [kinds[layer] for layer in layers]
        return theirs(IDS, use_cache=False).logits
    finally:
        theirs.model.layers, config.num_hidden_layers = whole, LAYERS
        if kinds:
            config.layer_types = kinds
