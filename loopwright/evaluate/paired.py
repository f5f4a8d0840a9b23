"""Two or three models on the same passages: the difference of their losses, passages won, and how much of a gap is recovered.

All draw the same documents in each resample, so that what is hard about a passage cancels out of a difference.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from loopwright.evaluate.heldout import HeldOut
from loopwright.metrics.score import by_unit, percentile_interval, resampled_means


@dataclass(frozen=True)
class Paired:
    """One model against another on a text: `difference` of their mean losses (below 0: the first is better), and the share of
    passages on which the first has the lower loss (`won`; one with equal losses counts half). Intervals are at 95 %."""

    text: str
    depths: tuple[int, int]
    passages: int
    unit: str
    difference: float
    difference_low: float
    difference_high: float
    won: float
    won_low: float
    won_high: float
    likelihood: bool

    @property
    def decided(self) -> bool:
        """Whether the interval of the difference leaves 0 out."""
        return self.difference_low > 0 or self.difference_high < 0


@dataclass(frozen=True)
class Recovered:
    """The share of the gap between a worse and a better model that a third one closes: (worse − third) / (worse − better)."""

    text: str
    share: float
    low: float
    high: float
    gap: float
    likelihood: bool


def compare(first: HeldOut, second: HeldOut, *, depths: tuple[int | None, int | None] = (None, None)) -> Paired:
    """Returns how the first model does against the second, each at its depth (the last it was measured at where none is given)."""
    _check_same(first, second)
    losses, targets, units = _together(first.at(depths[0]), second.at(depths[1]))
    means = resampled_means(by_unit(losses, units), by_unit(targets, units))
    low, high = percentile_interval(means[0] - means[1])
    wins = (losses[0] < losses[1]).double() + (losses[0] == losses[1]).double() / 2
    ones = torch.ones_like(targets)
    won_low, won_high = percentile_interval(resampled_means(by_unit(wins, units), by_unit(ones, units)))
    mean = losses.sum(1) / targets.sum()
    chosen = (depths[0] or first.depth[-1], depths[1] or second.depth[-1])
    return Paired(
        first.text, chosen, len(targets), first.unit, float(mean[0] - mean[1]), float(low), float(high),
        float(wins.mean()), float(won_low), float(won_high), first.likelihood and second.likelihood,
    )  # fmt: skip


def recovered(
    third: HeldOut, *, worse: HeldOut, better: HeldOut, depth: int | None = None, worse_depth: int | None = None
) -> Recovered:
    """Returns which share of the gap from the worse to the better model the third one recovers, at its depth."""
    _check_same(worse, better, third)
    losses, targets, units = _together(worse.at(worse_depth), better.at(), third.at(depth))
    means = resampled_means(by_unit(losses, units), by_unit(targets, units))
    whole = losses.sum(1) / targets.sum()
    gap = float(whole[0] - whole[1])
    if not gap > 0:
        raise ValueError(f"{third.text}: the worse model's loss {float(whole[0]):.4g} is not above {float(whole[1]):.4g}; no gap")
    low, high = percentile_interval(_share(means))
    honest = worse.likelihood and better.likelihood and third.likelihood
    return Recovered(third.text, float(_share(whole)), float(low), float(high), gap, honest)


def _share(losses: Tensor) -> Tensor:
    return (losses[0] - losses[2]) / (losses[0] - losses[1])


def _together(*found: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    return torch.stack([losses for losses, _, _ in found]), found[0][1], found[0][2]


def _check_same(*reports: HeldOut) -> None:
    prints = {report.fingerprint for report in reports}
    if len(prints) != 1:
        names = ", ".join(f"{r.text} ({r.passages} passages of {r.context})" for r in reports)
        raise ValueError(f"compare: {names} are not the same passages; allowed: one text, tokenizer and context for all")
