"""Retrofitted recurrence (arXiv 2511.07384): Llama, TinyLlama or OLMo-2 blocks under Raven's names; no norm before the coda."""

from __future__ import annotations

from typing import Any

from loopwright.convert.families.raven import LINEARS, STACKS, TOP, read_raven, write_raven
from loopwright.convert.family import Family, Names, name_table
from loopwright.convert.fields import Fields, read_rope, write_rope
from loopwright.model.config import LoopedConfig

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
