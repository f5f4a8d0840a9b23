"""Several seeds of a row as one, and two rows over the seeds they share.

The rule: losses of a passage are averaged over the seeds, and summed over each document for the interval of a difference. This
interval is about documents, not about seeds, whose spread is often the larger of the two: a
difference is decided where both its interval over documents and that over seeds (Student's t) leave 0 out, on the same side. That
all seeds have one sign is not enough: three seeds of rows that do not differ agree in one case of four.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Protocol, TypeVar

import torch

from experiments.pages import Result
from loopwright.evaluation.paired import compare, recovered
from loopwright.evaluation.text import HeldOut
from loopwright.metrics.intervals import t_quantile

RULE = (
    "Losses of a passage are averaged over the seeds two rows share (seed by seed they saw the same batches) and summed over each "
    "document: the 95 % interval is that of the mean difference over documents (docs/evaluation.md says how it is made). It is "
    "about documents; what seeds do is told by the values of each seed beside it. A difference counts as decided where this "
    "interval and that of the mean over seeds (Student's t, 95 %) both leave 0 out; with one seed there is no second one."
)


def over_seeds(differences: Sequence[float]) -> tuple[float, float]:
    """Returns the 95 % interval of the mean difference, by Student's t: one seed's own value; no bounds if not finite."""
    count = len(differences)
    if not all(map(math.isfinite, differences)):
        return -math.inf, math.inf
    mean = sum(differences) / count
    reach = 0.0 if count == 1 else _student(count - 1) * statistics.stdev(differences) / math.sqrt(count)
    return mean - reach, mean + reach


@cache
def _student(freedom: int) -> float:
    return float(t_quantile(torch.tensor(float(freedom))))


def paired_p(differences: Sequence[float]) -> float:
    """Returns the two-sided p of the paired t-test of three seeds: with two degrees of freedom it has a closed form."""
    if len(differences) != 3:
        raise ValueError(f"paired_p: {len(differences)} seeds; allowed: three")
    spread = statistics.stdev(differences)
    if spread == 0:
        return float(not any(differences))
    t = statistics.mean(differences) * math.sqrt(3) / spread
    return 1 - abs(t) / math.sqrt(t * t + 2)


def verdict(*intervals: tuple[float, float]) -> str:
    """Returns "lower" or "higher" where every interval of a difference lies on that side of 0, else "not resolved"."""
    if max(high for _, high in intervals) < 0:
        return "lower"
    return "higher" if min(low for low, _ in intervals) > 0 else "not resolved"


DECIDED = {"lower": "decided", "higher": "decided", "not resolved": "undecided"}


def decided(*intervals: tuple[float, float]) -> str:
    """Returns "decided" where every interval of a difference leaves 0 out on one side, else "undecided"."""
    return DECIDED[verdict(*intervals)]


@dataclass(frozen=True)
class Pooled:
    """One row against another: the difference of mean losses (below 0: the first is better) with its interval over documents,
    the same seed by seed, and the share of passages that the first wins, seed by seed."""

    seeds: tuple[int, ...]
    depths: tuple[int, int]
    difference: float
    low: float
    high: float
    of_seeds: tuple[float, ...]
    won: tuple[float, ...]
    likelihood: bool

    @property
    def verdict(self) -> str:
        """What is decided about the first row's loss: "lower", "higher" or "not resolved"."""
        return verdict(self.over_seeds, (self.low, self.high))

    @property
    def over_seeds(self) -> tuple[float, float]:
        """The 95 % interval of the mean difference over seeds."""
        return over_seeds(self.of_seeds)


K = TypeVar("K", bound=Hashable)


class Compared(Protocol):
    """One thing less another, paired by seed."""

    @property
    def of_seeds(self) -> Sequence[float]: ...
    @property
    def verdict(self) -> str: ...


def stay_decided(found: Mapping[K, Compared]) -> list[K]:
    """Returns which of many comparisons stay decided after a Bonferroni correction for all of them."""
    told = {key: each for key, each in found.items() if each.verdict != "not resolved"}
    return [key for key, each in told.items() if paired_p(each.of_seeds) * len(found) < 0.05]


@dataclass(frozen=True)
class Share:
    """The share of a gap that a row recovers: all seeds together with the interval over documents, and each alone."""

    share: float
    low: float
    high: float
    gap: float
    of_seeds: tuple[float, ...]


def held(run: Result, text: str) -> HeldOut:
    """Returns a run's report of one text."""
    return HeldOut.of(run["texts"][text])


def reports(runs: Sequence[Result], text: str) -> list[HeldOut]:
    """Returns each run's report of one text."""
    return [held(run, text) for run in runs]


