"""Mistral: a Llama block without biases, with one sliding window for all layers or none."""

from __future__ import annotations

from typing import Any

from loopwright.convert.families.decoder import PRE_NORM, TOP, read_decoder, write_decoder
from loopwright.convert.family import Family, name_table
from loopwright.convert.fields import Fields
from loopwright.model.config import LoopedConfig


def read_mistral(fields: Fields) -> dict[str, Any]:
    """Returns our fields of a Mistral config.json; a null window means none, an absent one the 4,096 of the first release."""
    fields.demand("attention_bias", False)
    fields.demand("mlp_bias", False)
    window = fields.take("sliding_window", 4096)
    return {
        **read_decoder(fields, key_value_heads=8),
        "sliding_window": None if window is None else fields.whole("sliding_window", 4096),
    }


def write_mistral(config: LoopedConfig) -> dict[str, Any]:
    """Returns the config.json of a Mistral."""
    return {**write_decoder(config), "sliding_window": config.sliding_window}


MISTRAL = Family(
    name="mistral",
    model_type="mistral",
    architecture="MistralForCausalLM",
    names=name_table({"prelude": "model.layers"}, TOP, PRE_NORM),
    read=read_mistral,
    write=write_mistral,
)
