"""What each step counts for where an objective reads all of them: named weightings, a list, or the model's own exit gate."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from loopwright.model.looped import LoopedForCausalLM
from loopwright.model.parts.halting import HALTINGS
from loopwright.settings import suggest
from loopwright.train.rollout import Rollout

NAMED = ("uniform", "linear", "geometric")


class StepWeights:
    """Weights over the steps of a rollout: "uniform" (1), "linear" (1, 2, 3 …), "geometric" (`ratio` to the power of the steps
    still to come), or a list that ends at the last step: a longer rollout gives its earlier steps no weight, a shorter one uses the
    end of the list. `also` are names that the caller knows beside these."""

    def __init__(self, where: str, weights: str | list[float] = "uniform", ratio: float = 0.5, also: tuple[str, ...] = ()) -> None:
        if isinstance(weights, str) and weights not in NAMED:
            raise ValueError(f"{where} is {weights!r}; {suggest(weights, (*NAMED, *also))}, or a list of numbers")
        numbers = not isinstance(weights, str) and all(isinstance(w, int | float) and math.isfinite(w) for w in weights)
        if not isinstance(weights, str) and (not numbers or not weights or min(weights) < 0 or weights[-1] <= 0):
            raise ValueError(f"{where} is {weights}; allowed: numbers of at least 0, the last above 0")
        self.weights, self.ratio = weights, ratio

    def __call__(self, steps: int) -> list[float]:
        """Returns the weights of the last steps of a rollout, at most `steps` of them; they sum to 1."""
        if isinstance(self.weights, str):
            forms = {"uniform": lambda t: 1.0, "linear": lambda t: t + 1.0, "geometric": lambda t: self.ratio ** (steps - 1 - t)}
            raw = [forms[self.weights](t) for t in range(steps)]
        else:
            raw = self.weights[-steps:]
        return [w / sum(raw) for w in raw]


def exit_log_probabilities(gate: Tensor) -> Tensor:
    """Returns log p [S, N] of the exit gate's logits [S, N]: p_t = λ_t ∏_{u<t}(1 − λ_u), what is left at the last step.

    In logarithms throughout: a gate that is sure of itself has a finite entropy, and a finite gradient of it.
    """
    gate = wide(gate)
    stay = F.logsigmoid(-gate[:-1]).cumsum(0)
    reach = torch.cat([torch.zeros_like(gate[:1]), stay])
    return reach + torch.cat([F.logsigmoid(gate[:-1]), torch.zeros_like(gate[:1])])


def wide(x: Tensor) -> Tensor:
    """Returns numbers in float32 or wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def need_halting(model: LoopedForCausalLM, objective: str, mixes: str) -> None:
    """Raises a ValueError where the model's halting does not mix what the objective reads."""
    if model.halting.mixes != mixes:
        fitting = " or ".join(repr(name) for name, kind in HALTINGS.items() if kind.mixes == mixes)
        found = model.config.halting["kind"]
        raise ValueError(f"objective ({objective}): the model's halting is {found!r}; allowed: a model with halting {fitting}")


def need_all_steps(rollout: Rollout, objective: str) -> None:
    """Raises a ValueError where not every step has a gradient."""
    kept, depth = len(rollout.states), rollout.plan.depth
    if kept < depth:
        raise ValueError(
            f"objective ({objective}): {kept} of {depth} steps have a gradient, and halting weighs all of them; "
            "allowed: a depth rule with a gradient through every step"
        )
