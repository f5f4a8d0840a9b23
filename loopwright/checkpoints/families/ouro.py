"""Ouro (arXiv 2510.25741): the whole stack looped, sandwich norms, the final norm at the end of every step, an exit gate."""

from __future__ import annotations

from typing import Any

from loopwright.checkpoints.families.dense import LINEARS, read_decoder, write_decoder
from loopwright.checkpoints.families.family import Family, Names, name_table
from loopwright.checkpoints.families.fields import Fields, read_window, write_window
from loopwright.model.config import LoopedConfig

TOP: dict[str, Names] = {
    "model.embed_tokens.weight": "embed_tokens.weight",
    "model.norm.weight": "end_norm.weight",
    "model.early_exit_gate.weight": "halting.proj.weight",
    "model.early_exit_gate.bias": "halting.proj.bias",
    "lm_head.weight": "lm_head.weight",
}
BLOCK: dict[str, Names] = {
    **LINEARS,
    "input_layernorm.weight": "attention_norms.input.weight",
    "input_layernorm_2.weight": "attention_norms.output.weight",
    "post_attention_layernorm.weight": "mlp_norms.input.weight",
    "post_attention_layernorm_2.weight": "mlp_norms.output.weight",
}


def read_ouro(fields: Fields) -> dict[str, Any]:
    """Returns our fields of an Ouro config.json; early releases lack the two loop fields."""
    fields.demand("early_exit_step")  # it would force one step on every pass; ask for `depth` instead
    fields.demand("attention_bias", False)
    fields.demand("mlp_bias", False)
    # of RLTT's fine-tunes: how their training saves memory
    fields.whole("rltt_logprob_chunk_size", 0, least=0)
    fields.flag("rltt_loop_level_checkpointing", False)
    config = read_decoder(fields, stack="core", theta=None)
    threshold = fields.number("early_exit_threshold", 1.0)
    return {
        **config,
        "depth": fields.whole("total_ut_steps", 4),
        "norm_placement": ["input", "output"],
        "end_norm": "every",
        "final_norm": {"kind": "none"},
        "halting": {"kind": "exit", "threshold": threshold},
        "read_out": "hub" if threshold < 1 else "last",  # the released code leaves there by default
        "sliding_window": read_window(fields, layers=config["core_layers"]),
    }


def write_ouro(config: LoopedConfig) -> dict[str, Any]:
    """Returns the config.json of an Ouro: a threshold below 1 where the model itself leaves there."""
    return {
        **write_decoder(config, stack="core"),
        **write_window(config.sliding_window, layers=config.core_layers),
        "total_ut_steps": config.depth,
        "early_exit_threshold": config.halting.get("threshold", 1.0) if config.read_out == "hub" else 1.0,
        "auto_map": {
            "AutoConfig": "configuration_ouro.OuroConfig",
            "AutoModel": "modeling_ouro.OuroModel",
            "AutoModelForCausalLM": "modeling_ouro.OuroForCausalLM",
        },
    }


OURO = Family(
    name="ouro",
    model_type="ouro",
    architecture="OuroForCausalLM",
    names=name_table({"core": "model.layers"}, TOP, BLOCK),
    read=read_ouro,
    write=write_ouro,
)
