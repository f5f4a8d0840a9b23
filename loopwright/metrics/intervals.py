"""Intervals at 95 % around means over rows and documents, and around differences of them: the one place that makes them.

A mean loss is a ratio of sums, Σ loss / Σ targets, over units that were drawn independently of each other: rows, or documents with
all that was scored of them. Its interval is the wider of two, at each end:

- Student's t, with the error of the jackknife over units and the degrees of freedom of Bell and McCaffrey (2002), which are
  fewer where a few long units hold most of the targets;
- from `FEWEST` units on, Hartigan's (1969): the middle 95 % of the same ratio over random subsets of the units. It holds as often
  as it says, whatever the lengths, where what a unit adds to the ratio is as likely above as below: so it is of two models of
  which neither is better.

Shares have score intervals, which do not vanish at 0 and 1. `python -m experiments.interval_simulation` counts how often each of
them misses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, lru_cache
from statistics import NormalDist

import numpy
import torch
from torch import Tensor

CONFIDENCE = 0.95
FEWEST = 6  # units of a decision: five that agree come by chance more often than 5 times in 100
SUBSETS = 2047
MOST_SUBSETTED = 1000  # units, beyond which the two intervals are the same
_NODES, _WEIGHTS = (torch.from_numpy(each / 2) for each in numpy.polynomial.legendre.leggauss(24))

Ends = tuple[Tensor, Tensor]


def t_quantile(freedom: Tensor, *, confidence: float = CONFIDENCE) -> Tensor:
    """Returns how many errors an interval by Student's t reaches to each side, with `freedom` degrees of freedom, at least 1, […].

    In t = √ν tan θ the distribution is an integral of cos^(ν − 1), which a few nodes give to all digits. Newton's method comes from
    below and does not overshoot, since the distribution is concave there.
    """
    freedom = freedom.double().clamp(1, 1e5)
    whole = (0.5 * math.log(math.pi) + torch.lgamma(freedom / 2) - torch.lgamma((freedom + 1) / 2)).exp()
    angle = torch.atan(NormalDist().inv_cdf(0.5 + confidence / 2) / freedom.sqrt())
    for _ in range(12):
        inside = 2 * angle * ((angle[..., None] * (0.5 + _NODES)).cos() ** (freedom[..., None] - 1) @ _WEIGHTS)
        angle = angle + (confidence * whole - inside) / (2 * angle.cos() ** (freedom - 1))
    return freedom.sqrt() * angle.tan()


@cache
def _t_quantile(freedom: float, confidence: float) -> float:
    return float(t_quantile(torch.tensor(float(freedom)), confidence=confidence))


@dataclass(frozen=True)
class Mean:
    """A mean with its error and the degrees of freedom of that error, each […]."""

    value: Tensor
    error: Tensor
    freedom: Tensor

    def ends(self, *, confidence: float = CONFIDENCE) -> Ends:
        """Returns the ends of its interval by Student's t."""
        reach = t_quantile(self.freedom, confidence=confidence) * self.error
        return self.value - reach, self.value + reach

    def __sub__(self, other: Mean) -> Mean:
        """Returns the difference from the mean of other units, drawn independently (Welch)."""
        squares = [mean.error**2 for mean in (self, other)]
        total = squares[0] + squares[1]
        freedom = total**2 / (squares[0] ** 2 / self.freedom + squares[1] ** 2 / other.freedom)
        return Mean(self.value - other.value, total.sqrt(), freedom.nan_to_num(1))


def ratio_mean(losses: Tensor, targets: Tensor) -> Mean:
    """Returns the mean loss per target of units, Σ losses / Σ targets, from sums of each unit […, units].

    Of a single unit, or where a loss is not finite, the error is not a number.
    """
    losses, targets = _counted(losses, targets)
    residuals, shares = _residuals(losses, targets)
    lone = shares**2 / (1 - shares)
    freedom = 1 / ((shares**2).sum(-1) + lone.sum(-1) ** 2 - (lone**2).sum(-1))
    error = _covariance(residuals, residuals).sqrt()
    return Mean(losses.sum(-1) / targets.sum(-1), error, freedom.expand(error.shape))


