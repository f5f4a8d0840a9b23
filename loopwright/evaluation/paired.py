"""Two or three models on the same passages or rows: the difference of their losses, what is won, how much of a gap is recovered.

Intervals are of the differences of documents (or rows), so that what is hard about a passage cancels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from loopwright.data.batch import BatchSource
from loopwright.evaluation.by_depth import drawn_of, read_rows
from loopwright.evaluation.likelihood import NOT_A_LIKELIHOOD, need_likelihood
from loopwright.evaluation.report import number_table, over
from loopwright.evaluation.text import HeldOut, unit_of
from loopwright.metrics.intervals import FEWEST, mean_interval, paired_interval, share_interval, share_of_gap_interval
from loopwright.model.causal_lm import LoopedForCausalLM

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Paired:
    """One model against another on a text: `difference` of their mean losses (below 0: the first is better), and the share of
    passages on which the first has the lower loss (`won`; one with equal losses counts half). Intervals are at 95 %, over `units`
    of what `unit` says; of windows of text both count documents."""

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
    units: int = 0

    @property
    def counted(self) -> int:
        """The number of documents or rows: of one document alone it is 1, whatever its passages are."""
        return 1 if self.unit == "passage" else self.units

    @property
    def decided(self) -> bool:
        """Whether the interval of the difference leaves 0 out, and there are enough documents or rows to say so."""
        return self.counted >= FEWEST and (self.difference_low > 0 or self.difference_high < 0)


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
    chosen = (depths[0] or first.depth[-1], depths[1] or second.depth[-1])
    honest = first.likelihood and second.likelihood
    return _of_losses(first.text, chosen, losses, targets, units, unit_of(first.document_of), likelihood=honest)


def compare_rows(
    first: LoopedForCausalLM,
    second: LoopedForCausalLM,
    parts: Mapping[str, BatchSource],
    *,
    depths: tuple[int, int],
    exact: bool,
    batch_size: int,
    names: tuple[str, str] = ("the first model", "the second model"),
) -> list[Paired]:
    """Returns how the first model does against the second on the rows of each part of a task: the loss and, where answers are
    right or wrong as a whole, exact match (`won`: rows that the first has right and the second wrong; equal ones count half).

    A model that sees the future is refused by its name.
    """
    for name, model in {id(model): (name, model) for name, model in zip(names, (first, second), strict=True)}.values():
        need_likelihood(model, name)
    results = []
    for name, rows in parts.items():
        read = [read_rows(model, rows, [depth], batch_size) for model, depth in zip((first, second), depths, strict=True)]
        (losses, targets, unit), (others, _, _) = (drawn_of(*each) for each in read)
        results.append(_of_losses(name, depths, torch.cat([losses, others]), targets, torch.arange(len(targets)), unit))
        if exact:
            results.append(_of_answers(name, depths, *(each["exact"][0] for each, _ in read)))
    return results


def _of_losses(
    name: str, depths: tuple[int, int], losses: Tensor, targets: Tensor, units: Tensor, unit: str, *, likelihood: bool = True
) -> Paired:
    low, high = mean_interval(losses[0] - losses[1], targets, units)
    wins = (losses[0] < losses[1]).double() + (losses[0] == losses[1]).double() / 2
    mean = losses.sum(1) / targets.sum()
    return Paired(
        name, depths, len(targets), unit, float(mean[0] - mean[1]), float(low), float(high),
        float(wins.mean()), *share_interval(wins, units), likelihood, units=len(units.unique()),
    )  # fmt: skip


def _of_answers(name: str, depths: tuple[int, int], first: Tensor, second: Tensor) -> Paired:
    """The difference of exact match of rows that are right or wrong [rows]."""
    ahead, behind, rows = int((first & ~second).sum()), int((second & ~first).sum()), len(first)
    wins = 0.5 + (first.double() - second.double()) / 2
    return Paired(
        name, depths, rows, "row", (ahead - behind) / rows, *paired_interval(ahead, behind, rows),
        float(wins.mean()), *share_interval(wins, torch.arange(rows)), True, "exact match", units=rows,
    )  # fmt: skip


def paired_table(results: Sequence[Paired], first: str, second: str, width: int | None = None) -> Table:
    """Returns results as a rich table, each with its verdict in words."""
    rows = []
    for r in results:
        better = (r.difference < 0) == (r.measure == "loss")
        verdict = f"{'first' if better else 'second'} is better" if r.decided else _undecided(r)
        difference = f"{r.difference:+.4g}"
        if math.isfinite(r.difference_low):  # of one row there is no interval
            difference += f" ({r.difference_low:+.4g} to {r.difference_high:+.4g})"
        won = f"{100 * r.won:.1f} % ({100 * r.won_low:.1f}–{100 * r.won_high:.1f})"
        mark = "" if r.likelihood else f"; {NOT_A_LIKELIHOOD}"
        rows.append([r.text, r.measure, f"{r.depths[0]} / {r.depths[1]}", difference, won, verdict + mark])
    table = number_table(["on", "measure", "depths", "first - second", "won", "verdict"], rows, width)
    table.title = f"first: {first}\nsecond: {second}"
    counted = {r.text: over(r.units, r.unit) + " of one document" * (r.unit == "passage") for r in results if r.measure == "loss"}
    alone = len(set(counted.values())) == 1
    each = [told if alone else f"{text}: {told}" for text, told in counted.items()]
    table.caption = "paired; 95 % " + "; ".join(dict.fromkeys(each))
    return table


def _undecided(result: Paired) -> str:
    return "undecided" if result.counted >= FEWEST else f"undecided: {result.counted} is too few, {FEWEST} are needed"


def recovered(
    third: HeldOut, *, worse: HeldOut, better: HeldOut, depth: int | None = None, worse_depth: int | None = None
) -> Recovered:
    """Returns which share of the gap from the worse to the better model the third one recovers, at its depth."""
    _check_same(worse, better, third)
    losses, targets, units = _together(worse.at(worse_depth), better.at(), third.at(depth))
    whole = losses.sum(1) / targets.sum()
    gap = float(whole[0] - whole[1])
    if not gap > 0:
        raise ValueError(f"{third.text}: the worse model's loss {float(whole[0]):.4g} is not above {float(whole[1]):.4g}; no gap")
    low, high = share_of_gap_interval(losses[0] - losses[2], losses[0] - losses[1], targets, units)
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
