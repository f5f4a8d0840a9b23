"""What is read of depth at test time: models by group, all hops or swaps in the mean, what exit rules of the engine give."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

from experiments.hops.reading import TRAINED, at_depth, deepest, last_valid, rate
from experiments.pages import Result, by_label


def models(found: Iterable[Result], *groups: str) -> dict[str, list[Result]]:
    """Returns the runs of some groups by arm and label, seeds in order."""
    chosen = [run | {"label": f"{run['arm']}, {run['label']}"} for run in found if run["group"] in groups]
    return by_label(chosen)


def trained_mean(result: Result, depth: int) -> float:
    """Returns exact match in the mean of all trained numbers of hops or swaps, at a depth."""
    return fmean(at_depth(result, hops, depth) for hops in TRAINED)


def swaps_by_rate(found: Iterable[Result], arm: str) -> dict[float, list[Result]]:
    """Returns the runs of an arm that sees all tokens by rate, seeds in order; the rate of the least loss with seed 0 first."""
    runs = [run for run in found if run["arm"] == arm and run["label"] in ("all in sight", f"all in sight, rate {rate(run):g}")]
    rates = {each: sorted((run for run in runs if rate(run) == each), key=lambda run: run["seed"]) for each in map(rate, runs)}
    first = {each: last_valid(found[0]) for each, found in rates.items() if found[0]["seed"] == 0}
    return {each: rates[each] for each in sorted(first, key=lambda each: first[each])}


def deeper(runs: Iterable[Result], depth: int = 16, trained: int = 8) -> list[float]:
    """Returns what a depth gains over the trained one in the mean of all trained numbers of swaps, in points by seed."""
    return [100 * (trained_mean(run, depth) - trained_mean(run, trained)) for run in runs]


def exit_means(runs: Sequence[Result], rule: str, group: str, limit: str | None = None) -> tuple[float, float]:
    """Returns mean steps and exact match of a group under a rule, over seeds; at most the deepest trained steps where no limit is
    given."""
    found = [run["exits"][limit or str(deepest(run))][rule][group] for run in runs]
    return fmean(steps for steps, _ in found), fmean(exact for _, exact in found)
