"""Two or three models on the same passages or rows: the difference of their losses, what is won, how much of a gap is recovered.

All draw the same documents in each resample, so that what is hard about a passage cancels out of a difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from loopwright.data.batch import Source
from loopwright.evaluate.heldout import NOT_A_LIKELIHOOD, HeldOut
from loopwright.evaluate.sweep import number_table
from loopwright.generate.readings import Reading, readings
from loopwright.metrics.score import by_unit, percentile_interval, resampled_means
from loopwright.model.looped import LoopedForCausalLM

if TYPE_CHECKING:
    from rich.table import Table


FEWEST = 6  # rows or passages of a decision: five that agree come by chance more often than 5 times in 100


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
    measure: str = "loss"  # or "exact match", where more is better

    @property
    def decided(self) -> bool:
        """Whether the interval of the difference leaves 0 out, and there are enough rows or passages to say so."""
        return self.passages >= FEWEST and (self.difference_low > 0 or self.difference_high < 0)


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


def compare_rows(
    name: str,
    first: LoopedForCausalLM,
    second: LoopedForCausalLM,
    rows: Source,
    *,
    depths: tuple[int, int],
    exact: bool,
    batch_size: int,
) -> list[Paired]:
    """Returns how the first model does against the second on the rows of a task: the loss and, where answers are right or wrong
    as a whole, exact match (`won`: rows that the first has right and the second wrong; equal ones count half)."""
    measured = [_measured(model, rows, depth, batch_size) for model, depth in zip((first, second), depths, strict=True)]
    targets, ones = measured[0]["targets"], torch.ones_like(measured[0]["targets"])
    losses = torch.stack([each["loss"] for each in measured])
    results = [_paired(name, depths, losses, targets, "loss", lower_wins=True)]
    if exact:
        right = torch.stack([each["exact"] for each in measured])
        results.append(_paired(name, depths, right, ones, "exact match", lower_wins=False))
    return results


def _measured(model: LoopedForCausalLM, rows: Source, depth: int, batch_size: int) -> dict[str, Tensor]:
    parts: list[Reading] = []
    training = model.training
    model.eval()
    try:
        for start in range(0, len(rows), batch_size):
            batch = rows.batch(range(start, min(start + batch_size, len(rows)))).to(model.device)
            parts += readings(model, batch, [depth])
    finally:
        model.train(training)
    return {name: torch.cat([getattr(part, name).double().cpu() for part in parts]) for name in ("loss", "targets", "exact")}


def _paired(name: str, depths: tuple[int, int], values: Tensor, weights: Tensor, measure: str, *, lower_wins: bool) -> Paired:
    means = resampled_means(values, weights)
    low, high = percentile_interval(means[0] - means[1])
    ahead = values[0] < values[1] if lower_wins else values[0] > values[1]
    wins = ahead.double() + (values[0] == values[1]).double() / 2
    won_low, won_high = percentile_interval(resampled_means(wins[None], torch.ones_like(wins))[0])
    mean = values.sum(1) / weights.sum()
    return Paired(
        name, depths, values.shape[1], "row", float(mean[0] - mean[1]), float(low), float(high),
        float(wins.mean()), float(won_low), float(won_high), True, measure,
    )  # fmt: skip


def paired_table(results: Sequence[Paired], first: str, second: str, width: int | None = None) -> Table:
    """Returns results as a rich table, each with its verdict in words."""
    rows = []
    for r in results:
        better = (r.difference < 0) == (r.measure == "loss")
        verdict = f"{'first' if better else 'second'} is better" if r.decided else _undecided(r)
        difference = f"{r.difference:+.4g} ({r.difference_low:+.4g} to {r.difference_high:+.4g})"
        won = f"{100 * r.won:.1f} % ({100 * r.won_low:.1f}–{100 * r.won_high:.1f})"
        mark = "" if r.likelihood else f"; {NOT_A_LIKELIHOOD}"
        rows.append([r.text, r.measure, f"{r.depths[0]} / {r.depths[1]}", difference, won, verdict + mark])
    table = number_table(["on", "measure", "depths", "first - second", "won", "verdict"], rows, width)
    table.title = f"first: {first}\nsecond: {second}"
    units = sorted({r.unit for r in results})
    count = sum({r.text: r.passages for r in results}.values())  # a split stands there once per measure
    what = "passages" if any(r.unit != "row" for r in results) else "rows"
    table.caption = f"paired over {count:,} {what}; 95 % intervals by drawing {' and '.join(units)}s"
    return table


def _undecided(result: Paired) -> str:
    return "undecided" if result.passages >= FEWEST else f"undecided: {result.passages} is too few, {FEWEST} are needed"


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
