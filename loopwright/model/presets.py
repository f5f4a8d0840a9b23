"""The published systems as configs. `NAME-tiny` is the same system at test size.

Sizes are those of the releases where there is one (ouro, huginn, retrofit, ouroboros, stars) and of the paper's or blog's
own script otherwise; each entry names its source.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from loopwright.schema import is_whole, merge, suggest

if TYPE_CHECKING:  # the table is plain data, so that a shell that completes a name does not wait for torch
    from loopwright.model.causal_lm import LoopedForCausalLM
    from loopwright.model.config import LoopedConfig

_LAYER = {"kind": "layer", "eps": 1e-5}
_RAVEN_STD = math.sqrt(2 / (5 * 5280))  # Huginn's, at Huginn's width: see state.huginn_std
_ALL_BIASES = ["q", "k", "v", "o"]

_OURO: dict[str, Any] = {
    "vocab_size": 49152, "hidden_size": 2048, "intermediate_size": 5632, "num_attention_heads": 16,
    "max_position_embeddings": 65536, "core_layers": 24, "depth": 4,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
    "norm_placement": ["input", "output"], "end_norm": "every", "final_norm": {"kind": "none"},
    "tie_word_embeddings": False, "halting": {"kind": "exit"},
}  # fmt: skip
_RETROFIT: dict[str, Any] = {
    "hidden_size": 2048, "num_attention_heads": 32, "prelude_layers": 4, "core_layers": 6, "coda_layers": 4, "depth": 32,
    "norm": {"kind": "rms", "eps": 1e-5}, "tie_word_embeddings": False,
    "injection": {"kind": "concat"}, "state": {"kind": "noise", "std": _RAVEN_STD}, "init": {"kind": "retrofit"},
}  # fmt: skip

PRESETS: dict[str, dict[str, Any]] = {
    # Dehghani et al. 2018 (arXiv 1807.03819) and tensor2tensor: one shared layer, norms behind branches as the paper draws them,
    # the size of tensor2tensor's small one (it calls 1,024, 4,096 and 16 heads base)
    "universal": {
        "vocab_size": 32768, "hidden_size": 512, "intermediate_size": 2048, "num_attention_heads": 8, "core_layers": 1,
        "depth": 6, "positions": "none", "attention_bias": _ALL_BIASES, "mlp": "relu", "mlp_bias": True, "norm": _LAYER,
        "norm_placement": ["residual"], "final_norm": {"kind": "none"}, "adapters": [{"kind": "sinusoidal", "first": 0}],
        "halting": {"kind": "universal-act"}, "read_out": "expected",
        "embedding_scale": math.sqrt(512), "init": {"kind": "tensor2tensor"},
    },
    # Zhu et al. 2025 (arXiv 2510.25741): the whole stack looped, sandwich norms, exit gate
    "ouro-1.4b": _OURO,
    "ouro-2.6b": {**_OURO, "core_layers": 48},
    # Geiping et al. 2025 (arXiv 2502.05171)
    "huginn": {
        "vocab_size": 65536, "hidden_size": 5280, "intermediate_size": 17920, "num_attention_heads": 55,
        "max_position_embeddings": 4096, "prelude_layers": 2, "core_layers": 4, "coda_layers": 2, "depth": 32,
        "rope_parameters": {"rope_type": "default", "rope_theta": 50_000.0}, "rope_layout": "interleaved",
        "attention_bias": ["q", "k"], "norm_placement": ["input", "residual"], "end_norm": "last",
        "embedding_scale": math.sqrt(5280), "injection": {"kind": "concat"},
        "state": {"kind": "noise", "scale": math.sqrt(5280)}, "init": {"kind": "takase"},
    },
    # McLeish et al. 2025 (arXiv 2511.07384): three converted models; no norm between core and coda
    "retrofit-llama-1b": {
        **_RETROFIT, "vocab_size": 128256, "intermediate_size": 8192, "num_key_value_heads": 8, "max_position_embeddings": 131072,
        "rope_parameters": {
            "rope_type": "llama3", "rope_theta": 500_000.0, "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    },
    "retrofit-olmo2-1b": {
        **_RETROFIT, "vocab_size": 100352, "intermediate_size": 8192, "num_attention_heads": 16, "max_position_embeddings": 4096,
        "norm": {"kind": "rms", "eps": 1e-6}, "norm_placement": ["output"], "qk_norm": "full",
        "rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0},
    },
    "retrofit-tinyllama": {
        **_RETROFIT, "vocab_size": 32000, "intermediate_size": 5632, "num_key_value_heads": 4, "core_layers": 8,
        "max_position_embeddings": 2048,
    },
    # the STARS study's addition transformer (arXiv 2605.26733), post-sandwich layout
    "stars-addition": {
        "vocab_size": 15, "hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 8, "core_layers": 1, "depth": 4,
        "max_position_embeddings": 512, "positions": "learned", "attention_bias": _ALL_BIASES, "mlp": "gelu", "mlp_bias": True,
        "norm": _LAYER, "norm_placement": ["input", "residual"], "dropout": 0.1,
    },
    # ASURA (blog of 2025-10, code neel04/ReAct_Jax): per-step projections, norms and adapters; ranks are ours, none are published
    "asura": {
        "vocab_size": 50304, "hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 8, "core_layers": 13,
        "depth": 3, "max_steps": 3, "max_position_embeddings": 512, "attention_bias": _ALL_BIASES, "mlp": "gelu_tanh",
        "mlp_bias": True, "norm": _LAYER, "end_norm": "per-step", "layer_post_norm": "per-step", "embedding_norm": True,
        "tie_word_embeddings": False, "head_bias": True, "injection": {"kind": "concat-per-step"},
        "adapters": [{"kind": "abba", "rank1": 8, "rank2": 8, "targets": "branches"}],
        "init": {"kind": "react"},
    },
    # Ouroboros V2 on Qwen2.5-3B, with causal pooling in place of the paper's
    "ouroboros-qwen2.5-3b": {
        "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 11008, "num_attention_heads": 16,
        "num_key_value_heads": 2, "max_position_embeddings": 32768, "prelude_layers": 8, "core_layers": 1, "coda_layers": 8,
        "depth": 8, "max_steps": 64, "beyond_max_steps": "repeat", "attention_bias": ["q", "k", "v"],
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}, "end_norm": "per-step",
        "gate": {"kind": "learned"},
        "adapters": [{"kind": "controller", "rank": 32, "alpha": 16.0, "style": 128, "init": "linear"}],
    },
    # Relaxed recursive transformers (Bae et al. 2024, arXiv 2410.20672) on TinyLlama shapes: 11 layers twice, LoRA per step
    "relaxed": {
        "vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 5632, "num_attention_heads": 32, "num_key_value_heads": 4,
        "max_position_embeddings": 2048, "core_layers": 11, "depth": 2, "max_steps": 2, "norm": {"kind": "rms", "eps": 1e-5},
        "tie_word_embeddings": False, "adapters": [{"kind": "low-rank", "rank": 64}],
    },
}  # fmt: skip

# presets whose published training leaves the pretrained layers as they are and trains what was put on them
PARTS_ALONE = ("ouroboros-qwen2.5-3b",)

SOURCES = {
    "universal": "Universal Transformer (Dehghani et al. 2018)",
    "ouro-1.4b": "Ouro 1.4B (Zhu et al. 2025)",
    "ouro-2.6b": "Ouro 2.6B (Zhu et al. 2025)",
    "huginn": "Huginn 3.5B (Geiping et al. 2025)",
    "retrofit-llama-1b": "retrofitted Llama-3.2-1B (McLeish et al. 2025)",
    "retrofit-olmo2-1b": "retrofitted OLMo-2-1B (McLeish et al. 2025)",
    "retrofit-tinyllama": "retrofitted TinyLlama (McLeish et al. 2025)",
    "stars-addition": "the STARS study's addition transformer (2026)",
    "asura": "ASURA (2025)",
    "ouroboros-qwen2.5-3b": "Ouroboros V2 on Qwen2.5-3B",
    "relaxed": "Relaxed Recursive Transformer on TinyLlama shapes (Bae et al. 2024)",
}

_TINY_RANKS = {"rank": 4, "rank1": 2, "rank2": 3, "style": 8}


def preset(name: str, **changes: Any) -> LoopedConfig:
    """Returns the config of a preset, or of its test-size form `NAME-tiny`, with changes laid over it."""
    from loopwright.model.config import LoopedConfig

    if not isinstance(name, str):
        raise TypeError(f"preset: must be a name such as 'asura' (got {type(name).__name__}); `loopwright presets` lists them")
    plain = name.removesuffix("-tiny")
    if plain not in PRESETS:
        raise ValueError(f"preset: unknown {name!r}; {suggest(name, PRESETS, '-tiny')} (each also as NAME-tiny)")
    fields = PRESETS[plain] if plain == name else _tiny(PRESETS[plain])
    config = _with_heads(_scaled(merge(fields, changes), changes), changes, fields["hidden_size"] // fields["num_attention_heads"])
    if "read_out" in fields and "read_out" not in changes and _mixes(config) != _mixes(fields):
        config["read_out"] = "last"  # the preset's is that of its own halting
    return LoopedConfig(**config)


def build(name: str, **changes: Any) -> LoopedForCausalLM:
    """Returns a freshly initialised model of a preset, with changes laid over it: `build("asura", hidden_size=256)`."""
    from loopwright.model.causal_lm import LoopedForCausalLM

    return LoopedForCausalLM(preset(name, **changes)).eval()


def _mixes(fields: Mapping[str, Any]) -> str | None:
    """Returns what the halting of these fields weights; None of one that is not known, too, which the config refuses."""
    from loopwright.model.parts.halting import HALTINGS

    halting = fields.get("halting")
    kind = HALTINGS.get(halting.get("kind", "none")) if isinstance(halting, Mapping) else None
    return None if kind is None else kind.mixes


def _tiny(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the same system at test size: every part kept, every size cut."""
    grouped = fields.get("num_key_value_heads", fields["num_attention_heads"]) < fields["num_attention_heads"]
    small = {
        "vocab_size": min(fields["vocab_size"], 96), "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4,
        "num_key_value_heads": 2 if grouped else 4, "max_position_embeddings": 128,
        "depth": min(fields["depth"], 4), "dropout": 0.0,
    }  # fmt: skip
    for stack in ("prelude_layers", "core_layers", "coda_layers"):
        small[stack] = min(fields.get(stack, 0), 2)
    if "max_steps" in fields:
        small["max_steps"] = min(fields["max_steps"], 6)
    if fields.get("adapters"):
        small["adapters"] = [{k: _TINY_RANKS.get(k, v) for k, v in a.items()} for a in fields["adapters"]]
    return _scaled(merge(fields, small), {})


