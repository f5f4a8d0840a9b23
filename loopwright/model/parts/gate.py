"""How old and new state mix at the end of a step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from loopwright.model.parts.part import ANY_NUMBER, Part, Sizes, StepIndex
from loopwright.schema import Kinds

EPS = 1e-6  # of what the grown gate sees
See = Callable[[Tensor], Tensor]  # what a watcher makes of how far a gate is open


def _unchanged(g: Tensor) -> Tensor:
    return g


class Gate(Part):
    """How old and new state mix. Abstract: a kind is built from the config."""

    opens: ClassVar[bool] = False  # whether it is open by as much as it reads off the states, which a tap can see

    def forward(self, old: Tensor, new: Tensor, step: StepIndex) -> Tensor:
        """Returns the state after the step."""
        raise NotImplementedError

    def watched(self, old: Tensor, new: Tensor, step: StepIndex, see: See) -> Tensor:
        """Returns the state after the step; a gate that `opens` shows how far, [B, T, D], and uses what `see` returns."""
        state: Tensor = self(old, new, step)
        return state

    @classmethod
    def fitted(cls, options: Mapping[str, Any], depth: int) -> dict[str, Any]:
        """Returns the options with which a model that is made to loop `depth` times starts, where they say nothing."""
        return dict(options)


class ReplaceGate(Gate):
    """s′ = new."""

    def __init__(self, config: Sizes) -> None:
        super().__init__()

    def forward(self, old: Tensor, new: Tensor, step: StepIndex) -> Tensor:
        return new


class LinearGate(Gate):
    """A gate that is read off both states: W [D, 2D] zero and b at `bias` at the start. Abstract."""

    opens = True
    ranges: ClassVar = {"bias": ANY_NUMBER}

    def __init__(self, config: Sizes, bias: float) -> None:
        super().__init__()
        self.start_bias = bias
        self.weight = nn.Parameter(torch.empty(config.hidden_size, 2 * config.hidden_size))
        self.bias = nn.Parameter(torch.empty(config.hidden_size))

    @classmethod
    def least_parameters(cls, config: Sizes) -> int:
        return 2 * config.hidden_size**2

    def start(self) -> None:
        nn.init.zeros_(self.weight)
        nn.init.constant_(self.bias, self.start_bias)


class LearnedGate(LinearGate):
    """s′ = g ⊙ new + (1 − g) ⊙ old, g = σ(W [new; old] + b), starting at W = 0 and b = bias (Ouroboros: −2, so g = 0.12)."""

    def __init__(self, config: Sizes, bias: float = -2.0) -> None:
        super().__init__(config, bias)

    def forward(self, old: Tensor, new: Tensor, step: StepIndex) -> Tensor:
        return self.watched(old, new, step, _unchanged)

    def watched(self, old: Tensor, new: Tensor, step: StepIndex, see: See) -> Tensor:
        g = see(torch.sigmoid(F.linear(torch.cat([new, old], dim=-1), self.weight, self.bias)))
        return g * new + (1 - g) * old


class GrownGate(LinearGate):
    """s′ = new at step 0, then s′ = old + g ⊙ (new − old), g = tanh(W [n(new); n(old)] / √(2D) + b), from W = 0, b = bias.

    n divides by the root mean square: a pretrained residual stream has channels of hundreds, and W would saturate g in one
    update. With a bias of 0 every step after the first one changes nothing at the start, so that a model is at every depth what
    it is at depth 1; unlike a gate that is shut by a saturated σ, it has its whole gradient there.
    """

    def __init__(self, config: Sizes, bias: float = 0.0) -> None:
        super().__init__(config, bias)

    def forward(self, old: Tensor, new: Tensor, step: StepIndex) -> Tensor:
        if isinstance(step.t, int) and step.t == 0:
            return new
        return self.watched(old, new, step, _unchanged)

    def watched(self, old: Tensor, new: Tensor, step: StepIndex, see: See) -> Tensor:
        if isinstance(step.t, int) and step.t == 0:  # wholly open, unless the watcher says otherwise
            g = see(torch.ones_like(new))
            return torch.where(g == 1, new, old + g * (new - old))
        width = new.shape[-1]
        seen = torch.cat([F.rms_norm(x, (width,), None, EPS) for x in (new, old)], dim=-1) * (2 * width) ** -0.5
        g = see(torch.tanh(F.linear(seen, self.weight, self.bias)))
        grown = old + g * (new - old)
        if isinstance(step.t, int):
            return grown
        return torch.where((step.t == 0).to(new.device)[:, None, None], new, grown)


class MixGate(Gate):
    """s′ = w · new + (1 − w) · old with a fixed w (damped looping)."""

    ranges: ClassVar = {"weight": (0, 1, False)}

    def __init__(self, config: Sizes, weight: float = 0.5) -> None:
        super().__init__()
        if not 0 < weight <= 1:
            raise ValueError(f"gate (mix): weight {weight}; allowed: above 0, at most 1")
        self.weight = weight

    def forward(self, old: Tensor, new: Tensor, step: StepIndex) -> Tensor:
        return torch.lerp(old, new, self.weight)

    @classmethod
    def fitted(cls, options: Mapping[str, Any], depth: int) -> dict[str, Any]:
        return {"weight": 1 / depth, **options}  # the damped steps together go as far as one whole one


GATES = Kinds(
    "gate",
    {"none": ReplaceGate, "learned": LearnedGate, "grown": GrownGate, "mix": MixGate},
    inherits=Gate, offers=["forward"], given=["config"],
)  # fmt: skip
