"""Which logits answer, and at which readings the coda must run for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from loopwright.model.forward.context import Expected
from loopwright.model.forward.output import kept, weighted_sum

SELECTIONS = ("last", "hub", "expected")


def check_select(select: str, halting: Any) -> None:
    """Raises a ValueError where a model with this halting cannot answer so."""
    if select not in SELECTIONS:
        raise ValueError(f"select: {select!r}; allowed: {', '.join(SELECTIONS)}")
    if select in rules_of(halting):
        return
    if halting.mixes is None:
        raise ValueError(f"select: {select!r} needs learned halting, and this model has none; allowed: last")
    raise ValueError("select: 'hub' picks the logits of one step, and this model's halting mixes states; allowed: last, expected")


def rules_of(halting: Any) -> tuple[str, ...]:
    """Returns the rules that a model with this halting can follow."""
    return {None: ("last",), "states": ("last", "expected"), "logits": SELECTIONS}[halting.mixes]


def mixes_states(select: str, halting: Any) -> bool:
    """Whether the answer is read out of the mean of all states."""
    return select == "expected" and halting.mixes == "states"


def readings_of(select: str, halting: Any, depth: int, output_steps: bool) -> list[int | Expected]:
    """Returns the readings of a pass, in order: every step where step logits are needed, else the last alone."""
    every = output_steps or (select != "last" and halting.mixes == "logits")
    steps: list[int | Expected] = list(range(1, depth + 1)) if every else []
    if mixes_states(select, halting):
        return [*steps, Expected(depth)]
    return steps or [depth]


def pick(step_logits: Sequence[Tensor], exit_probs: Tensor | None, select: str, halting: Any, keep: int | Tensor) -> Tensor:
    """Returns the logits that `select` takes from those of all steps, at the positions that `keep` says."""
    if select == "last":
        return step_logits[-1]
    assert exit_probs is not None
    weights = kept(exit_probs, keep)
    if select == "expected":
        return weighted_sum(weights, step_logits)
    chosen = halting.exit_step(weights)[..., None, None]
    stacked = torch.stack(list(step_logits), dim=-2)
    return stacked.gather(-2, chosen.expand(*chosen.shape[:-1], stacked.shape[-1])).squeeze(-2)