def _is_width(value: Any) -> bool:
    from loopwright.model.config import MOST

    return is_whole(value, 1, MOST["hidden_size"])


def _scaled(fields: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns fields in which what a system scales by √D follows the width, where it is not given."""
    if not _is_width(fields["hidden_size"]):
        return fields  # the config says what is wrong
    root, state = math.sqrt(fields["hidden_size"]), given.get("state")
    if "embedding_scale" in fields and "embedding_scale" not in given:
        fields["embedding_scale"] = root
    if (
        isinstance(fields.get("state"), Mapping)
        and "scale" in fields["state"]
        and not (isinstance(state, Mapping) and "scale" in state)
    ):
        fields["state"] = {**fields["state"], "scale": root}
    return fields


def _with_heads(fields: dict[str, Any], given: Mapping[str, Any], size: int) -> dict[str, Any]:
    """Returns fields whose heads share the width: where it is given alone and is no even multiple of their number, the number
    for which a head is nearest to the preset's `size`."""
    width, heads = fields["hidden_size"], fields["num_attention_heads"]
    alone = not {"num_attention_heads", "num_key_value_heads", "head_dim"} & set(given)
    if not alone or not _is_width(width) or width % (2 * heads) == 0:
        return fields
    group = heads // fields.get("num_key_value_heads", heads)
    counts = [n for n in range(group, width // 2 + 1, group) if width % (2 * n) == 0]  # rotary positions turn pairs
    if counts:
        heads = min(counts, key=lambda n: abs(math.log(width / n / size)))
        fields["num_attention_heads"], fields["num_key_value_heads"] = heads, heads // group
    return fields
