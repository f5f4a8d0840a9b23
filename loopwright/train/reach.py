"""Whether what is trained acts at the depths of a run. A part may act from some step on (a gate), or before the loop alone (a
learned state, which a cut gradient does not reach); where nothing trained acts there is no gradient, and so no update."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from loopwright.data.batch import Batch
from loopwright.model.looped import LoopedForCausalLM
from loopwright.train.depth import DepthRule
from loopwright.train.recipe import Recipe
from loopwright.train.walk import Plan, walk

TOKENS = 4  # of the row that is tried: what a loss depends on is a matter of the parts, not of the text


def depth_generator(recipe: Recipe) -> torch.Generator:
    """Returns the generator of a run's depths, at its first update."""
    return torch.Generator().manual_seed(recipe.seed)


def drawn_plans(rule: DepthRule, recipe: Recipe) -> Iterator[Plan]:
    """Yields the plan of each batch of a run: what the rule will draw, known from the seed."""
    generator = depth_generator(recipe)
    for update in range(recipe.updates):
        for _ in range(recipe.accumulate):
            yield rule(update, generator)


def check_reach(model: LoopedForCausalLM, objective: Any, plans: Iterable[Plan]) -> None:
    """Raises a ValueError where the loss of one of the plans depends on no trained parameter; where all are trained it always does.

    The loss of the objective alone is asked: what a penalty alone trains is refused as well.
    """
    if all(parameter.requires_grad for parameter in model.parameters()):
        return
    ids = torch.zeros(1, min(TOKENS, model.config.max_position_embeddings), dtype=torch.long, device=model.device)
    for plan in shallowest(plans):
        loss, _ = objective(model, walk(model, Batch(ids, ids), plan, keeps=objective.reads))
        if not loss.requires_grad:
            raise out_of_reach(plan.depth, [name for name, p in model.named_parameters() if p.requires_grad])


def shallowest(plans: Iterable[Plan]) -> list[Plan]:
    """Returns the shallowest plan, and the shallowest of those whose gradient is cut: they stand for all.

    What acts from some step on acts in every deeper plan too, and what acts before the loop alone in every plan or in none of
    those that are cut. (A part that acts at one step alone may be out of reach of a deeper plan that is cut: the update says so.)
    """
    found: dict[bool, Plan] = {}
    for plan in plans:
        cut = plan.grad_steps < plan.depth
        if cut not in found or plan.depth < found[cut].depth:
            found[cut] = plan
    return list(found.values())


def out_of_reach(depth: int, trained: Iterable[str]) -> ValueError:
    """Returns the error that says that at a depth the loss depends on nothing that is trained."""
    return ValueError(
        f"depth: at {depth} the loss depends on no trained parameter ({', '.join(sorted(trained)[:3])} …); "
        "allowed: depths at which they act (a gate of the recurrence does from 2 on)"
    )
