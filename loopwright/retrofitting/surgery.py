"""The conversion of a dense model into a looped one: its layers are copied into three stacks, and parts are put on them.

The source stays as it is and shares no tensor with what is made. The parts start themselves, from the seed alone, and their
bases from what the layers that were removed differ by (start.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from loopwright.checkpoints.adapters import divided
from loopwright.checkpoints.load import empty_model
from loopwright.checkpoints.source import load
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.config import LoopedConfig
from loopwright.model.parts.gate import GATES
from loopwright.model.parts.injection import INJECTIONS
from loopwright.model.passes import STACKS
from loopwright.retrofitting.layout import Layout, find_layout, stepwise
from loopwright.retrofitting.start import Reconstruction, check_ranks, input_scales, start_bases
from loopwright.retrofitting.systems import PARTS, RetrofitPlan, make_plan
from loopwright.schema import check_whole

# the modules that start fresh, beside the adapters
_FRESH = ("state", "injection", "adapters", "gate", "halting", "end_norm", "layer_post_norm")


@dataclass(frozen=True)
class Conversion:
    """A converted model, the layers it was made from, and how well the adapters' bases give what was removed."""

    model: LoopedForCausalLM
    layout: Layout
    reconstructions: list[Reconstruction]


def retrofit(
    source: LoopedForCausalLM | str | Path,
    system: str = "ouroboros-identity",
    *,
    prelude: int | Sequence[int] | None = None,
    core: int | Sequence[int] | None = None,
    coda: int | Sequence[int] | None = None,
    seed: int = 0,
    input_ids: Tensor | None = None,
    **changes: Any,
) -> LoopedForCausalLM:
    """Makes a dense model, given as a model, folder or hub id, into the looped model of a named system.

    `prelude`, `core` and `coda` choose layers: how many first ones, a list, how many last ones. `changes` override the system:
    `layout`, `start`, `bases`, `depth`, and the parts as a config has them. `input_ids` are the text for weighted bases.
    """
    plan = make_plan(system, {**changes, "prelude": prelude, "core": core, "coda": coda})
    dense = source if isinstance(source, LoopedForCausalLM) else load(source)
    return convert(dense, plan, seed=seed, input_ids=input_ids).model


def convert(source: LoopedForCausalLM, plan: RetrofitPlan, *, seed: int = 0, input_ids: Tensor | None = None) -> Conversion:
    """Returns the looped model that a plan makes of a dense one; the seed alone decides what starts at random.

    `input_ids` [B, T] are what weighted bases are weighted on.
    """
    layers = source_layers(source)
    _check_given(plan, seed, input_ids)
    _check_finite(source)
    layout = _started_layout(plan, len(layers))
    model = empty_model(_config(source.config, layout, plan))
    for index, adapter in enumerate(model.adapters):
        check_ranks(f"adapters[{index}] ({model.config.adapters[index]['kind']})", adapter)
    # on the CPU in float32, whatever the source is on and in: a seed gives one start
    model.to_empty(device="cpu")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        _start_parts(model, plan)
    model.to(device=source.device, dtype=source.dtype)  # type: ignore[call-arg]  # how transformers wraps `to`
    _fill(model, source, layers, layout, average=plan.start == "average")
    made = [] if plan.bases == "none" else _start_bases(model, source, layout, plan, input_ids)
    model.config.dtype = source.dtype
    model.generation_config = deepcopy(source.generation_config)
    return Conversion(model.eval(), layout, made)


def source_layers(source: LoopedForCausalLM) -> list[nn.Module]:
    """Returns the layers of a dense model, first to last; a looped one is refused."""
    if not isinstance(source, LoopedForCausalLM):
        raise TypeError(f"retrofit: the source is a {type(source).__name__}; allowed: what lw.load returns, a folder or a hub id")
    if source.config.is_looped:
        raise ValueError(
            f"retrofit: the source has a core of {source.config.core_layers} layers already; allowed: a dense model, "
            "such as model.without_adapters()"
        )
    if source.config.adapters:
        raise ValueError("retrofit: the source carries adapters; allowed: a plain dense model, such as model.without_adapters()")
    return [*source.prelude, *source.coda]


def freeze_base(model: LoopedForCausalLM) -> None:
    """Makes all that came from the source untrainable; the parts stay as they are, their bases frozen."""
    _, base = divided(dict(model.named_parameters()), model.config)
    for parameter in base.values():
        parameter.requires_grad_(False)


