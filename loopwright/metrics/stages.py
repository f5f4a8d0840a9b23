"""Stage curves: a number per layer (concentration, mixing, …) over relative depth, laid over one another and compared.

A curve is […, n], one value per layer in order. The x axis is 100 · i / (n − 1) %, so that a block of 6 layers and a dense model of
16 share it.
"""

from __future__ import annotations

import torch
from torch import Tensor

POINTS = 101  # at which curves are compared: every percent


def relative_depth(layers: int) -> Tensor:
    """Returns where the layers of a curve stand, in percent, [n]; a single one stands at 0."""
    return torch.linspace(0, 100, layers, dtype=torch.float64)


def block_curves(prelude: Tensor, core: Tensor, coda: Tensor) -> Tensor:
    """Returns one curve per step […, S, P + L + C], of values of the prelude […, P], core […, S, L] and coda […, C].

    Prelude and coda run once and stand around every step.
    """
    steps = core.shape[-2]
    around = [x[..., None, :].expand(*x.shape[:-1], steps, x.shape[-1]) for x in (prelude, coda)]
    return torch.cat([around[0], core, around[1]], dim=-1)


def block_halves(curves: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the first and the second half of curves […, n], to overlay them (Figure 40); an odd middle layer is in both."""
    half = (curves.shape[-1] + 1) // 2
    return curves[..., :half], curves[..., -half:]


def resample(curve: Tensor, points: int = POINTS) -> Tensor:
    """Returns curves […, n] at `points` equal steps of relative depth […, points], linear in between, in float64."""
    n = curve.shape[-1]
    if n < 1 or points < 2:
        raise ValueError(f"stages: {n} layers at {points} points; allowed: a layer or more, 2 points or more")
    curve = curve.double()
    if n == 1:
        return curve.expand(*curve.shape[:-1], points)
    place = torch.linspace(0, n - 1, points, dtype=torch.float64, device=curve.device)
    left = place.floor().long().clamp(max=n - 2)
    return torch.lerp(curve[..., left], curve[..., left + 1], place - left)


def curve_distance(a: Tensor, b: Tensor, *, points: int = POINTS) -> Tensor:
    """Returns ∫ |a(x) − b(x)| dx over relative depth x in [0, 1], in units of the metric […]: the mean gap between the curves.

    The curves may have different numbers of layers; leading dimensions broadcast, so one dense curve meets all steps at once.
    """
    gap = (resample(a, points) - resample(b, points)).abs()
    return torch.trapezoid(gap, dx=1 / (points - 1))


def curve_correlation(a: Tensor, b: Tensor, *, points: int = POINTS) -> Tensor:
    """Returns Pearson's correlation of two curves over relative depth […], in [−1, 1]: alike in shape, whatever level and scale.

    NaN where a curve is flat.
    """
    a, b = (x - x.mean(-1, keepdim=True) for x in (resample(a, points), resample(b, points)))
    sizes = a.norm(dim=-1) * b.norm(dim=-1)
    return torch.where(sizes > 0, (a * b).sum(-1) / sizes, torch.nan)
