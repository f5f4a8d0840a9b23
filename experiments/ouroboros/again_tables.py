"""The page of the second set of rows at own rates, with fresh seeds, from the rows alone.

    R=experiments/results/ouroboros
    python -m experiments.ouroboros.again_tables $R/rates.jsonl $R/again.jsonl $R/twice.jsonl $R

The first file chose the rates (seed 0) and holds the first set, the second the later rows. Two rows are in both sets. They differ
by more than was allowed beforehand, so the sets are compared, not put together. Arms that the first set has no seeds of, or too
few, are paired with its other arms on a part of the page that says so. The last file holds rows that were run twice at one commit
on the base of the second set: mean losses alone, `run` says which run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.ouroboros.answers import diverged
from experiments.ouroboros.plan import LEAKING, NORMED, ONCE, PUBLISHED, Row
from experiments.ouroboros.rate_tables import ABOUT, BY_DEPTH, COLUMNS, PAIRS, at_own_rates, planned
from experiments.ouroboros.rates import GRID, SEEDS
from experiments.ouroboros.run import DEPTHS, TEXTS
from experiments.ouroboros.tables import Runs
from experiments.pages import Result, results
from experiments.seeds import mean_loss, reports
from experiments.tables import RESULTS, Page, arm_table, columns_of, loss_columns, named_pairs, pair_table

ALLOWED = 0.02  # nats on `test` at a trained depth: by how much a row made again was allowed to differ, said before the run
FIRST, SECOND = "first set", "second set"
ADDED = (LEAKING, ONCE, NORMED, PUBLISHED)  # arms of which the first set lacks seeds
MIXED = tuple(pair for pair in PAIRS if {*pair} & {*ADDED})


def second_set(first: Sequence[Result], again: Sequence[Result]) -> Runs:
    """Returns the later rows by arm, at the rates that the first ones chose."""
    return at_own_rates([*(run for run in first if run["group"] == GRID), *again])


def filled(first: Sequence[Result], again: Sequence[Result]) -> Runs:
    """Returns the first set, with the later rows of the seeds that it lacks in the place of those."""
    there = {run["name"] for run in first}
    return at_own_rates([*first, *(run for run in again if run["seed"] in SEEDS and run["name"] not in there)])


def without_diverged(runs: Runs) -> Runs:
    """Returns the runs that did not come apart in training."""
    return {arm: kept for arm, found in runs.items() if (kept := [run for run in found if not diverged(run)])}


def in_both(first: Sequence[Result], again: Sequence[Result]) -> list[tuple[Result, Result]]:
    """Returns the rows that both sets have, the first set's before the later one."""
    others = {run["name"]: run for run in first}
    return [(others[run["name"]], run) for run in again if run["name"] in others]


def changed(before: Result, after: Result, text: str) -> dict[int, float]:
    """Returns how far the later of two runs of one row is above the first, by depth."""
    pair = [reports([run], text) for run in (before, after)]
    return {depth: mean_loss(pair[1], depth) - mean_loss(pair[0], depth) for depth in DEPTHS}


def alike(twice: Sequence[Result], first: Sequence[Result], again: Sequence[Result]) -> dict[str, dict[str, Result]]:
    """Returns all runs of each row that was run twice: by its name, then by where the run is from, in order of time."""
    sets = {FIRST: {run["name"]: run for run in first}, SECOND: {run["name"]: run for run in again}}
    found: dict[str, dict[str, Result]] = {}
    for run in twice:
        name = run["name"].removesuffix(f"/{run['run']}")
        before = {where: runs[name] for where, runs in sets.items() if name in runs}
        found.setdefault(name, before)[f"run {run['run']}"] = run
    return found


def loss_at(run: Result, text: str, depth: int) -> float:
    """Returns the mean loss of a run, of which no losses of single documents are needed; NaN where it is not finite."""
    held = run["texts"][text]
    loss = held["loss"][held["depth"].index(depth)]
    return math.nan if loss is None else float(loss)


def parts(found: Sequence[Result]) -> dict[str, str]:
    """Returns the tables of the page: rows of both sets, those that were run twice, and the second set at its rates."""
    first, again, twice = ([run for run in found if run["file"] == name] for name in ("rates", "again", "twice"))
    own, by_depth = second_set(first, again), loss_columns(TEXTS, DEPTHS)
    sets = [zip((FIRST, SECOND), pair, strict=True) for pair in in_both(first, again)]
    both = {f"{run['name']}, {where}": [run] for pair in sets for where, run in pair}
    runs = {f"{name}, {where}": [run] for name, each in alike(twice, first, again).items() for where, run in each.items()}
    pairs = {
        "The second set alone: pair by pair": (own, PAIRS),
        "The same without the runs that diverged": (without_diverged(own), PAIRS),
        "Both sets, the seeds that the first one lacks are of the second: pair by pair": (filled(first, again), MIXED),
    }
    return {
        "Rows that both sets have": arm_table(both, by_depth),
        "Rows run twice at one commit on the base of the second set": arm_table(runs, by_depth | columns_of("skipped")),
        "The second set": arm_table(own, COLUMNS | {"diverged": diverged} | by_depth),
        **{what: pair_table(named_pairs(arms, names), [*TEXTS]) for what, (arms, names) in pairs.items()},
        "The second set alone: pair by pair, at equal depths": pair_table(named_pairs(own, BY_DEPTH), [*TEXTS], DEPTHS),
    }


def planned_after(found: Sequence[Result]) -> Iterator[Row]:
    """All rows that the plan has for the rates that the first set chose."""
    return planned([run for run in found if run["file"] == "rates"])


@dataclass(frozen=True)
class Sets(Page):
    """A page of files of which two may have rows of one name: each row says which file it is of."""

    def read(self, paths: Sequence[str] = ()) -> list[Result]:
        """Returns the rows, file by file."""
        files = [Path(path) for path in paths or (RESULTS / file for file in self.files)]
        return [run | {"file": file.stem} for file in files for run in results([str(file)], ())]


PAGE = Sets(
    "The retrofit study at own rates: the second set, with fresh seeds",
    tuple(f"ouroboros/{name}.jsonl" for name in ("rates", "again", "twice")), parts, planned_after, name="again.md",
    about=(*ABOUT, f"Not put together: a row of both sets was to be within {ALLOWED:g} nats on `test` at depths to 8."),
)  # fmt: skip


if __name__ == "__main__":
    PAGE.main(__doc__, "experiments.ouroboros.again_tables")
