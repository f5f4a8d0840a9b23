"""A part of this study's own: one projection for all steps that starts as those of each step do."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import loopwright as lw
from loopwright.parts import Injection

if TYPE_CHECKING:
    from loopwright.model.config import LoopedConfig


def register_parts() -> None:
    """Puts the part behind its name; not on import, so that a test of the package's own kinds does not meet it."""
    lw.register("injection", "concat-larger-start")(LargerStart)


class LargerStart(Injection):
    """x = W [s; e] + b, one projection for all steps as kind `concat` has it, started as kind `concat-per-step`: with a standard
    deviation of 1/√(2 width), where the model starts an nn.Linear with 0.02. Weight decay reaches W and not b in both."""

    def __init__(self, config: LoopedConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.weight = nn.Parameter(torch.empty(width, 2 * width))
        self.bias = nn.Parameter(torch.empty(width))

    def start(self) -> None:
        nn.init.normal_(self.weight, std=1 / math.sqrt(self.weight.shape[-1]))
        nn.init.zeros_(self.bias)

    def forward(self, s: Tensor, e: Tensor, step: object) -> Tensor:
        return F.linear(torch.cat([s, e], dim=-1), self.weight, self.bias)