def _counted(losses: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The sums of the units that have targets, in float64."""
    if not targets.shape[-1] or losses.shape[-1] != targets.shape[-1]:
        raise ValueError(
            f"interval: losses of shape {tuple(losses.shape)} for {targets.shape[-1]} rows; allowed: […, rows], rows ≥ 1"
        )
    kept = (targets > 0).reshape(-1, targets.shape[-1]).any(0).cpu()
    return losses.double().cpu()[..., kept], targets.double().cpu()[..., kept]


def _residuals(losses: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """How far the ratio moves without each unit (the jackknife), and the share of targets that each unit has."""
    total = targets.sum(-1, keepdim=True)
    shares = targets / total
    return (losses - losses.sum(-1, keepdim=True) / total * targets) / total / (1 - shares), shares


def _covariance(first: Tensor, second: Tensor) -> Tensor:
    units = first.shape[-1]
    return (first * second).sum(-1) * ((units - 1) / units)


def mean_interval(losses: Tensor, targets: Tensor, units: Tensor | None = None, *, confidence: float = CONFIDENCE) -> Ends:
    """Returns the interval (low, high), each […], of the mean loss per target, Σ losses / Σ targets.

    `losses` […, rows] are summed per row, `targets` [rows] counts them, `units` [rows] says which rows belong together (default:
    each stands for itself). Not a number where a loss is not finite, or where there is one unit alone.
    """
    if units is not None:
        losses, targets = by_unit(losses, units), by_unit(targets, units)
    low, high = ratio_mean(losses, targets).ends(confidence=confidence)
    losses, targets = _counted(losses, targets)
    if not FEWEST <= losses.shape[-1] <= MOST_SUBSETTED:
        return low, high
    chosen = subsets(losses.shape[-1])
    ratios = ((losses @ chosen) / (targets @ chosen)).sort(-1).values
    outside = int((1 - confidence) / 2 * (chosen.shape[1] + 1))
    if not outside:  # so few units never hold that much
        return torch.full_like(low, -math.inf), torch.full_like(high, math.inf)
    return torch.minimum(low, ratios[..., outside - 1]), torch.maximum(high, ratios[..., -outside])


@lru_cache(maxsize=8)
def subsets(units: int) -> Tensor:
    """Returns subsets of units as columns of zeros and ones [units, subsets]: all but the empty one, or 2,047 of them."""
    if 2**units - 1 <= SUBSETS:
        return (torch.arange(1, 2**units) >> torch.arange(units)[:, None] & 1).double()
    drawn = torch.randint(2, (units, SUBSETS), generator=torch.Generator().manual_seed(0)).double()
    return torch.where(drawn.any(0), drawn, 1.0)


def share_of_gap_interval(closed: Tensor, gap: Tensor, targets: Tensor, units: Tensor, *, confidence: float = CONFIDENCE) -> Ends:
    """Returns the interval of Σ closed / Σ gap (Fieller), where `gap` may be of either sign: without ends if it may be 0.

    All are sums of rows [rows]; `units` says which of them belong together.
    """
    closed, gap, targets = (by_unit(values, units).double() for values in (closed, gap, targets))
    means = [ratio_mean(values, targets) for values in (closed, gap)]
    (top, below), reach = (mean.value for mean in means), t_quantile(means[0].freedom, confidence=confidence)
    moved = [_residuals(*_counted(values, targets))[0] for values in (closed, gap)]
    square = reach**2
    a = below**2 - square * _covariance(moved[1], moved[1])
    b = top * below - square * _covariance(moved[0], moved[1])
    c = top**2 - square * _covariance(moved[0], moved[0])
    if not a > 0:
        return torch.full_like(top, -math.inf), torch.full_like(top, math.inf)
    half = (b**2 - a * c).clamp(min=0).sqrt()
    return (b - half) / a, (b + half) / a


def by_unit(values: Tensor, units: Tensor) -> Tensor:
    """Returns the sums of values […, rows] over the rows of each unit […, units]: documents, where rows are passages of them."""
    _, places = units.unique(return_inverse=True)
    sums = values.new_zeros(*values.shape[:-1], int(places.max()) + 1)
    return sums.index_add_(-1, places.to(values.device), values)


# shares


def wilson_interval(right: float, total: float, *, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Returns the Wilson score interval of a proportion, `right` of `total`: (low, high)."""
    if not 0 <= right <= total or total < 1:
        raise ValueError(f"wilson_interval: {right} right of {total}; allowed: 0 to the total, which is at least 1")
    return _score_interval(right / total, total, NormalDist().inv_cdf(0.5 + confidence / 2))


def _score_interval(share: float, total: float, reach: float) -> tuple[float, float]:
    shrink = 1 + reach * reach / total
    middle = (share + reach * reach / (2 * total)) / shrink
    half = reach / shrink * math.sqrt(share * (1 - share) / total + reach * reach / (4 * total * total))
    # at the ends the formula gives 0 and 1 up to rounding
    return (0.0 if share == 0 else middle - half), (1.0 if share == 1 else middle + half)


def share_interval(hits: Tensor, units: Tensor, *, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Returns the score interval of the share of hits [rows], from 0 to 1 each, where rows of a unit [rows] belong together.

    Wilson's, with as many rows as would give by themselves the error that the units have: no more than there are, and where all are
    hits or none is, no more than there are units.
    """
    total, share = hits.numel(), float(hits.double().mean())
    counts = by_unit(torch.ones_like(hits), units)
    if len(counts) == total:
        return wilson_interval(share * total, total, confidence=confidence)
    mean = ratio_mean(by_unit(hits, units), counts)
    error = float(mean.error)
    if not math.isfinite(error):  # one unit: its rows are all there is
        return wilson_interval(share * total, total, confidence=confidence)
    if share in (0, 1):
        return wilson_interval(share * len(counts), len(counts), confidence=confidence)
    rows = min(total, share * (1 - share) / max(error * error, 1e-12))
    return _score_interval(share, rows, float(t_quantile(mean.freedom, confidence=confidence)))


def paired_interval(first: int, second: int, rows: int, *, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Returns the interval of the difference of two shares of the same rows, of which `first` are hits of the first alone and
    `second` of the second alone.

    Bonett and Price (2012), with Student's t: as of many rows, after hits were added to both sides (here 1.5, they add 1). It never
    vanishes.
    """
    if min(first, second) < 0 or not 1 <= max(first + second, 1) <= rows:
        raise ValueError(
            f"paired_interval: {first} and {second} of {rows} rows; allowed: together at most the rows, of which there is one"
        )
    total = rows + 3
    one, other = (first + 1.5) / total, (second + 1.5) / total
    reach = _t_quantile(max(rows - 1, 1), confidence)
    half = reach * math.sqrt((one + other - (one - other) ** 2) / total)
    return max(one - other - half, -1.0), min(one - other + half, 1.0)
