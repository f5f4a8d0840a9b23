"""The retrofit study's pairs at depths chosen on `valid`, as the rates were, and not on the texts they are reported on."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from experiments.ouroboros.plan import DIAGONAL
from experiments.ouroboros.rates import GRID, arm_of
from experiments.ouroboros.tables import Runs
from experiments.pages import Result
from experiments.readme.retrofit.corrected import NAMES, chances
from experiments.readme.retrofit.own_rates import Beside, beside, between, own_runs, tried
from experiments.readme.rows import WORDS, when
from experiments.seeds import best_depth, reports

BY_DEPTH = ("depth", "loss", "loss_low", "loss_high", "perplexity", "bits_per_byte", "losses")  # of a report of held-out text


@cache
def depth_of(arm: str) -> int:
    """Returns the depth with the least loss on `valid`, of the run that chose the arm's rate."""
    rate = own_runs()[arm][0]["rate"]
    (run,) = [run for run in tried() if run["group"] == GRID and arm_of(run) == arm and run["rate"] == rate]
    held = run["texts"]["valid"]  # as a whole: those of single passages were not kept
    return min(zip(held["loss"], held["depth"], strict=True))[1]


def only_at(run: Result, depth: int) -> Result:
    """Returns a run as if it had been measured at one depth alone."""
    texts = {}
    for name, report in run["texts"].items():
        place = list(report["depth"]).index(depth)
        texts[name] = report | {key: [report[key][place]] for key in BY_DEPTH if report.get(key)}
    return run | {"texts": texts}


def runs_there() -> Runs:
    """Returns the runs of each arm at its depth."""
    arms = {arm for pair in chances() for arm in pair}
    return {arm: [only_at(run, depth_of(arm)) for run in own_runs()[arm]] for arm in arms}


def claims() -> Iterator[str]:
    """Yields what docs/ouroboros.md says."""
    there = runs_there()
    other = {arm: best_depth(reports(own_runs()[arm], "test")) for arm in there}
    other = {arm: depth for arm, depth in other.items() if depth != depth_of(arm)}
    same = all(alike(between(there, *pair), beside(*pair)) for pair in chances())
    told = f"with depths chosen on `valid` {NAMES[DIAGONAL]} alone has another, {depth_of(DIAGONAL)} for {other.get(DIAGONAL)}"
    yield when(same and [*other] == [DIAGONAL], f"{told}, and no verdict of the {WORDS[len(chances())]} pairs changes")


def alike(first: Beside, second: Beside) -> bool:
    """Returns whether two comparisons have one verdict."""
    return (first.side, first.decided) == (second.side, second.decided)