def of_documents(run: Result, text: str, numbers: Collection[int]) -> Result:
    """Returns a run whose report of a text is of some documents alone, at the depths at which it keeps their losses. It has
    neither intervals nor perplexity, and 0 bytes: a row does not keep how many each passage has."""
    whole = held(run, text)
    places = [place for place, document in enumerate(whole.document_of) if document in numbers]
    if not places:
        known = f"{min(whole.document_of)} to {max(whole.document_of)}"
        raise ValueError(f"{run['name']}: {text!r} has no document of {sorted(numbers)[:5]}; it has documents from {known}")
    kept = [row for row, losses in enumerate(whole.losses) if losses]
    losses = tuple(tuple(whole.losses[row][place] for place in places) for row in kept)
    targets = tuple(whole.targets_of[place] for place in places)
    means = tuple(None if None in each else sum(each) / sum(targets) for each in losses)
    nothing = tuple(None for _ in kept)
    present = sorted({whole.document_of[place] for place in places})
    part = replace(
        whole, fingerprint=f"{whole.fingerprint}, documents {present}", honest=None,
        depth=tuple(whole.depth[row] for row in kept), losses=losses, loss=means,
        targets_of=targets, targets=sum(targets), document_of=tuple(whole.document_of[place] for place in places),
        loss_low=nothing, loss_high=nothing, perplexity=nothing, bits_per_byte=nothing,
        documents=len(present), passages=len(places), bytes=0,
    )  # fmt: skip
    return {**run, "texts": {text: asdict(part)}}


def mean_loss(found: Sequence[HeldOut], depth: int) -> float:
    """Returns the loss at a depth, the mean over the reports; infinite where one has none."""
    if not all(depth in each.depth for each in found):
        return math.inf
    mean = float(torch.stack([_loss(each, depth) for each in found]).mean())
    return mean if math.isfinite(mean) else math.inf


def _loss(report: HeldOut, depth: int) -> torch.Tensor:
    losses, targets, _ = report.at(depth)
    if len(losses):
        return losses.sum() / targets.sum()
    whole = report.loss[report.depth.index(depth)]  # of a row that keeps those of single passages at other depths alone
    return torch.tensor(math.nan if whole is None else whole, dtype=torch.float64)


def best_depth(found: Sequence[HeldOut]) -> int:
    """Returns the depth with the least loss over all reports."""
    return min(found[0].depth, key=lambda depth: mean_loss(found, depth))


def averaged(found: Sequence[HeldOut], depth: int | None = None) -> HeldOut:
    """Returns one report at one depth (the best where none is given) whose losses are the mean of all reports' losses."""
    depth = best_depth(found) if depth is None else depth
    rows = torch.stack([each.at(depth)[0] for each in found]).mean(0).tolist()
    losses = tuple(None if math.isnan(value) else value for value in rows)
    loss = mean_loss(found, depth)
    return replace(
        found[0], depth=(depth,), loss=(loss if math.isfinite(loss) else None,), losses=(losses,), honest=None,
        loss_low=(None,), loss_high=(None,), perplexity=(None,), bits_per_byte=(None,),
        likelihood=all(each.likelihood for each in found),
    )  # fmt: skip


def shared(first: Sequence[Result], second: Sequence[Result]) -> list[tuple[Result, Result]]:
    """Returns the runs of two rows whose seeds both have, seed by seed."""
    others = {run["seed"]: run for run in second}
    return [(run, others[run["seed"]]) for run in first if run["seed"] in others]


def pooled(first: Sequence[Result], second: Sequence[Result], text: str, depth: int | None = None) -> Pooled | None:
    """Returns the first row against the second, both at one depth or each at its best; None without a shared seed or losses."""
    both = shared(first, second)
    if not both:
        return None
    sides = reports([a for a, _ in both], text), reports([b for _, b in both], text)
    if depth is not None and not all(depth in each.depth and len(each.at(depth)[0]) for side in sides for each in side):
        return None  # a row that keeps the losses of single passages at other depths alone has none to pair
    first_depth, second_depth = (best_depth(side) if depth is None else depth for side in sides)
    whole = compare(averaged(sides[0], first_depth), averaged(sides[1], second_depth))
    alone = list(zip(*sides, strict=True))
    return Pooled(
        tuple(a["seed"] for a, _ in both), (first_depth, second_depth),
        whole.difference, whole.difference_low, whole.difference_high,
        tuple(mean_loss([a], first_depth) - mean_loss([b], second_depth) for a, b in alone),
        tuple(won(a, b, depths=(first_depth, second_depth)) for a, b in alone), whole.likelihood,
    )  # fmt: skip


def won(first: HeldOut, second: HeldOut, *, depths: tuple[int, int]) -> float:
    """Returns the share of passages on which the first has the lower loss; one with equal losses counts half."""
    a, b = first.at(depths[0])[0], second.at(depths[1])[0]
    return float(((a < b).double() + (a == b).double() / 2).mean())


def share_of_gap(
    runs: Sequence[Result], worse: Result | None, better: Result | None, text: str, depth: int | None = None
) -> Share | None:
    """Returns the share of the gap from the worse run (at its first depth) to the better (at its best) that a row recovers, at its
    best depth where none is given; None where one of the two is missing, there is no gap, or a loss is not finite."""
    if worse is None or better is None:
        return None
    found, start, end = reports(runs, text), held(worse, text), held(better, text)
    start, end, depth = averaged([start], start.depth[0]), averaged([end]), best_depth(found) if depth is None else depth
    top = mean_loss([start], start.depth[0])
    gap = top - mean_loss([end], end.depth[0])
    if not 0 < gap < math.inf or not math.isfinite(mean_loss(found, depth)):
        return None
    whole = recovered(averaged(found, depth), worse=start, better=end)
    return Share(whole.share, whole.low, whole.high, gap, tuple((top - mean_loss([each], depth)) / gap for each in found))
