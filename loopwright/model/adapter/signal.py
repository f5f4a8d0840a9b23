"""Signals that tell the core which step it is at: sinusoidal or learned step embeddings, and RingFormer's level signals."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from loopwright.model.adapter.effects import Adapter, Effects
from loopwright.model.adapter.target import Site, StepFactors, chosen_shapes, low_rank
from loopwright.model.context import Pass
from loopwright.model.part import StepIndex, take_width


class SinusoidalStep(Adapter):
    """Adds the Universal Transformer's coordinate signal: sinusoids of the step, and of the position unless switched off."""

    unfoldable = "it shifts the state"
    second_output = False

    def __init__(self, site: Site, position: bool = True) -> None:
        super().__init__()
        self.width = site.config.hidden_size
        self.position = position

    def begin(self, step: StepIndex, s: Tensor, p: Pass) -> Effects:
        t = step.t if isinstance(step.t, Tensor) else torch.full((1,), step.t, device=s.device)
        signal = sinusoid(t.to(s.device)[:, None] + 1, self.width)
        if self.position:
            signal = signal + sinusoid(p.span.positions, self.width)
        return Effects(signal=signal.to(s.dtype))


def sinusoid(places: Tensor, width: int) -> Tensor:
    """Returns sin and cos of the places at geometrically spaced frequencies, [..., width]."""
    half = width // 2
    frequencies = torch.exp(torch.arange(half, device=places.device) * (-math.log(10_000.0) / max(half - 1, 1)))
    angle = places.float()[..., None] * frequencies
    return nn.functional.pad(torch.cat([angle.sin(), angle.cos()], dim=-1), (0, width - 2 * half))


class LearnedStep(Adapter):
    """Adds one trained vector per step, zero at the start."""

    per_step = True
    unfoldable = "it shifts the state"
    second_output = False

    def __init__(self, site: Site) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(site.rows, site.config.hidden_size))

    def start(self) -> None:
        nn.init.zeros_(self.table)

    def begin(self, step: StepIndex, s: Tensor, p: Pass) -> Effects:
        return Effects(signal=take_width(self.table, step))


class LevelSignal(Adapter):
    """RingFormer-style level signals (arXiv 2502.13181): per-step low-rank maps of the input, added to q, k, v and to the
    MLP's input. Here the input is the branch's normed one; zero at the start."""

    per_step = True
    unfoldable = "it reads the input"

    def __init__(self, site: Site, rank: int = 8) -> None:
        super().__init__()
        self.shapes = chosen_shapes(site, ["q_proj", "k_proj", "v_proj", "mlp"])
        self.factors = StepFactors(site, self.shapes, rank)

    def begin(self, step: StepIndex, s: Tensor, p: Pass) -> Effects:
        def level(layer: int, name: str, x: Tensor) -> Tensor:
            return low_rank(x, *self.factors.at(name, layer, step))

        def update(layer: int, name: str, x: Tensor, weight: Tensor | None) -> Tensor | None:
            return level(layer, name, x) if weight is not None and name in self.shapes else None

        return Effects(update=update, enter_mlp=lambda layer, x: x + level(layer, "mlp", x))
