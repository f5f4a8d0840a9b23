"""Which parameters train, by patterns of their names (`gate.*`, `adapters.0.*`, `coda.-1.*`: the last layer of the coda), and
whether one of them receives a gradient at every sampled depth.

A part may act from some step on (a gate), or before the loop alone (a learned state, which a cut gradient does not reach); where
no trained part acts there is no gradient, and so no update."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from loopwright.data.batch import Batch
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.parts.part import Part
from loopwright.training.rollout import Plan, rollout

if TYPE_CHECKING:
    from loopwright.training.depth import DepthRule
    from loopwright.training.recipe import Recipe

TOKENS = 4  # of the row that is tried: what a loss depends on is a matter of the parts, not of the text


def choose(model: nn.Module, patterns: Sequence[str]) -> None:
    """Makes trainable what a pattern names, and nothing else. What a part itself holds fixed (its bases) stays so.

    What is frozen gets no gradient and no optimiser state, and keeps its dtype.
    """
    fixed = {id(p) for module in model.modules() if isinstance(module, Part) and module.frozen for p in module.parameters()}
    named = {name: parameter for name, parameter in model.named_parameters() if id(parameter) not in fixed}
    if not patterns:
        raise ValueError("optim: train is empty; allowed: at least one pattern of parameter names, such as adapters.*")
    chosen: set[str] = set()
    for pattern in patterns:
        matching = [name for name in named if fnmatchcase(name, counted(pattern, model))]
        if not matching:
            held = [name for name, p in model.named_parameters() if id(p) in fixed and fnmatchcase(name, counted(pattern, model))]
            why = f"{held[0]} is frozen by its part" if held else nearest(pattern, model, list(named))
            raise ValueError(f"optim: train: {pattern!r} matches no parameter that can be trained; {why}")
        chosen |= set(matching)
    for name, parameter in named.items():
        parameter.requires_grad_(name in chosen)


def counted(pattern: str, model: nn.Module) -> str:
    """Returns a pattern in which a layer counted from the end of its stack (`coda.-2.*`) is counted from the start."""
    match = re.match(r"(prelude|core|coda)\.-(\d+)(?=\.|$)", pattern)
    if match is None:
        return pattern
    layers = len(list(model.get_submodule(match[1]).children()))
    place = layers - int(match[2])
    if not 0 <= place < layers:
        raise ValueError(
            f"optim: {pattern!r} counts from the end of {layers} layers; allowed: {match[1]}.-1 to {match[1]}.-{layers}"
        )
    return f"{match[1]}.{place}{pattern[match.end() :]}"


def nearest(pattern: str, model: nn.Module, names: Sequence[str]) -> str:
    """Returns, for a pattern that matches nothing, what it may have meant."""
    tied = [name for name, _ in model.named_parameters(remove_duplicate=False) if fnmatchcase(name, pattern)]
    if tied:
        owner = next(n for n, p in model.named_parameters() if p is model.get_parameter(tied[0]))
        return f"{tied[0]} is tied to {owner}, which stands for both"
    tops = sorted({name.split(".")[0] for name in names})
    near = difflib.get_close_matches(pattern.removesuffix("*"), [*names, *tops], n=3, cutoff=0.4)
    return (f"near: {', '.join(near)}; " if near else "") + f"parameters begin with: {', '.join(tops)}"


# does it act?


def depth_generator(recipe: Recipe) -> torch.Generator:
    """Returns the generator of a run's depths, at its first update."""
    return torch.Generator().manual_seed(recipe.seed)


def drawn_plans(rule: DepthRule, recipe: Recipe) -> Iterator[Plan]:
    """Yields the plan of each batch of a run: what the rule will draw, known from the seed."""
    generator = depth_generator(recipe)
    for update in range(recipe.updates):
        yield from rule.plans(update, recipe.accumulate, generator)


def check_trainable(model: LoopedForCausalLM, objective: Any, plans: Iterable[Plan]) -> None:
    """Raises a ValueError where the loss of one of the plans depends on no trained parameter; where all are trained it always does.

    The loss of the objective alone is asked: what a penalty alone trains is refused as well.
    """
    if all(parameter.requires_grad for parameter in model.parameters()):
        return
    ids = torch.zeros(1, min(TOKENS, model.config.max_position_embeddings), dtype=torch.long, device=model.device)
    for plan in shallowest(plans):
        loss, _ = objective(model, rollout(model, Batch(ids, ids), plan, keeps=objective.reads))
        if not loss.requires_grad:
            raise out_of_reach(plan.depth, [name for name, p in model.named_parameters() if p.requires_grad])


def shallowest(plans: Iterable[Plan]) -> list[Plan]:
    """Returns the shallowest plan, and the shallowest of those whose gradient is cut: they stand for all.

    What acts from some step on acts in every deeper plan too, and what acts before the loop alone in every plan or in none of
    those that are cut. (A part that acts at one step alone may be out of reach of a deeper plan that is cut: the update says so.)
    """
    plan_of: dict[bool, Plan] = {}
    for plan in plans:
        cut = plan.grad_steps < plan.depth
        if cut not in plan_of or plan.depth < plan_of[cut].depth:
            plan_of[cut] = plan
    return list(plan_of.values())


def out_of_reach(depth: int, trained: Iterable[str]) -> ValueError:
    """Returns the error that says that at a depth the loss depends on nothing that is trained."""
    return ValueError(
        f"depth: at {depth} the loss depends on no trained parameter ({', '.join(sorted(trained)[:3])} …); "
        "allowed: depths at which they act (a gate of the recurrence does from 2 on)"
    )
