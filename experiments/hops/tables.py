"""The study's page and figures, from its results alone.

python -m experiments.hops.tables experiments/results/hops/runs.jsonl experiments/results/hops
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from experiments.hops.depth_tables import models, swaps_by_rate, trained_mean
from experiments.hops.figures import draw_all
from experiments.hops.plan import ARMS, GROUPS, HARDNESS, LONGER, SWAPS_OWN, Run
from experiments.hops.reading import (
    SOLVED,
    TRAINED,
    at_own_depth,
    at_own_rates,
    best_anywhere,
    by_arm,
    exact_of,
    last_valid,
    mean_exact,
    rate,
    solved_at,
    solved_hops,
    steps_needed,
)
from experiments.pages import Result, table
from experiments.tables import Columns, Page, arm_table, beside, columns_of, named_pairs, points_table

BEYOND = (8, 12, 16, 32, 64, 80)  # depths that looped arms are shown at
PAIRS = (
    ("1⊗8", "plain 8"), ("1⊗8", "plain 1"), ("1⊗8", "plain 2"), ("2⊗4", "plain 8"), ("2⊗4", "plain 2"), ("1⊗8", "2⊗4"),
    ("1⊗8", "plain 1, 8 times the updates"), ("1⊗8", "plain 2, 4 times the updates"), ("2⊗4", "plain 2, 4 times the updates"),
    ("plain 1, 8 times the updates", "plain 1"), ("plain 2, 4 times the updates", "plain 2"),
)  # fmt: skip
SWAP_PAIRS = (
    ("1⊗8, all in sight", "plain 8, all in sight"), ("1⊗8, all in sight", "plain 1, all in sight"),
    ("1⊗16, window 2", "plain 16, window 2"), ("1⊗8, all in sight, depth 4 to 12", "1⊗8, all in sight"),
    ("1⊗16, window 2, depth 8 to 24", "1⊗16, window 2"),
    (f"1⊗8, all in sight, rate {SWAPS_OWN:g}", f"plain 8, all in sight, rate {SWAPS_OWN:g}"),
)  # fmt: skip
FULL = "full depth"
ABOUT = (
    "Every row of letters is asked at its last letter, 500 rows for each number of hops; four letters, so that a guess is right on "
    "a quarter. A chain has a start value and swaps of five values, with an answer after each; 16 swaps were trained, and a guess "
    "is right on a fifth. A number of hops or swaps is *solved* where it and all smaller ones are right on at least "
    f"{100 * SOLVED:.0f} % of their rows. Intervals of differences are over seeds (Student's t, 95 %), paired by seed: a "
    "difference is decided where its interval leaves 0 out."
)
EXIT_HOW = (
    "Mean steps; exact match (%), by group. *Easy* is 1 to 5 hops or swaps, *middle* 6 to 10, *hard* 11 to 16, *beyond* what was "
    "not trained. At full depth an answer takes all the steps allowed. Rules have the engine's own limits; for entropy a stricter "
    "one, chosen on these rows, is shown too."
)
EXACT = f"exact (%), mean of {TRAINED[0]} to {TRAINED[-1]}"
COLUMNS: Columns = {
    **columns_of("parameters", "flops"), "rate": rate, "loss on `valid`": last_valid, "solved": solved_hops,
    EXACT: lambda run: percent_at(run),
    "exact (%), by hops": lambda run: ", ".join(f"{100 * value:.0f}" for value in at_own_depth(run).values()),
    "steps needed, by hops": lambda run: ", ".join(str(steps_needed(run, hops) or "–") for hops in TRAINED),
    "training, s": lambda run: round(run["train_seconds"]),
}  # fmt: skip


def depth_columns(runs: Iterable[Result]) -> Columns:
    """Returns columns of depths at which all runs were measured: what is solved, and exact match; then the best of all depths."""
    measured = [next(iter(run["tests"].values()))["depth"] for run in runs]
    depths = [depth for depth in BEYOND if all(depth in each for each in measured)]
    far = [hops for hops in (24, 32, 48, 64) if all(str(hops) in run["tests"] for run in runs)]
    return (
        {f"solved at depth {depth}": partial(solved_at, depth=depth) for depth in depths}
        | {f"{EXACT} at depth {depth}": partial(percent_at, depth=depth) for depth in depths}
        | {f"{hops} at the best of all depths": partial(best_anywhere, hops=hops) for hops in far}
    )


def exit_lines(name: str, runs: Sequence[Result]) -> Iterator[list[str]]:
    """Yields a line for every limit and rule of a model: mean steps and exact match (%) of each group, seeds side by side."""

    def left(run: Result, limit: str, rule: str, group: str) -> str:
        if rule == FULL:
            return f"{limit}; {100 * exact_of(run, group, int(limit)):.1f}"
        steps, exact = run["exits"][limit][rule][group]
        return f"{steps:.1f}; {100 * exact:.1f}"

    for limit, rules in runs[0]["exits"].items():
        for rule in (FULL, *rules):
            groups = next(iter(rules.values()))
            cells = [beside(left(run, limit, rule, group) for run in runs) for group in groups]
            yield [name, limit, rule, *cells, *["–"] * (len(HARDNESS) - len(groups))]


def percent_at(run: Result, depth: int | None = None) -> float:
    """Returns exact match in the mean of all trained numbers at a depth, the trained one where none is given, in percent."""
    return 100 * (mean_exact(run) if depth is None else trained_mean(run, depth))


def parts(found: list[Result]) -> dict[str, str]:
    """Returns the tables of the page."""
    hops, swaps = ([run for run in found if run["group"].startswith("chain") == chain] for chain in (False, True))
    arms = by_arm(run for run in found if run["group"] == "compared")
    longer = by_arm(run for run in found if run["group"] == "longer")
    own = at_own_rates(found) | {f"{arm}, {LONGER[arm]} times the updates": runs for arm, runs in longer.items()}
    chains, (looped, chained) = models(swaps, *GROUPS), ([run for run in each if ARMS[run["arm"]][1] > 1] for each in (hops, swaps))
    made = {
        "Every model of hops": arm_table(models(hops, *GROUPS), COLUMNS),
        "Differences at the recipe's rate": points_table(named_pairs(arms, PAIRS), EXACT, percent_at),
        "Differences, each at its own rate": points_table(named_pairs(own, PAIRS), EXACT, percent_at),
        "Hops by depth": arm_table(models(looped, *GROUPS), depth_columns(looped)),
    }
    random = [("random depth", "fixed depth", models(found, "random").get("1⊗8, depth 4 to 12", []), arms.get("1⊗8", []))]
    for depth in BEYOND[:4]:
        made[f"Random depth less fixed depth, at depth {depth}"] = points_table(random, EXACT, partial(percent_at, depth=depth))
    itself = [(f"1⊗8, rate {each:g}", "itself at depth 8", runs, runs) for each, runs in swaps_by_rate(found, "1⊗8").items()]
    measured = models([run for run in found if run.get("exits")], *GROUPS)
    exits = [line for name, runs in measured.items() for line in exit_lines(name, runs)]
    return made | {
        "Every model of swaps": arm_table(chains, COLUMNS),
        "Differences of swaps": points_table(named_pairs(chains, SWAP_PAIRS), EXACT, percent_at),
        "Swaps by depth": arm_table(models(chained, *GROUPS), depth_columns(chained)),
        "Swaps at depth 16": points_table(itself, EXACT, partial(percent_at, depth=16), partial(percent_at, depth=8)),
        "Exit rules": EXIT_HOW + "\n\n" + table(["model", "at most", "rule", *HARDNESS], exits),
    }


def planned(found: Sequence[Result]) -> list[Run]:
    """Returns all runs of the plan."""
    return [run for group in GROUPS.values() for run in group()]


PAGE = Page(
    "Hops: looped and plain models at equal parameters and at equal FLOPs", ("hops/runs.jsonl",), parts, planned, draw_all,
    about=(ABOUT,),
)  # fmt: skip


if __name__ == "__main__":
    PAGE.main(__doc__, "experiments.hops.tables")