@torch.no_grad()
def start_gaps(model: LoopedForCausalLM, source: LoopedForCausalLM, depths: Sequence[int]) -> dict[str, dict[int, float]]:
    """Returns the largest difference of logits at each depth, to the "truncated" model and to the "full" one it was made from."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, model.config.vocab_size, (2, 24), generator=generator).to(model.device)
    logits = {depth: model(ids, depth=depth, use_cache=False).logits.float() for depth in depths}
    others = {"truncated": model.without_adapters(), "full": source}
    return {
        name: {depth: (other(ids).logits.float() - found).abs().max().item() for depth, found in logits.items()}
        for name, other in others.items()
    }


def _check_given(plan: RetrofitPlan, seed: int, ids: Tensor | None) -> None:
    check_whole("retrofit: seed", seed, 0, 2**64 - 1)
    if plan.bases == "weighted" and ids is None:
        raise ValueError(
            "retrofit: bases are to be weighted by activations, and there is no text; allowed: with input_ids (--text)"
        )
    if plan.bases != "weighted" and ids is not None:
        raise ValueError(f"retrofit: input_ids: given, and bases are {plan.bases!r}; allowed: with bases=weighted")


def _check_finite(source: LoopedForCausalLM) -> None:
    for name, value in source.named_parameters():
        wrong = int((~torch.isfinite(value)).sum())
        if wrong:
            raise ValueError(f"retrofit: {name} of the source holds {wrong} values that are not finite (nan or inf)")


def _started_layout(plan: RetrofitPlan, layers: int) -> Layout:
    """Returns the layout of a plan with the layers that its core starts from and its depth."""
    layout = find_layout(plan.layout, layers)
    if plan.start != "selected" and all(group == (layer,) for layer, group in zip(layout.core, layout.groups, strict=True)):
        raise ValueError(
            f"retrofit: start is {plan.start!r}, and each layer of the core stands for itself alone; allowed: selected, "
            "or a layout that drops layers"
        )
    if plan.start == "stepwise":
        layout = find_layout(replace(layout, core=stepwise(layout)), layers)
    return layout if plan.depth is None else replace(layout, depth=plan.depth)


def _config(source: LoopedConfig, layout: Layout, plan: RetrofitPlan) -> LoopedConfig:
    parts = {name: getattr(plan, name) for name in PARTS}
    parts |= {name: getattr(source, name) for name in ("final_norm", "init") if parts[name] is None}
    if isinstance(plan.gate, Mapping) and str(plan.gate.get("kind")) in GATES:  # one that is none is for the config to refuse
        parts["gate"] = GATES[plan.gate["kind"]].fitted(plan.gate, layout.depth)
    if parts["final_norm"]["kind"] == "none" != source.final_norm["kind"] and plan.end_norm != "every":
        raise ValueError(f"final_norm: none, with end_norm {plan.end_norm!r}; allowed: with 'every', which then takes the source's")
    stacks = {f"{name}_layers": len(getattr(layout, name)) for name in STACKS}
    fields = {**source.to_dict(), **parts, **stacks, "depth": layout.depth, "read_out": "last"}
    steps = layout.depth if plan.max_steps is None and _has_step_tables(plan) else plan.max_steps
    config = LoopedConfig(**{**fields, "max_steps": steps})
    if config.beyond_max_steps != "refuse" and not config.step_tables:
        raise ValueError(f"retrofit: beyond_max_steps is {config.beyond_max_steps!r}, and nothing here holds one row per step")
    return config


def _has_step_tables(plan: RetrofitPlan) -> bool:
    """Whether something of a plan holds one row per step: asked of a config, which alone knows."""
    probe = LoopedConfig()
    for name in ("adapters", "state", "injection", "gate", "halting", "end_norm", "layer_post_norm"):
        value = getattr(plan, name)
        setattr(probe, name, getattr(probe, name) if value is None else value)
    try:
        return bool(probe.step_tables)
    except (KeyError, TypeError, AttributeError):  # a kind that is none: for the config to refuse, with what is allowed
        return False


@torch.no_grad()
def _start_parts(model: LoopedForCausalLM, plan: RetrofitPlan) -> None:
    for name in _FRESH:
        part = getattr(model, name, None)  # the norms are there only where the config has them
        if part is not None:
            part.apply(model._init_weights)
    if plan.injection_start == "input":
        try:
            model.injection.start_as_input()
        except NotImplementedError:
            kind, able = model.config.injection["kind"], [n for n, k in INJECTIONS.items() if "start_as_input" in vars(k)]
            raise ValueError(f"injection_start: 'input' with an injection of kind {kind!r}; allowed: {', '.join(able)}") from None


def _start_bases(
    model: LoopedForCausalLM, source: LoopedForCausalLM, layout: Layout, plan: RetrofitPlan, ids: Tensor | None
) -> list[Reconstruction]:
    scales = input_scales(source, layout, ids.to(source.device)) if plan.bases == "weighted" and ids is not None else None
    return start_bases(model, source, layout, how=plan.bases, method=plan.svd, activations=scales)


@torch.no_grad()
def _fill(
    model: LoopedForCausalLM, source: LoopedForCausalLM, layers: Sequence[nn.Module], layout: Layout, *, average: bool
) -> None:
    """Copies the base: embedding, layers, final norm, head."""
    for name in ("embed_tokens", "embed_positions", "embed_norm", "lm_head"):
        if getattr(model, name, None) is not None:
            _copy(getattr(model, name), [getattr(source, name)])
    # where the head reads the state as it is, the norm it was trained on ends each step (Ouro)
    ends = model.config.final_norm["kind"] == "none" and model.config.end_norm == "every"
    _copy(model.end_norm if ends else model.norm, [source.norm])
    for stack in ("prelude", "coda"):
        for block, layer in zip(getattr(model, stack), getattr(layout, stack), strict=True):
            _copy(block, [layers[layer]])
    for block, layer, group in zip(model.core, layout.core, layout.groups, strict=True):
        _copy(block, [layers[member] for member in group] if average else [layers[layer]])
    if model.config.tie_word_embeddings:
        model.lm_head.weight = model.embed_tokens.weight


def _copy(target: nn.Module, sources: Sequence[nn.Module]) -> None:
    """Gives a module the mean of others of its kind, taken in float32: weights, biases and norms alike."""
    for name, value in target.named_parameters():
        values: list[Tensor] = [module.get_parameter(name) for module in sources]
        value.copy_(values[0] if len(values) == 1 else torch.stack([v.float() for v in values]).mean(0))
