"""Llama 1 to 3.2, TinyLlama, SmolLM2 and their kin: pre-norm, rotary, optional biases everywhere."""

from __future__ import annotations

from typing import Any

from loopwright.convert.families.decoder import ALL_BIASES, PRE_NORM, TOP, read_decoder, write_decoder
from loopwright.convert.family import Family, name_table
from loopwright.convert.fields import Fields
from loopwright.model.config import LoopedConfig


def read_llama(fields: Fields) -> dict[str, Any]:
    """Returns our fields of a Llama config.json."""
    fields.demand("rope_interleaved", False)
    fields.demand("is_llama_config", True)
    fields.admit("max_sequence_length")
    return {
        **read_decoder(fields),
        "attention_bias": ALL_BIASES if fields.flag("attention_bias", False) else [],
        "mlp_bias": fields.flag("mlp_bias", False),
    }


def write_llama(config: LoopedConfig) -> dict[str, Any]:
    """Returns the config.json of a Llama."""
    return {**write_decoder(config), "attention_bias": bool(config.attention_bias), "mlp_bias": config.mlp_bias}


LLAMA = Family(
    name="llama",
    model_type="llama",
    architecture="LlamaForCausalLM",
    names=name_table({"prelude": "model.layers"}, TOP, PRE_NORM),
    read=read_llama,
    write=write_llama,
)
