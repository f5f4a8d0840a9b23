"""How old and new state mix at the end of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from loopwright.model.part import Part

if TYPE_CHECKING:
    from loopwright.model.config import LoopedConfig


class ReplaceGate(Part):
    """s′ = new."""

    def __init__(self, config: LoopedConfig) -> None:
        super().__init__()

    def forward(self, old: Tensor, new: Tensor) -> Tensor:
        return new


class LearnedGate(Part):
    """s′ = g ⊙ new + (1 − g) ⊙ old, g = σ(W [new; old] + b), starting at W = 0 and b = bias (Ouroboros: −2, so g = 0.12)."""

    def __init__(self, config: LoopedConfig, bias: float = -2.0) -> None:
        super().__init__()
        self.start_bias = bias
        self.weight = nn.Parameter(torch.empty(config.hidden_size, 2 * config.hidden_size))
        self.bias = nn.Parameter(torch.empty(config.hidden_size))

    def start(self) -> None:
        nn.init.zeros_(self.weight)
        nn.init.constant_(self.bias, self.start_bias)

    def forward(self, old: Tensor, new: Tensor) -> Tensor:
        g = torch.sigmoid(nn.functional.linear(torch.cat([new, old], dim=-1), self.weight, self.bias))
        return g * new + (1 - g) * old


class MixGate(Part):
    """s′ = w · new + (1 − w) · old with a fixed w (damped looping)."""

    def __init__(self, config: LoopedConfig, weight: float = 0.5) -> None:
        super().__init__()
        if not 0 < weight <= 1:
            raise ValueError(f"gate (mix): weight {weight}; allowed: above 0, at most 1")
        self.weight = weight

    def forward(self, old: Tensor, new: Tensor) -> Tensor:
        return torch.lerp(old, new, self.weight)


GATES: dict[str, type] = {"none": ReplaceGate, "learned": LearnedGate, "mix": MixGate}
