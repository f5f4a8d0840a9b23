"""OLMo-2: norms on the outputs of the branches instead of their inputs, and on the whole of q and k."""

from __future__ import annotations

from typing import Any

from loopwright.convert.families.decoder import ALL_BIASES, LINEARS, QK_NORM, TOP, read_decoder, write_decoder
from loopwright.convert.family import Family, Names, name_table
from loopwright.convert.fields import Fields
from loopwright.model.config import LoopedConfig

BLOCK: dict[str, Names] = {
    **LINEARS,
    **QK_NORM,
    "post_attention_layernorm.weight": "attention_norms.output.weight",
    "post_feedforward_layernorm.weight": "mlp_norms.output.weight",
}


def read_olmo2(fields: Fields) -> dict[str, Any]:
    """Returns our fields of an OLMo-2 config.json."""
    return {
        **read_decoder(fields),
        "norm_placement": ["output"],
        "qk_norm": "full",
        "attention_bias": ALL_BIASES if fields.flag("attention_bias", False) else [],
    }


def write_olmo2(config: LoopedConfig) -> dict[str, Any]:
    """Returns the config.json of an OLMo-2."""
    return {**write_decoder(config), "attention_bias": bool(config.attention_bias)}


OLMO2 = Family(
    name="olmo2",
    model_type="olmo2",
    architecture="Olmo2ForCausalLM",
    names=name_table({"prelude": "model.layers"}, TOP, BLOCK),
    read=read_olmo2,
    write=write_olmo2,
)
