"""Qwen3 (dense): a Llama block with a norm on each head of q and k, and a head width of its own."""

from __future__ import annotations

from typing import Any

from loopwright.convert.families.decoder import ALL_BIASES, PRE_NORM, QK_NORM, TOP, read_decoder, write_decoder
from loopwright.convert.family import Family, name_table
from loopwright.convert.fields import Fields, read_window, write_window
from loopwright.model.config import LoopedConfig


def read_qwen3(fields: Fields) -> dict[str, Any]:
    """Returns our fields of a Qwen3 config.json."""
    found = read_decoder(fields, key_value_heads=32, head_dim=128)
    return {
        **found,
        "qk_norm": "head",
        "attention_bias": ALL_BIASES if fields.flag("attention_bias", False) else [],
        "sliding_window": read_window(fields, layers=found["prelude_layers"]),
    }


def write_qwen3(config: LoopedConfig) -> dict[str, Any]:
    """Returns the config.json of a Qwen3."""
    return {
        **write_decoder(config),
        **write_window(config.sliding_window, layers=config.prelude_layers),
        "attention_bias": bool(config.attention_bias),
    }


QWEN3 = Family(
    name="qwen3",
    model_type="qwen3",
    architecture="Qwen3ForCausalLM",
    names=name_table({"prelude": "model.layers"}, TOP, {**PRE_NORM, **QK_NORM}),
    read=read_qwen3,
    write=write_qwen3,
)
