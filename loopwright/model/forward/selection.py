"""Which logits answer, and at which readings the coda must run for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from loopwright.model.forward.context import Expected, Pass
from loopwright.model.forward.output import kept, weighted_sum
from loopwright.model.parts.halting import READ_OUTS

SELECTIONS = READ_OUTS["logits"]


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
    return READ_OUTS[halting.mixes]


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


class Answers:
    """What a model reads out after each step of one pass, by its own read-out (`config.read_out`).

    `take` is told of every step's state; `features` then gives what the head reads if a pass without a cache ends there. Where one
    state answers, no other is kept.
    """

    def __init__(self, model: Any, e: Tensor, p: Pass, start: Tensor, select: str | None = None) -> None:
        self.model, self.e, self.p, self.state = model, e, p, start
        self.select = model.config.read_out if select is None else select
        self.mixed = mixes_states(self.select, model.halting)
        self.kept: list[Tensor] = []  # states, or where steps answer what the head reads of each
        self.halts: list[Tensor] = []

    @classmethod
    def of_steps(cls, model: Any, e: Tensor, p: Pass, start: Tensor) -> Answers:
        """Returns what each step says by itself: the read-out of its state, or of the mean so far where the model answers by it."""
        return cls(model, e, p, start, "expected" if mixes_states(model.config.read_out, model.halting) else "last")

    def take(self, s: Tensor) -> None:
        """Takes in the state [B, T, D] after the next step."""
        if self.select != "last":
            self.halts.append(self.model.halting_value(self.state, s, self.e, len(self.halts), self.p))
            self.kept.append(s if self.mixed else self.model.features(s, self.p))
        self.state = s

    def features(self) -> Tensor:
        """Returns what the head reads [B, T, D] of the steps so far."""
        if self.select == "last" or self.mixed:
            return self.model.features(self.answering(), self.p)
        return pick(self.kept, self._weights(), self.select, self.model.halting, 0)

    def answering(self) -> Tensor:
        """Returns the state [B, T, D] that is read out, where one is: the last one, or the mean of all by halting weight."""
        return weighted_sum(self._weights(), self.kept) if self.mixed else self.state

    def _weights(self) -> Tensor:
        return self.model.halting(torch.cat(self.halts, dim=-1))

    def logits(self) -> Tensor:
        """Returns the logits [B, T, V] of the steps so far."""
        return self.model.head(self.features(), self.p)
