"""What a model costs, from its config and a depth alone: parameters, FLOPs, cache bytes, activation bytes.

The model is built on the meta device, so that a preset of any size takes a moment and no memory. Who asks for several things
of one model builds it once, as its `skeleton`, and hands that in the place of its config.

The cost of a part is counted: it is run on the meta device, where tensors have shapes and no values. FLOPs are those of torch's own
counter. What a part keeps for the backward pass are the tensors that autograd saves, each storage
once, parameters apart. So a kind need not say what it costs, whoever wrote it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from loopwright.model.causal_lm import LoopedForCausalLM, plain_config
from loopwright.model.config import LoopedConfig
from loopwright.model.keys.cache import LoopCache
from loopwright.model.layers import build_norm
from loopwright.model.parts.adapters import build_adapters
from loopwright.model.parts.adapters.effects import BRANCHES, Adapter, map_shapes
from loopwright.model.parts.halting import HALTINGS
from loopwright.model.parts.part import StepIndex
from loopwright.model.passes import Adaptation, Pass, Place
from loopwright.schema import check_whole
from loopwright.untrusted import first_line

# a product that is added in place is one that torch's counter does not know
_IN_PLACE = {torch.ops.aten.addmm_: lambda y, a, b, out_shape=None, **_: 2 * a[0] * a[1] * b[1]}


@dataclass
class Cost:
    """FLOPs, and numbers kept for the backward pass."""

    flops: int = 0
    kept: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.flops + other.flops, self.kept + other.kept)

    def __sub__(self, other: Cost) -> Cost:
        return Cost(self.flops - other.flops, self.kept - other.kept)

    def times(self, runs: int) -> Cost:
        """Returns the cost of so many runs."""
        return Cost(runs * self.flops, runs * self.kept)


@dataclass
class Bench:
    """A skeleton with the tensors that its parts are run on: `rows` × `length` tokens."""

    model: LoopedForCausalLM
    rows: int
    length: int
    p: Pass = field(init=False)
    e: Tensor = field(init=False)

    def __post_init__(self) -> None:
        # the input alone is wanted, not what the prelude and its adapters do to it: of the plain model one layer is built, none run
        config = LoopedConfig(**{**plain_config(self.model.config).to_dict(), "prelude_layers": 1})
        with torch.device("meta"):
            ids, plain = torch.zeros(self.rows, self.length, dtype=torch.long), LoopedForCausalLM(config)
        plain.prelude = nn.ModuleList()
        self.e, self.p = plain.embed(ids)

    def fresh(self) -> Tensor:
        """Returns a tensor [B, T, D] that takes a gradient."""
        return torch.empty(self.e.shape, device="meta", requires_grad=True)

    def step_costs(self, depth: int) -> dict[str, Cost]:
        """Returns the cost of "injection", "gate" and "halting" over `depth` steps; all later steps cost what the second does."""
        if not depth:
            return {name: self._halting() if name == "halting" else Cost() for name in ("injection", "gate", "halting")}
        first = self._step(0)
        later = self._step(1) if depth > 1 else first
        return {name: cost + later[name].times(depth - 1) for name, cost in first.items()}

    def adapter_cost(self, adapter: Any, depth: int) -> Cost:
        """Returns the cost of an adapter where it stands, over the `depth` runs of the core, or one run of another stack."""
        if adapter.stack != "core":
            return self._adapted(adapter, 0)
        first = self._adapted(adapter, 0) if depth else Cost()
        return first + self._adapted(adapter, 1).times(depth - 1) if depth > 1 else first

    def norm_cost(self, norm: nn.Module, width: int, step: int | None = None) -> Cost:
        """Returns the cost of a norm of a width, at a step where it has weights per step; its input counts where it is kept."""
        x = torch.empty(self.rows, self.length, width, device="meta", requires_grad=True)
        return self._counted(f"norm ({type(norm).__name__})", lambda: norm(x) if step is None else norm(x, StepIndex(step, step)))

    def _step(self, t: int) -> dict[str, Cost]:
        model, index, s, new = self.model, self.model.step_index(t), self.fresh() + 0, self.fresh() + 0
        kinds = {name: f"{name} ({getattr(model.config, name)['kind']})" for name in ("injection", "gate", "halting")}
        made: dict[str, Tensor] = {}

        def inject() -> None:
            made["x"] = model.injection(s, self.e.detach().requires_grad_(), index)

        def mix() -> None:
            made["s"] = model.gate(s, new, index)

        # what the first layer takes in is counted with that layer's norm
        costs = {"injection": self._counted(kinds["injection"], inject, elsewhere=lambda: [made["x"]], apart=[self.e])}
        passes_on = made["x"] is s
        costs["gate"] = self._counted(kinds["gate"], mix, elsewhere=lambda: [s] if passes_on else [])
        after = made["s"] if made["s"].requires_grad else made["s"].detach().requires_grad_()
        if model.halting.mixes is not None:
            costs["halting"] = self._counted(kinds["halting"], lambda: model.halting.value(after))
        return {"halting": Cost(), **costs}

    def _halting(self) -> Cost:
        """The cost of halting in a model without a core, which has one state."""
        if self.model.halting.mixes is None:
            return Cost()
        s = self.fresh() + 0
        return self._counted(f"halting ({self.model.config.halting['kind']})", lambda: self.model.halting.value(s))

    def _adapted(self, adapter: Adapter, t: int) -> Cost:
        """What a stack costs with an adapter at a step, less what it costs without."""
        blocks = getattr(self.model, adapter.stack)
        index = self.model.step_index(t) if adapter.stack == "core" else StepIndex(0, 0)

        def run(adapt: Callable[[Tensor], Adaptation | None]) -> None:
            s = self.fresh() + 0
            effects = adapt(s)
            x = s if effects is None else effects.shift(s)
            for layer, block in enumerate(blocks):
                x = block(x, self.p, Place(adapter.stack, index, layer), effects)

        where = f"adapter ({type(adapter).__name__})"
        adapted = self._counted(where, lambda: run(lambda s: Adaptation([adapter.begin(index, s, self.p)])))
        return adapted - self._counted(where, lambda: run(lambda s: None))

    def _counted(
        self, where: str, run: Callable[[], Any], *, elsewhere: Callable[[], list[Tensor]] = list, apart: list[Tensor] | None = None
    ) -> Cost:
        """The cost of a call; what it keeps of `elsewhere` and `apart` is counted by others."""
        weights = {parameter.untyped_storage()._cdata for parameter in self.model.parameters()}
        try:
            with _counting() as (counter, kept):
                run()
        except (RuntimeError, NotImplementedError) as error:
            raise ValueError(
                f"cost: {where} cannot be counted: it looks at values, which are not there ({first_line(error)})"
            ) from None
        weights |= {tensor.untyped_storage()._cdata for tensor in [*elsewhere(), *(apart or [])]}
        # in units of the model's numbers: what is narrower (a mask) counts for as much as it takes
        numbers = sum(tensor.untyped_storage().nbytes() for key, tensor in kept.items() if key not in weights)
        return Cost(counter.get_total_flops(), numbers // self.e.element_size())


@contextmanager
def _counting() -> Iterator[tuple[FlopCounterMode, dict[int, Tensor]]]:
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept.setdefault(tensor.untyped_storage()._cdata, tensor)
        return tensor

    counter = FlopCounterMode(display=False, custom_mapping=_IN_PLACE)
    # the math kernel is made of plain products: every query meets every key
    with sdpa_kernel(SDPBackend.MATH), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), counter:
        yield counter, kept


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


Described = LoopedConfig | LoopedForCausalLM  # a model by its config, or its skeleton


def skeleton(of: Described) -> LoopedForCausalLM:
    """Returns the model of a config on the meta device: shapes and names, no values."""
    if isinstance(of, LoopedForCausalLM):
        return of
    with torch.device("meta"):
        return LoopedForCausalLM(of)


def parameters(of: Described) -> dict[str, Count]:
    """Returns the parameters by part, then in "total". A tied head has none of its own; frozen bases have their own row."""
    model = skeleton(of)
    config = model.config
    counts = {name: Count() for name in ("embedding", "positions", "prelude", "core", "coda", "norms", "step norms")}
    counts |= {name: Count() for name in ("injection", "state", *_kinds(config), "bases", "gate", "halting", "head")}
    total = Count()
    for name, parameter in model.named_parameters():  # each tied tensor appears once, under its first name
        part = _part_of(name, config)
        counts[part] = counts[part].plus(parameter)
        total = total.plus(parameter)
    return counts | {"total": total}


def _adapters(config: LoopedConfig) -> list[Adapter]:
    with torch.device("meta"):
        return build_adapters(config)


def _kinds(config: LoopedConfig) -> list[str]:
    return list(dict.fromkeys(spec["kind"] for spec in config.adapters))


def _part_of(name: str, config: LoopedConfig) -> str:
    top, _, rest = name.partition(".")
    if top == "adapters":
        index, _, inside = rest.partition(".")
        return "bases" if inside.startswith("bases.") else config.adapters[int(index)]["kind"]
    if top in ("end_norm", "layer_post_norm") and top not in config.step_tables:
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


def tensors(of: Described) -> list[TensorRow]:
    """Returns the state-dict table, in the order of the state dict."""
    first_names: dict[int, str] = {}
    rows = []
    for name, tensor in skeleton(of).state_dict(keep_vars=True).items():
        tied = first_names.setdefault(id(tensor), name)
        rows.append(TensorRow(name, tuple(tensor.shape), tensor.numel(), tensor.requires_grad, None if tied == name else tied))
    return rows


# FLOPs


def pass_flops(of: Described, *, depth: int | None = None, batch: int = 1, length: int = 1, cached: int = 0) -> dict[str, int]:
    """Returns the forward FLOPs of one pass over `batch` × `length` new tokens after `cached` ones, by part, then in "total".

    A multiplication and its addition are two FLOPs; only matrix products count. Attention is counted in full: every query
    meets every key up to the end of the pass, 4·T·N·H·K for each layer that runs (the causal half is half of that over a
    long pass). So a pass over T tokens costs T times what the last of them costs alone after a cache of T − 1. The
    exception forms something once per pass: the controller's "sequence" pooling, its style vector.
    The answer is read out once, from the last step, for every token.
    """
    model = skeleton(of)
    config = model.config
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
    }
    bench = Bench(model, batch, length)
    parts = bench.step_costs(steps)
    flops["injection"] = parts["injection"].flops
    for spec, adapter in zip(config.adapters, model.adapters, strict=True):
        flops[spec["kind"]] = flops.get(spec["kind"], 0) + bench.adapter_cost(adapter, steps).flops
    flops |= {name: parts[name].flops for name in ("gate", "halting")}
    flops["head"] = 2 * tokens * width * config.vocab_size
    return flops | {"total": sum(flops.values())}


def _linear_shapes(config: LoopedConfig) -> list[tuple[int, int]]:
    return [shape for name, shape in map_shapes(config).items() if name not in BRANCHES]


# bytes


def weight_bytes(config: LoopedConfig, dtype: torch.dtype) -> int:
    """Returns the bytes of the weights, each tied tensor once."""
    return _weight_bytes(parameters(config), dtype)


def _weight_bytes(counts: Mapping[str, Count], dtype: torch.dtype) -> int:
    return counts["total"].unique * dtype.itemsize


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
    widths = sum(runs[adapter.stack] * adapter.cached_numbers for adapter in _adapters(config))
    sums = tokens * widths * torch.promote_types(dtype, torch.float32).itemsize
    return {"keys and values": keys, "running sums": sums, "total": keys + sums}


def inference_bytes(config: LoopedConfig, *, batch: int = 1, context: int = 1, dtype: torch.dtype) -> dict[str, int]:
    """Returns an estimate of the most activation bytes alive at once in a forward pass: in its "blocks", at its "logits".

    Only one step is alive at a time, unless the model answers by more than its last step (`read_out`): then the states of all
    `depth` steps are, D each, or where steps answer their logits, V each. Per token, beside the weights and the cache,
        blocks = 5 D + max(m F, a H K + 2 Hk K − D)    (input, state, layer input, residual, normed; then MLP or attention)
        logits = 4 D + V                               (every token read out; generation reads out only the last)
    with m = 3 for SwiGLU and 2 otherwise, one more where an adapter makes its own update of a linear map, and a = 4 with rotary
    positions, 2 without; 2 D less without a core; a controller holds its diagonals too. Attention is taken not to form its T × N
    scores, as the flash and memory-efficient kernels do not.
    """
    width, streams, adapters = config.hidden_size, 5 if config.is_looped else 3, _adapters(config)
    inner = (3 if config.mlp == "swiglu" else 2) + int(any(adapter.second_output for adapter in adapters))
    heads = (4 if config.positions == "rotary" else 2) * config.num_attention_heads + 2 * config.num_key_value_heads
    held = sum(adapter.token_numbers for adapter in adapters)
    blocks = streams * width + max(inner * config.intermediate_size, heads * config.head_dim - width) + held
    kept = 0
    if config.read_out != "last":
        kept = (config.depth - 1) * (width if HALTINGS[config.halting["kind"]].mixes == "states" else config.vocab_size)
    number = batch * context * dtype.itemsize
    return {"blocks": number * (blocks + kept), "logits": number * ((streams - 1) * width + config.vocab_size + kept)}


def training_bytes(of: Described, *, depth: int | None = None, batch: int = 1, context: int = 1, dtype: torch.dtype) -> int:
    """Returns the activation bytes that a training pass keeps for its backward pass, all steps kept, no dropout.

    Per token and run of a layer, what the products, norms and activations save is
        2 D + 2 H K + 2 Hk K + m F + Σ norms,   m = 4 (SwiGLU), 2 (GELU) or 1 (ReLU); a norm 2 D (rms) or D (layer, simple)
    and H float32 numbers of the softmax. Per step come the loop's norms and what injection, gate, halting and adapters keep, which
    is counted. Once come D at the head, its norm, and V float32 log-probabilities.
    """
    model = skeleton(of)
    config = model.config
    steps = config.check_depth(depth) if config.is_looped else 0
    width, tokens = config.hidden_size, batch * context
    runs = config.prelude_layers + config.coda_layers + steps * config.core_layers
    bench = Bench(model, batch, context)
    shared = bench.norm_cost(_block_norm(config), width).kept
    loop = 0
    if config.end_norm in ("every", "per-step"):
        loop += bench.norm_cost(model.end_norm, width, 0 if config.end_norm == "per-step" else None).kept
    if config.layer_post_norm != "none":
        behind = model.layer_post_norm
        norms = list(behind) if isinstance(behind, nn.ModuleList) else [behind] * config.core_layers
        step = None if config.layer_post_norm == "shared" else 0
        loop += sum(bench.norm_cost(norm, width, step).kept for norm in norms)
    once = tokens * width + bench.norm_cost(model.norm, width).kept * (2 if config.end_norm == "last" else 1)
    once += shared if config.embedding_norm else 0
    if model.halting.reads == "before":
        loop += tokens * width  # what the layers take in, once more
    numbers = runs * _layer_kept(config, bench, shared) + steps * loop + once
    numbers += sum(cost.kept for cost in bench.step_costs(steps).values())
    numbers += sum(bench.adapter_cost(adapter, steps).kept for adapter in model.adapters)
    return numbers * dtype.itemsize + 4 * tokens * (runs * config.num_attention_heads + config.vocab_size)


def _block_norm(config: LoopedConfig) -> nn.Module:
    with torch.device("meta"):
        return build_norm(config.norm, config.hidden_size)


def _layer_kept(config: LoopedConfig, bench: Bench, norm: int) -> int:
    """The numbers that one run of a layer keeps, of which `norm` is what each of its norms does."""
    width, tokens = config.hidden_size, bench.rows * bench.length
    query, key = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    inner = {"swiglu": 4, "gelu": 2, "gelu_tanh": 2, "relu": 1}[config.mlp] * config.intermediate_size
    norms = 2 * len(config.norm_placement) * norm
    if config.qk_norm != "none":
        norms += norm * (query + key) // width
    return tokens * (2 * width + 2 * (query + key) + inner) + norms


# all of it


def survey(of: Described, *, depth: int | None, context: int | None, batch: int, dtype: torch.dtype, policy: str) -> dict[str, Any]:
    """Returns all of the above for one model, depth, batch and context, as plain data.

    FLOPs are those of one token at the end of the context, after a cache, and of a pass over batch × context tokens.
    """
    model = skeleton(of)
    config = model.config
    longest = config.max_position_embeddings
    context = min(DEFAULT_CONTEXT, longest) if context is None else context
    for name, value in (("context", context), ("batch", batch)):
        check_whole(name, value, 1)
    if config.positions == "learned" and context > longest:
        raise ValueError(f"context: {context}; learned positions end at max_position_embeddings={longest}")
    steps = config.check_depth(depth)
    one: dict[str, Any] = {"depth": depth, "policy": policy, "dtype": dtype}
    inference = inference_bytes(config, batch=batch, context=context, dtype=dtype)
    counts = parameters(model)
    forward = pass_flops(model, depth=depth, batch=batch, length=context)
    return {
        "depth": steps,
        "context": context,
        "batch": batch,
        "dtype": str(dtype).removeprefix("torch."),
        "policy": policy,
        "parameters": {part: vars(count) for part, count in counts.items()},
        "flops": {
            "token": pass_flops(model, depth=depth, cached=context - 1),
            "pass": forward,
            "training_pass": TRAINING_FACTOR * forward["total"],
        },
        "bytes": {
            "weights": _weight_bytes(counts, dtype),
            "cache_per_token": cache_bytes(config, **one),
            "cache": cache_bytes(config, batch=batch, context=context, **one),
            "activations_inference": {**inference, "peak": max(inference.values())},
            "activations_training": training_bytes(model, depth=depth, batch=batch, context=context, dtype=dtype),
        },
    }
