"""The page of the second set of rows at own rates, with fresh seeds, from the rows alone.

    R=experiments/results/ouroboros
    python -m experiments.ouroboros.again_tables $R/rates.jsonl $R/again.jsonl $R/runs.jsonl $R/twice.jsonl $R

The first file chose the rates (seed 0) and holds the first set, the second the later rows, the third the ends of the gap. Two rows
are in both sets. They differ by more than was allowed beforehand, so the sets are compared, not put together. Arms that the first
set has no seeds of, or too few, are paired with its other arms on a part of the page that says so. The last file, which may be left
out, holds rows that were run twice at one commit on the base of the second set: mean losses alone, `run` says which run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from experiments.ouroboros.answers import DIVERGED, diverged
from experiments.ouroboros.plan import LEAKING, NORMED, ONCE, PUBLISHED
from experiments.ouroboros.rate_tables import PAIRS, as_planned, at_own_rates, loss_table, pair_table, planned, skipped_table
from experiments.ouroboros.rates import GRID, SEEDS
from experiments.ouroboros.run import DEPTHS, TEXTS
from experiments.ouroboros.tables import Runs, all_pairs, answers_table
from experiments.pages import Result, asked_tables, by_label, difference, missing_part, number, results, table
from experiments.seeds import RULE, mean_loss, reports

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


def both_table(pairs: Sequence[tuple[Result, Result]]) -> str:
    """Returns the losses of the rows that both sets have, the first, the later and the difference."""
    lines = []
    for before, after in pairs:
        for text in TEXTS:
            found = [[mean_loss(reports([run], text), depth) for depth in DEPTHS] for run in (before, after)]
            cells = [f"{number(a)}, {number(b)} ({difference(b - a, 3)})" for a, b in zip(*found, strict=True)]
            lines.append([before["label"], str(before["seed"]), text, *cells])
    return table(["row", "seed", "text", *[f"depth {depth}" for depth in DEPTHS]], lines)


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


def twice_table(found: Mapping[str, Mapping[str, Result]]) -> str:
    """Returns the losses of every run of the rows that were run twice, and how many updates it skipped."""
    lines = [
        [
            run["label"],
            str(run["seed"]),
            where,
            str(run.get("skipped", "–")),
            text,
            *(number(loss_at(run, text, depth)) for depth in DEPTHS),
        ]
        for runs in found.values()
        for text in TEXTS
        for where, run in runs.items()
    ]
    return table(["row", "seed", "run", "updates skipped", "text", *[f"depth {depth}" for depth in DEPTHS]], lines)


def main() -> None:
    """Writes again.md."""
    sources, folder = asked_tables(__doc__)
    first, again, ends, *more = (results([path], ()) for path in sources)
    repeated = alike([run for runs in more for run in runs], first, again)
    own, whole = second_set(first, again), by_label(run for run in ends if run["group"] == "references")
    pairs, across = all_pairs(own, PAIRS), all_pairs(filled(first, again), MIXED)
    fewer = all_pairs(without_diverged(own), PAIRS)
    apart = {names: found for names, found in fewer.items() if found != pairs[names]}
    rows, _ = as_planned([run for run in again if run["group"] != GRID], lambda _: planned(first))
    page = ["# The retrofit study at own rates: the second set, with fresh seeds"]
    page += ["`python -m experiments.ouroboros.again_tables` made this page.", "## How to read it"]
    page.append("\n".join((
        f"- {RULE}",
        "- Rates are those that the first set chose ([rates.md](rates.md)).",
        f"- The sets are not put together: a row that both have was to be within {ALLOWED:g} nats on `test` at depths up to 8.",
        "- † sees the future: its one-pass loss is not a likelihood.",
        f"- ‡ diverged: its training loss (means of 10 updates) ended more than {DIVERGED:g} nat above its least.",
    )))  # fmt: skip
    page += ["## Rows that both sets have: first, later (difference)", both_table(in_both(first, again))]
    if repeated:
        page += [
            "## Rows run twice at one commit on the base of the second set (run a, run b); –: not finite",
            twice_table(repeated),
        ]
    page += ["## Updates that were not finite", skipped_table(rows)]
    page += ["## The second set alone: what is decided", answers_table(pairs)]
    page += ["Without the runs that diverged, where that changes the rows (not the rule):", answers_table(apart)]
    page.append("## Both sets: the seeds that the first one lacks are of the second")
    page.append(answers_table(across))
    for text in TEXTS:
        page += [f"## {text}: loss, second set", loss_table(own, whole, text)]
        page += [f"## {text}: pair by pair, second set", pair_table(pairs, text)]
        page += [f"## {text}: pair by pair, second set without the runs that diverged", pair_table(apart, text)]
        page += [f"## {text}: pair by pair, both sets", pair_table(across, text)]
    every = [*first, *again]
    (folder / "again.md").write_text("\n\n".join([*page, *missing_part(every, planned(first))]) + "\n")
    print(folder / "again.md")


if __name__ == "__main__":
    main()
