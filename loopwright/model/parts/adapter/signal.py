"""The signal that tells the core which step it is at."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from loopwright.model.forward.context import Pass
from loopwright.model.parts.adapter.effects import Adapter, Effects
from loopwright.model.parts.adapter.target import Site
from loopwright.model.parts.part import StepIndex


class SinusoidalStep(Adapter):
    """Adds the Universal Transformer's coordinate signal: sinusoids of the step, and of the position unless switched off.

    `first` is the number of the first step: 1 as in the paper, 0 as in tensor2tensor.
    """

    ranges: ClassVar = {"first": (0, 1, True)}
    unfoldable = "it shifts the state"
    second_output = False

    def __init__(self, site: Site, position: bool = True, first: int = 1) -> None:
        super().__init__()
        self.first = first
        self.width = site.config.hidden_size
        self.position = position

    def begin(self, step: StepIndex, s: Tensor, p: Pass) -> Effects:
        t = step.t if isinstance(step.t, Tensor) else torch.full((1,), step.t, device=s.device)
        signal = sinusoid(t.to(s.device)[:, None] + self.first, self.width)
        if self.position:
            signal = signal + sinusoid(p.span.positions, self.width)
        return Effects(signal=signal.to(s.dtype))


def sinusoid(places: Tensor, width: int) -> Tensor:
    """Returns sin and cos of the places at geometrically spaced frequencies, [..., width]."""
    half = width // 2
    frequencies = torch.exp(torch.arange(half, device=places.device) * (-math.log(10_000.0) / max(half - 1, 1)))
    angle = places.float()[..., None] * frequencies
    return nn.functional.pad(torch.cat([angle.sin(), angle.cos()], dim=-1), (0, width - 2 * half))
