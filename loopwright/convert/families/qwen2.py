"""Qwen2 and Qwen2.5: a Llama block with biases on q, k and v."""

from __future__ import annotations

from typing import Any

from loopwright.convert.families.decoder import PRE_NORM, TOP, read_decoder, write_decoder
from loopwright.convert.family import Family, name_table
from loopwright.convert.fields import Fields, read_window, write_window
from loopwright.model.config import LoopedConfig


def read_qwen2(fields: Fields) -> dict[str, Any]:
    """Returns our fields of a Qwen2 config.json."""
    fields.demand("use_mrope", False)
    found = read_decoder(fields, key_value_heads=32)
    return {**found, "attention_bias": ["q", "k", "v"], "sliding_window": read_window(fields, layers=found["prelude_layers"])}


def write_qwen2(config: LoopedConfig) -> dict[str, Any]:
    """Returns the config.json of a Qwen2."""
    return {**write_decoder(config), **write_window(config.sliding_window, layers=config.prelude_layers)}


QWEN2 = Family(
    name="qwen2",
    model_type="qwen2",
    architecture="Qwen2ForCausalLM",
    names=name_table({"prelude": "model.layers"}, TOP, PRE_NORM),
    read=read_qwen2,
    write=write_qwen2,
)
