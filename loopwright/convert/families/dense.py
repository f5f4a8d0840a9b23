"""The dense families, each by what it changes of a Llama block.

llama: Llama 1 to 3.2, TinyLlama, SmolLM2 and their kin, with optional biases everywhere. mistral: no biases, one sliding
window for all layers or none. qwen2: Qwen2 and Qwen2.5, biases on q, k and v. qwen3: a norm on each head of q and k, and a head
width of its own. olmo2: norms on the outputs of the branches instead of their inputs, and on the whole of q and k.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from loopwright.convert.families.decoder import ALL_BIASES, LINEARS, PRE_NORM, QK_NORM, TOP, read_decoder, write_decoder
from loopwright.convert.family import Family, Names, name_table
from loopwright.convert.fields import Fields, read_window, write_window
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


def read_qwen2(fields: Fields) -> dict[str, Any]:
    """Returns our fields of a Qwen2 config.json."""
    fields.demand("use_mrope", False)
    config = read_decoder(fields, key_value_heads=32)
    return {**config, "attention_bias": ["q", "k", "v"], "sliding_window": read_window(fields, layers=config["prelude_layers"])}


def write_qwen2(config: LoopedConfig) -> dict[str, Any]:
    """Returns the config.json of a Qwen2."""
    return {**write_decoder(config), **write_window(config.sliding_window, layers=config.prelude_layers)}


def read_qwen3(fields: Fields) -> dict[str, Any]:
    """Returns our fields of a Qwen3 config.json."""
    config = read_decoder(fields, key_value_heads=32, head_dim=128)
    return {
        **config,
        "qk_norm": "head",
        "attention_bias": ALL_BIASES if fields.flag("attention_bias", False) else [],
        "sliding_window": read_window(fields, layers=config["prelude_layers"]),
    }


def write_qwen3(config: LoopedConfig) -> dict[str, Any]:
    """Returns the config.json of a Qwen3."""
    return {
        **write_decoder(config),
        **write_window(config.sliding_window, layers=config.prelude_layers),
        "attention_bias": bool(config.attention_bias),
    }


_OLMO2_BLOCK: dict[str, Names] = {
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


def _dense(
    name: str,
    architecture: str,
    block: Mapping[str, Names],
    read: Callable[[Fields], dict[str, Any]],
    write: Callable[[LoopedConfig], dict[str, Any]],
) -> Family:
    names = name_table({"prelude": "model.layers"}, TOP, block)
    return Family(name=name, model_type=name, architecture=architecture, names=names, read=read, write=write)


LLAMA = _dense("llama", "LlamaForCausalLM", PRE_NORM, read_llama, write_llama)
MISTRAL = _dense("mistral", "MistralForCausalLM", PRE_NORM, read_mistral, write_mistral)
QWEN2 = _dense("qwen2", "Qwen2ForCausalLM", PRE_NORM, read_qwen2, write_qwen2)
QWEN3 = _dense("qwen3", "Qwen3ForCausalLM", {**PRE_NORM, **QK_NORM}, read_qwen3, write_qwen3)
OLMO2 = _dense("olmo2", "Olmo2ForCausalLM", _OLMO2_BLOCK, read_olmo2, write_olmo2)
