"""Huginn-0125 (arXiv 2502.05171): post-sandwich norms, interleaved rotary, q/k biases, the final norm also before the coda."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from loopwright.convert.families.raven import LINEARS, STACKS, TOP, read_raven, write_raven
from loopwright.convert.family import Family, Names, Shape, name_table
from loopwright.convert.fields import Fields
from loopwright.model.config import LoopedConfig
from loopwright.model.layers.attention import inverse_frequencies

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
