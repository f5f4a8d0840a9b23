"""What each step counts for where an objective reads all of them: named weightings or a list, scaled to sum to 1."""

from __future__ import annotations

import math

from loopwright.settings import suggest

NAMED = ("uniform", "linear", "geometric")


class StepWeights:
    """Weights over the steps of a rollout: "uniform" (1), "linear" (1, 2, 3 …), "geometric" (`ratio` to the power of the steps
    still to come), or a list that ends at the last step: a longer rollout gives its earlier steps no weight, a shorter one uses the
    end of the list."""

    def __init__(self, where: str, weights: str | list[float] = "uniform", ratio: float = 0.5) -> None:
        if isinstance(weights, str) and weights not in NAMED:
            raise ValueError(f"{where} is {weights!r}; {suggest(weights, NAMED)}, or a list of numbers")
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
