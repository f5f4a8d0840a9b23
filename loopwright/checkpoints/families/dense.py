"""The dense families, each by what it changes of a Llama block.

All share the names of a block's tensors and most fields of config.json. llama: Llama 1 to 3.2, TinyLlama, SmolLM2 and their kin,
with optional biases everywhere. mistral: no biases, one sliding window for all layers or none. qwen2: Qwen2 and Qwen2.5, biases on
q, k and v. qwen3: a norm on each head of q and k, and a head width of its own. olmo2: norms on the outputs of the branches instead
of their inputs, and on the whole of q and k.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from loopwright.checkpoints.families.family import Family, Names, name_table
from loopwright.checkpoints.families.fields import Fields, read_rope, read_token_ids, read_window, write_rope, write_window
from loopwright.model.config import LoopedConfig
from loopwright.model.parts.init import INITS

ALL_BIASES = ["q", "k", "v", "o"]
TOP: dict[str, Names] = {
    "model.embed_tokens.weight": "embed_tokens.weight",
    "model.norm.weight": "norm.weight",
    "lm_head.weight": "lm_head.weight",
}
# biases and q/k norms are used where the config has them
LINEARS: dict[str, Names] = {
    f"{branch}.{name}.{kind}": f"{branch}.{name}.{kind}"
    for branch, names in (("self_attn", ("q_proj", "k_proj", "v_proj", "o_proj")), ("mlp", ("gate_proj", "up_proj", "down_proj")))
    for name in names
    for kind in ("weight", "bias")
}
PRE_NORM: dict[str, Names] = {
    **LINEARS,
    "input_layernorm.weight": "attention_norms.input.weight",
    "post_attention_layernorm.weight": "mlp_norms.input.weight",
}
QK_NORM: dict[str, Names] = {
    "self_attn.q_norm.weight": "self_attn.q_norm.weight",
    "self_attn.k_norm.weight": "self_attn.k_norm.weight",
}


def read_decoder(
    fields: Fields,
    *,
    stack: str = "prelude",
    key_value_heads: int | None = None,
    head_dim: int | None = None,
    theta: float | None = 10_000.0,
) -> dict[str, Any]:
    """Returns our fields for what every Llama-like config.json says, with the layers in `stack`.

    The keywords are what the family's own class takes where a field is absent; None means: derive it (heads, head width) or
    refuse (theta). A null count of key/value heads always means as many as heads.
    """
    width, heads = fields.whole("hidden_size"), fields.whole("num_attention_heads")
    positions = fields.whole("max_position_embeddings")
    if fields.take("num_key_value_heads", key_value_heads) is None:
        key_value_heads = heads
    fields.demand("hidden_act", "silu")
    fields.admit("attention_dropout")
    layers = {"prelude_layers": 0, "core_layers": 0, "coda_layers": 0, f"{stack}_layers": fields.layers("num_hidden_layers")}
    return {
        **layers,
        "depth": 1,
        "vocab_size": fields.whole("vocab_size"),
        "hidden_size": width,
        "intermediate_size": fields.whole("intermediate_size"),
        "num_attention_heads": heads,
        "num_key_value_heads": fields.whole("num_key_value_heads", key_value_heads),
        "head_dim": fields.whole("head_dim", head_dim or max(width // heads, 1)),
        "max_position_embeddings": positions,
        "rope_parameters": read_rope(fields, positions=positions, theta=theta),
        "norm": {"kind": "rms", "eps": fields.number("rms_norm_eps")},
        "tie_word_embeddings": fields.flag("tie_word_embeddings", False),
        **read_token_ids(fields),
    }


def write_decoder(config: LoopedConfig, *, stack: str = "prelude") -> dict[str, Any]:
    """Returns what every Llama-like config.json says of a model of ours."""
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": getattr(config, f"{stack}_layers"),
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_position_embeddings,
        **write_rope(config.rope_parameters),
        "rms_norm_eps": config.norm["eps"],
        "tie_word_embeddings": config.tie_word_embeddings,
        "hidden_act": "silu",
        "attention_dropout": 0.0,
        **({"initializer_range": config.initializer_range} if INITS[config.init["kind"]].reads_range else {}),
        "bos_token_id": config.bos_token_id,
        "eos_token_id": config.eos_token_id,
        "pad_token_id": config.pad_token_id,
    }


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
