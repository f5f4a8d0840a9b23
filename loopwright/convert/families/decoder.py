"""What the Llama-like families share: the names of a block's tensors and the fields of their config.json."""

from __future__ import annotations

from typing import Any

from loopwright.convert.family import Names
from loopwright.convert.fields import Fields, read_rope, read_token_ids, write_rope
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
