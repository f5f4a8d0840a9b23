"""Per-step weight updates: low-rank (B·A), HiRA (W ⊙ (B·A)) and ABBA (γ·(B₁A₁) ⊙ (B₂A₂)).

Targets are the block's linear maps, or its two branches as wholes ("attention", "mlp"), where the update runs beside the
branch on the branch's input, as ASURA draws it.

The signal that tells the core which step it is at.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from loopwright.model.parts.adapters.effects import Adapter, BiasTable, Site, StepFactors, chosen_shapes, low_rank, scale_of
from loopwright.model.parts.part import FIRST, StepIndex
from loopwright.model.passes import Effects

if TYPE_CHECKING:
    from loopwright.model.passes import Pass


class LowRank(Adapter):
    """y += (alpha/rank) · B_t A_t x, and with `bias` + b_t; B and b start at zero."""

    per_step = True
    unfoldable = None
    starts_from = "factors"

    def __init__(
        self, site: Site, rank: int = 8, alpha: float | None = None, targets: str | Sequence[str] = "linears", bias: bool = False
    ) -> None:
        super().__init__()
        self.shapes = chosen_shapes(site, targets)
        self.factors = StepFactors(site, self.shapes, rank)
        self.scale = scale_of(alpha, rank)
        self.biases = BiasTable(site, self.shapes if bias else {})

    def begin(self, step: StepIndex, s: Tensor, p: Pass) -> Effects:
        def update(layer: int, name: str, x: Tensor, weight: Tensor | None) -> Tensor | None:
            if name not in self.shapes:
                return None
            y = self.scale * low_rank(x, *self.factors.at(name, layer, step))
            return y + self.biases.at(name, layer, step) if name in self.biases else y

        return Effects(update=update)

    @property
    def targets(self) -> Sequence[str]:
        return list(self.shapes)

    def fold(self, name: str, leaf: str, layer: int, dtype: torch.dtype) -> Tensor | None:
        if leaf == "weight" and name in self.shapes:
            b, a = self.factors.at(name, layer, FIRST)
            return self.scale * (b.to(dtype) @ a.to(dtype))
        return self.biases.at(name, layer, FIRST).to(dtype) if leaf == "bias" and name in self.biases else None


class HiRA(Adapter):
    """y += (alpha/rank) · (W ⊙ (B_t A_t)) x with the map's own weight W; B starts at zero (Huang et al., ICLR 2025).

    The update has the rank of W, so its product is made in full, once a step: memory of one more weight while a map runs.
    """

    per_step = True
    unfoldable = "its update is a product with the weight that it is added to"

    def __init__(self, site: Site, rank: int = 8, alpha: float | None = None, targets: str | Sequence[str] = "linears") -> None:
        super().__init__()
        self.shapes = chosen_shapes(site, targets, branches=False)
        self.factors = StepFactors(site, self.shapes, rank)
        self.scale = scale_of(alpha, rank)

    def begin(self, step: StepIndex, s: Tensor, p: Pass) -> Effects:
        def update(layer: int, name: str, x: Tensor, weight: Tensor | None) -> Tensor | None:
            if name not in self.shapes:
                return None
            if weight is None:
                raise TypeError(f"adapter hira: {name} has no weight to multiply; take low-rank there, or unquantised weights")
            b, a = self.factors.at(name, layer, step)
            return self.scale * (x @ (weight * (b @ a)).transpose(-1, -2))

        return Effects(update=update)


class ABBA(Adapter):
    """y += γ · ((B₁A₁) ⊙ (B₂A₂)) x by the Khatri–Rao factors, never the full matrix; B₂ starts at zero.

    With B*[i, ab] = B₁[i, a] B₂[i, b] and A*[ab, j] = A₁[a, j] A₂[b, j] the product is γ · B* (A* x), at rank₁·rank₂.
    """

    per_step = True

    def __init__(
        self, site: Site, rank1: int = 8, rank2: int = 8, gamma: float = 1.0, targets: str | Sequence[str] = "linears"
    ) -> None:
        super().__init__()
        self.shapes = chosen_shapes(site, targets)
        self.gamma = gamma
        self.first = StepFactors(site, self.shapes, rank1, zero=False)
        self.second = StepFactors(site, self.shapes, rank2)

    def begin(self, step: StepIndex, s: Tensor, p: Pass) -> Effects:
        def update(layer: int, name: str, x: Tensor, weight: Tensor | None) -> Tensor | None:
            if name not in self.shapes:
                return None
            factors = self.first.at(name, layer, step) + self.second.at(name, layer, step)
            return hadamard_product(x, *factors, gamma=self.gamma)

        return Effects(update=update)


def hadamard_product(x: Tensor, b1: Tensor, a1: Tensor, b2: Tensor, a2: Tensor, *, gamma: float) -> Tensor:
    """Returns γ · ((b1 a1) ⊙ (b2 a2)) x for x [..., in] without forming the [out, in] product."""
    a = (a1.unsqueeze(-2) * a2.unsqueeze(-3)).flatten(-3, -2)
    b = (b1.unsqueeze(-1) * b2.unsqueeze(-2)).flatten(-2)
    return gamma * low_rank(x, b, a)


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
