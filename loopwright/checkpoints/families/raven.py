"""What Huginn and the retrofitted models share: Raven's tensor names and the fields of its config.json.

- Huginn-0125 (arXiv 2502.05171): post-sandwich norms, interleaved rotary, q/k biases, the final norm also before the coda.
- Retrofitted recurrence (arXiv 2511.07384): Llama, TinyLlama or OLMo-2 blocks under Raven's names; no norm before the coda.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from loopwright.checkpoints.families.family import Family, Names, Shape, name_table
from loopwright.checkpoints.families.fields import Fields, read_rope, read_token_ids, write_rope
from loopwright.model.config import LoopedConfig
from loopwright.model.layers import inverse_frequencies
from loopwright.model.parts.init import INITS, init_of
from loopwright.model.parts.state import huginn_std

STACKS = {"prelude": "transformer.prelude", "core": "transformer.core_block", "coda": "transformer.coda"}
TOP: dict[str, Names] = {
    "transformer.wte.weight": "embed_tokens.weight",
    "transformer.adapter.weight": "injection.proj.weight",
    "transformer.ln_f.weight": "norm.weight",
    "lm_head.weight": "lm_head.weight",
}
LINEARS: dict[str, Names] = {
    "attn.Wqkv.weight": ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"),
    "attn.proj.weight": "self_attn.o_proj.weight",
    "mlp.fc.weight": ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
    "mlp.proj.weight": "mlp.down_proj.weight",
}
# one value each in every release; another one names a different architecture
_CONSTANTS: dict[str, Any] = {
    "architecture_class_name": "RecurrentGPT",
    "block_class_name": "SandwichBlock",
    "norm_class_name": "RMSNorm_llama",
    "mlp_class_name": "GatedMLP",
    "nonlin_name": "SiLU",
    "injection_type": "linear",
    "state_init": "like-init",
    "bias": False,
    "test_time_noise": 0,
}
# how it was trained, or derived from other fields
_TRAINING: dict[str, Any] = {
    "init_orthogonal": False,
    "sampling_scheme": "poisson-lognormal-filling",
    "mean_backprop_depth": 8,
    "activation_checkpoint_impl": "per-iteration",
    "test_time_noise_type": "fixed",
}


def read_raven(fields: Fields) -> dict[str, Any]:
    """Returns our fields for what Huginn and the retrofitted models both say; the JSON wins over what Raven's class derives."""
    for name, value in _CONSTANTS.items():
        fields.demand(name, value)
    # tie_word_embeddings: Raven's class overwrites it by tie_embeddings
    fields.admit(*_TRAINING, "effective_expected_depth", "padding_multiple", "tie_word_embeddings")
    width, heads = fields.whole("n_embd"), fields.whole("n_heads")
    fields.demand("hidden_size", width)
    fields.demand("num_attention_heads", heads)
    stacks = {
        "prelude_layers": fields.layers("n_layers_in_prelude", least=0),
        "core_layers": fields.layers("n_layers_in_recurrent_block"),
        "coda_layers": fields.layers("n_layers_in_coda", least=0),
    }
    fields.demand("n_layers", sum(stacks.values()))
    fields.demand("num_hidden_layers", sum(stacks.values()))
    start = fields.section("init_values")
    scale = fields.positive("init_values.embed_scale", start.get("embed_scale"))
    strategy = fields.take("init_strategy", "takase")  # the default of Raven's class
    return {
        **stacks,
        "depth": fields.whole("mean_recurrence"),
        "vocab_size": fields.whole("padded_vocab_size", fields.whole("vocab_size")),
        "hidden_size": width,
        "intermediate_size": fields.whole("intermediate_size"),
        "num_attention_heads": heads,
        "num_key_value_heads": fields.whole("num_key_value_heads", heads),
        "head_dim": fields.whole("head_dim", max(width // heads, 1)),
        "norm": {"kind": "rms", "eps": fields.number("norm_eps")},
        "tie_word_embeddings": fields.flag("tie_embeddings", True),
        "embedding_scale": scale,
        "init": {"kind": strategy if isinstance(strategy, str) and strategy in INITS else "normal"},
        "injection": {"kind": "concat"},
        "state": {"kind": "noise", "std": fields.positive("init_values.std", start.get("std")), "scale": scale},
        **read_token_ids(fields),
    }


def write_raven(config: LoopedConfig) -> dict[str, Any]:
    """Returns what a Raven config.json says of a model of ours."""
    layers = config.prelude_layers + config.core_layers + config.coda_layers
    deep = config.num_hidden_layers
    std = config.state.get("std") or huginn_std(config.hidden_size)
    init = init_of(config)
    return {
        **_CONSTANTS,
        **_TRAINING,
        "n_embd": config.hidden_size,
        "n_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.intermediate_size,
        "vocab_size": config.vocab_size,
        "padded_vocab_size": config.vocab_size,
        "padding_multiple": 4096,
        "n_layers": layers,
        "n_layers_in_prelude": config.prelude_layers,
        "n_layers_in_recurrent_block": config.core_layers,
        "n_layers_in_coda": config.coda_layers,
        "mean_recurrence": config.depth,
        "init_strategy": config.init["kind"],
        "effective_expected_depth": deep,
        "norm_eps": config.norm["eps"],
        "tie_embeddings": config.tie_word_embeddings,
        "init_values": {
            "std": std,
            "embedding": init.table(config.hidden_size).std,
            "out_proj": init.residual(config.intermediate_size, config.hidden_size).std,
            "embed_scale": config.embedding_scale,
        },
        "bos_token_id": config.bos_token_id,
        "eos_token_id": config.eos_token_id,
        "pad_token_id": config.pad_token_id,
        "auto_map": {
            "AutoConfig": "raven_config_minimal.RavenConfig",
            "AutoModelForCausalLM": "raven_modeling_minimal.RavenForCausalLM",
        },
    }


BLOCK: dict[str, Names] = {
    **LINEARS,
    "attn.qk_bias": ("self_attn.q_proj.bias", "self_attn.k_proj.bias"),
    "norm_1.weight": "attention_norms.input.weight",
    "norm_2.weight": "attention_norms.residual.weight",
    "norm_3.weight": "mlp_norms.input.weight",
    "norm_4.weight": "mlp_norms.residual.weight",
}


def read_huginn(fields: Fields) -> dict[str, Any]:
    """Returns our fields of Huginn's config.json."""
    return {
        **read_raven(fields),
        "max_position_embeddings": fields.whole("block_size"),
        "rope_parameters": {"rope_type": "default", "rope_theta": fields.number("rope_base")},
        "rope_layout": "interleaved",
        "attention_bias": ["q", "k"] if fields.flag("qk_bias", True) else [],
        "norm_placement": ["input", "residual"],
        "end_norm": "last",
    }


def write_huginn(config: LoopedConfig) -> dict[str, Any]:
    """Returns the config.json of a Huginn."""
    return {
        **write_raven(config),
        "block_size": config.max_position_embeddings,
        "rope_base": config.rope_parameters.get("rope_theta"),
        "qk_bias": bool(config.attention_bias),
    }


def bias_shape(config: LoopedConfig) -> Shape:
    """Returns the shape in which the release stores the biases of q and k together."""
    assert config.head_dim is not None
    return (2, 1, config.num_attention_heads, config.head_dim)


def rotary_table(config: LoopedConfig) -> Tensor:
    """Returns the cosines and sines that the release stores, [1, positions, 1, K/2, 2]."""
    frequencies, _ = inverse_frequencies(config, torch.device("cpu"))
    angle = torch.arange(config.max_position_embeddings)[:, None] * frequencies
    return torch.stack([angle.cos(), angle.sin()], dim=-1)[None, :, None].contiguous()


HUGINN = Family(
    name="huginn",
    model_type="huginn_raven",
    architecture="RavenForCausalLM",
    names=name_table(STACKS, TOP, BLOCK),
    read=read_huginn,
    write=write_huginn,
    mark=".norm_3.",
    shapes={"attn.qk_bias": bias_shape},
    derived={"freqs_cis": rotary_table},
    stores_tied_head=True,
)


LLAMA_BLOCK: dict[str, Names] = {
    **LINEARS,
    "norm_1.weight": "attention_norms.input.weight",
    "norm_2.weight": "mlp_norms.input.weight",
}
OLMO2_BLOCK: dict[str, Names] = {
    **LINEARS,
    "norm_1.weight": "attention_norms.output.weight",
    "norm_2.weight": "mlp_norms.output.weight",
    "attn.q_norm.weight": "self_attn.q_norm.weight",
    "attn.k_norm.weight": "self_attn.k_norm.weight",
}


def read_retrofit(fields: Fields) -> dict[str, Any]:
    """Returns our fields of a retrofitted model's config.json; its rope_base and block_size are left over from Raven."""
    fields.demand("qk_bias", False)
    fields.admit("rope_base", "block_size")
    positions = fields.whole("max_position_embeddings")
    return {
        **read_raven(fields),
        "max_position_embeddings": positions,
        "rope_parameters": read_rope(fields, positions=positions),
    }


def read_retrofit_olmo2(fields: Fields) -> dict[str, Any]:
    """Returns the same for the OLMo-2 flavour."""
    return {**read_retrofit(fields), "norm_placement": ["output"], "qk_norm": "full"}


def write_retrofit(config: LoopedConfig) -> dict[str, Any]:
    """Returns the config.json of a retrofitted model."""
    return {
        **write_raven(config),
        "max_position_embeddings": config.max_position_embeddings,
        "block_size": config.max_position_embeddings,
        "rope_base": config.rope_parameters.get("rope_theta"),
        **write_rope(config.rope_parameters),
        "qk_bias": False,
    }


RETROFIT_OLMO2 = Family(
    name="retrofit-olmo2",
    model_type="huginn_raven",
    architecture="RavenForCausalLM",
    names=name_table(STACKS, TOP, OLMO2_BLOCK),
    read=read_retrofit_olmo2,
    write=write_retrofit,
    mark=".attn.q_norm.",
)
RETROFIT_LLAMA = Family(
    name="retrofit-llama",
    model_type="huginn_raven",
    architecture="RavenForCausalLM",
    names=name_table(STACKS, TOP, LLAMA_BLOCK),
    read=read_retrofit,
    write=write_retrofit,
)
