"""What a model costs, from its config and a depth alone: parameters, FLOPs, cache bytes, activation bytes.

The model is built on the meta device, so that a preset of any size takes a moment and no memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from loopwright.model.adapter import build_adapters
from loopwright.model.adapter.conditioned import Conditioned
from loopwright.model.adapter.cost import ADAPTER_COSTS
from loopwright.model.adapter.effects import BRANCHES, Adapter
from loopwright.model.adapter.target import map_shapes
from loopwright.model.cache import LoopCache
from loopwright.model.config import LoopedConfig
from loopwright.model.looped import LoopedForCausalLM
from loopwright.untrusted import shown

# a backward pass multiplies twice for each multiplication of the forward pass: by the weights and by the inputs
TRAINING_FACTOR = 3
DEFAULT_CONTEXT = 2048


@dataclass(frozen=True)
class Count:
    """Parameters of one part: all of them, each counted once, and those that train."""

    unique: int = 0
    trainable: int = 0

    def plus(self, parameter: nn.Parameter) -> Count:
        """Returns the count with one parameter more."""
        size = parameter.numel()
        return Count(self.unique + size, self.trainable + (size if parameter.requires_grad else 0))


@dataclass(frozen=True)
class TensorRow:
    """One tensor of the state dict; `tied_to` names the tensor it shares its storage with."""

    name: str
    shape: tuple[int, ...]
    parameters: int
    trainable: bool
    tied_to: str | None = None


def skeleton(config: LoopedConfig) -> LoopedForCausalLM:
    """Returns the model of a config on the meta device: shapes and names, no values."""
    with torch.device("meta"):
        return LoopedForCausalLM(config)


def parameters(config: LoopedConfig) -> dict[str, Count]:
    """Returns the parameters by part, then in "total". A tied head has none of its own; frozen bases have their own row."""
    counts = {name: Count() for name in ("embedding", "positions", "prelude", "core", "coda", "norms", "step norms")}
    counts |= {name: Count() for name in ("injection", "state", *_kinds(config), "bases", "gate", "halting", "head")}
    total = Count()
    for name, parameter in skeleton(config).named_parameters():  # each tied tensor appears once, under its first name
        part = _part_of(name, config)
        counts[part] = counts[part].plus(parameter)
        total = total.plus(parameter)
    return counts | {"total": total}


def _adapters(config: LoopedConfig) -> list[tuple[str, Adapter]]:
    with torch.device("meta"):
        return [(spec["kind"], adapter) for spec, adapter in zip(config.adapters, build_adapters(config), strict=True)]


def _kinds(config: LoopedConfig) -> list[str]:
    return list(dict.fromkeys(spec["kind"] for spec in config.adapters))


def _part_of(name: str, config: LoopedConfig) -> str:
    top, _, rest = name.partition(".")
    if top == "adapters":
        index, _, inside = rest.partition(".")
        return "bases" if inside.startswith("bases.") else config.adapters[int(index)]["kind"]
    if top == "end_norm" and config.end_norm != "per-step":
        return "norms"
    return _PART_NAMES.get(top, top)


_PART_NAMES = {
    "embed_tokens": "embedding",
    "embed_positions": "positions",
    "embed_norm": "norms",
    "norm": "norms",
    "end_norm": "step norms",
    "layer_post_norm": "step norms",
    "lm_head": "head",
}


def tensors(config: LoopedConfig) -> list[TensorRow]:
    """Returns the state-dict table, in the order of the state dict."""
    model = skeleton(config)
    first_names: dict[int, str] = {}
    rows = []
    for name, tensor in model.state_dict(keep_vars=True).items():
        tied = first_names.setdefault(id(tensor), name)
        rows.append(TensorRow(name, tuple(tensor.shape), tensor.numel(), tensor.requires_grad, None if tied == name else tied))
    return rows


# FLOPs


def pass_flops(
    config: LoopedConfig, *, depth: int | None = None, batch: int = 1, length: int = 1, cached: int = 0
) -> dict[str, int]:
    """Returns the forward FLOPs of one pass over `batch` × `length` new tokens after `cached` ones, by part, then in "total".

    A multiplication and its addition are two FLOPs; only matrix products count. Attention is counted in full: every query
    meets every key up to the end of the pass, 4·T·N·H·K for each layer that runs (the causal half is half of that over a
    long pass). So a pass over T tokens costs T times what the last of them costs alone after a cache of T − 1. The two
    exceptions form something once per pass: HiRA its W ⊙ BA, the controller's "sequence" pooling its style vector.
    The answer is read out once, from the last step, for every token.
    """
    steps = config.check_depth(depth) if config.is_looped else 0
    tokens, width = batch * length, config.hidden_size
    block = 2 * tokens * sum(out * inner for out, inner in _linear_shapes(config))
    runs = config.prelude_layers + config.coda_layers + steps * config.core_layers
    query = config.num_attention_heads * config.head_dim
    flops = {
        "prelude": block * config.prelude_layers,
        "core": block * config.core_layers * steps,
        "coda": block * config.coda_layers,
        "attention": 4 * tokens * (cached + length) * query * runs,
        "injection": 2 * tokens * steps * _known("injection", _INJECTION_MACS, config.injection["kind"]) * width**2,
    }
    for kind, adapter in _adapters(config):
        cost, _ = _known("adapter", ADAPTER_COSTS, kind)(adapter, batch, length)
        flops[kind] = flops.get(kind, 0) + _runs(adapter, steps) * cost
    flops["gate"] = 4 * tokens * _gated_steps(config, steps) * width**2
    flops["halting"] = 2 * tokens * max(steps, 1) * width if config.halting["kind"] != "none" else 0
    flops["head"] = 2 * tokens * width * config.vocab_size
    return flops | {"total": sum(flops.values())}


def _runs(adapter: Adapter, steps: int) -> int:
    """Returns how often an adapter acts in a pass of so many steps."""
    return steps if adapter.stack == "core" else 1


def _gated_steps(config: LoopedConfig, steps: int) -> int:
    """Returns at how many of the steps the gate multiplies."""
    return _known("gate", {"none": 0, "mix": 0, "learned": steps, "grown": max(steps - 1, 0)}, config.gate["kind"])


def training_flops(config: LoopedConfig, *, depth: int | None = None, batch: int = 1, length: int = 1) -> int:
    """Returns the FLOPs of one forward and backward pass with gradients through every step and one read-out."""
    return TRAINING_FACTOR * pass_flops(config, depth=depth, batch=batch, length=length)["total"]


# multiplications per token and step, in units of D²
_INJECTION_MACS = {"none": 0, "add": 0, "concat": 2, "concat-per-step": 2, "diagonal": 1}


def _known(place: str, table: Mapping[str, Any], kind: str) -> Any:
    """Returns the entry of a kind; one that was added to the models and not here is refused: its cost would be a guess."""
    if kind not in table:
        raise ValueError(f"cost: nothing is known of the {place} {shown(kind)}; known: {', '.join(sorted(table))}")
    return table[kind]


def _linear_shapes(config: LoopedConfig) -> list[tuple[int, int]]:
    return [shape for name, shape in map_shapes(config).items() if name not in BRANCHES]


# bytes


def weight_bytes(config: LoopedConfig, dtype: torch.dtype) -> int:
    """Returns the bytes of the weights, each tied tensor once."""
    return parameters(config)["total"].unique * dtype.itemsize


def cache_bytes(
    config: LoopedConfig,
    *,
    depth: int | None = None,
    batch: int = 1,
    context: int = 1,
    policy: str = "every",
    readings: int = 1,
    dtype: torch.dtype,
) -> dict[str, int]:
    """Returns the bytes a LoopCache of `batch` × `context` tokens holds: "keys and values", "running sums" and "total".

    A slot per prelude layer, per core layer of each step kept by the policy and per coda layer of each reading, with 2·Hk·K
    numbers per token. There is one reading unless step logits are asked for (`output_steps`, or a `select` that mixes logits):
    then there are as many as steps. The controller's prefix and chunk pooling add 2·style running sums per token and step or
    reading, in float32 at least.
    """
    steps = config.check_depth(depth) if config.is_looped else 0
    share = LoopCache(config, policy=policy).share
    steps, readings = (n if share is None else min(n, share) for n in (steps, readings))
    slots = config.prelude_layers + readings * config.coda_layers + steps * config.core_layers
    tokens = batch * context
    keys = 2 * slots * tokens * config.num_key_value_heads * config.head_dim * dtype.itemsize
    runs = {"prelude": 1, "core": steps, "coda": readings}
    widths: list[int] = [runs[a.stack] * a.state_proj.out_features for _, a in _adapters(config) if _keeps_sums(a)]
    sums = tokens * sum(widths) * torch.promote_types(dtype, torch.float32).itemsize
    return {"keys and values": keys, "running sums": sums, "total": keys + sums}


def _keeps_sums(adapter: Adapter) -> bool:
    return isinstance(adapter, Conditioned) and adapter.pooling in ("prefix", "chunk")


def inference_bytes(config: LoopedConfig, *, batch: int = 1, context: int = 1, dtype: torch.dtype) -> dict[str, int]:
    """Returns an estimate of the most activation bytes alive at once in a forward pass: in its "blocks", at its "logits".

    It does not depend on the depth: only one step is alive at a time. Per token, beside the weights and the cache,
        blocks = 5 D + max(m F, a H K + 2 Hk K − D)    (input, state, layer input, residual, normed; then MLP or attention)
        logits = 4 D + V                               (every token read out; generation reads out only the last)
    with m = 3 for SwiGLU and 2 otherwise, one more where an adapter makes its own update of a linear map, and a = 4 with rotary
    positions, 2 without; 2 D less without a core; a controller holds its diagonals too. Attention is taken not to form its T × N
    scores, as the flash and memory-efficient kernels do not.
    """
    width, streams = config.hidden_size, 5 if config.is_looped else 3
    inner = (3 if config.mlp == "swiglu" else 2) + int(any(kind not in _IN_PLACE for kind in _kinds(config)))
    heads = (4 if config.positions == "rotary" else 2) * config.num_attention_heads + 2 * config.num_key_value_heads
    diagonals = sum(a.heads.shape[0] for _, a in _adapters(config) if _predicts_per_token(a))
    blocks = streams * width + max(inner * config.intermediate_size, heads * config.head_dim - width) + diagonals
    number = batch * context * dtype.itemsize
    return {"blocks": number * blocks, "logits": number * ((streams - 1) * width + config.vocab_size)}


def _predicts_per_token(adapter: Adapter) -> bool:
    return isinstance(adapter, Conditioned) and adapter.pooling != "sequence"


# adapters that make no second output of a linear map: signals, and what is added in place
_IN_PLACE = ("sinusoidal", "step-embedding", "diagonal", "controller", "basis-controller")


def training_bytes(config: LoopedConfig, *, depth: int | None = None, batch: int = 1, context: int = 1, dtype: torch.dtype) -> int:
    """Returns the activation bytes that a training pass keeps for its backward pass, all steps kept, no dropout.

    Per token and run of a layer, what the products, norms and activations save is
        2 D + 2 H K + 2 Hk K + m F + Σ norms,   m = 4 (SwiGLU), 2 (GELU) or 1 (ReLU); a norm 2 D (rms) or D (layer, simple)
    and H float32 numbers of the softmax. Per step come the loop's norms, 2 D of a concatenated or diagonal injection, 5 D of
    a gate that learns, D of a halting head, and the adapters' inner values. Once come D at the head, its norm, and V float32
    log-probabilities.
    """
    steps = config.check_depth(depth) if config.is_looped else 0
    width, tokens = config.hidden_size, batch * context
    runs = config.prelude_layers + config.coda_layers + steps * config.core_layers
    shared, per_step = _norm_kept(config.norm["kind"], width), _norm_kept(config.norm["kind"], width, steps=True)
    loop = 2 * width * (config.injection["kind"] not in ("none", "add"))
    loop += width if config.halting["kind"] != "none" else 0
    loop += {"every": shared, "per-step": per_step}.get(config.end_norm, 0)
    loop += config.core_layers * per_step if config.layer_post_norm == "per-step" else 0
    once = width + _norm_kept(config.final_norm["kind"], width) * (2 if config.end_norm == "last" else 1)
    once += shared if config.embedding_norm else 0
    numbers = tokens * (runs * _layer_kept(config) + steps * loop + _gated_steps(config, steps) * 5 * width + once)
    for kind, adapter in _adapters(config):
        _, kept = _known("adapter", ADAPTER_COSTS, kind)(adapter, batch, context)
        numbers += _runs(adapter, steps) * kept
    return numbers * dtype.itemsize + 4 * tokens * (runs * config.num_attention_heads + config.vocab_size)


def _layer_kept(config: LoopedConfig) -> int:
    width, kind = config.hidden_size, config.norm["kind"]
    query, key = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    inner = _known("mlp", {"swiglu": 4, "gelu": 2, "gelu_tanh": 2, "relu": 1}, config.mlp) * config.intermediate_size
    norms = 2 * len(config.norm_placement) * _norm_kept(kind, width)
    if config.qk_norm != "none":
        norms += _norm_kept(kind, query + key)
    return 2 * width + 2 * (query + key) + inner + norms


def _norm_kept(kind: str, width: int, *, steps: bool = False) -> int:
    """Returns the numbers a norm keeps: its input, and the scaled one where a weight multiplies it apart."""
    return _known("norm", {"none": 0, "simple": width, "rms": 2 * width, "layer": 2 * width if steps else width}, kind)


# all of it


def survey(
    config: LoopedConfig, *, depth: int | None, context: int | None, batch: int, dtype: torch.dtype, policy: str
) -> dict[str, Any]:
    """Returns all of the above for one model, depth, batch and context, as plain data.

    FLOPs are those of one token at the end of the context, after a cache, and of a pass over batch × context tokens.
    """
    longest = config.max_position_embeddings
    context = min(DEFAULT_CONTEXT, longest) if context is None else context
    for name, value in (("context", context), ("batch", batch)):
        if value < 1:
            raise ValueError(f"{name}: {value}; allowed: a whole number of at least 1")
    if config.positions == "learned" and context > longest:
        raise ValueError(f"context: {context}; learned positions end at max_position_embeddings={longest}")
    steps = config.check_depth(depth)
    one = {"depth": depth, "policy": policy, "dtype": dtype}
    inference = inference_bytes(config, batch=batch, context=context, dtype=dtype)
    return {
        "depth": steps,
        "context": context,
        "batch": batch,
        "dtype": str(dtype).removeprefix("torch."),
        "policy": policy,
        "parameters": {part: vars(count) for part, count in parameters(config).items()},
        "flops": {
            "token": pass_flops(config, depth=depth, cached=context - 1),
            "pass": pass_flops(config, depth=depth, batch=batch, length=context),
            "training_pass": training_flops(config, depth=depth, batch=batch, length=context),
        },
        "bytes": {
            "weights": weight_bytes(config, dtype),
            "cache_per_token": cache_bytes(config, **one),
            "cache": cache_bytes(config, batch=batch, context=context, **one),
            "activations_inference": {**inference, "peak": max(inference.values())},
            "activations_training": training_bytes(config, depth=depth, batch=batch, context=context, dtype=dtype),
        },
    }
