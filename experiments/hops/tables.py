"""The study's page and figures, from its results alone.

python -m experiments.hops.tables experiments/results/hops/runs.jsonl experiments/results/hops
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from experiments.hops.depth_tables import (
    CHAIN_HOW,
    EXIT_HOW,
    apart,
    chain_pairs,
    chain_rate_table,
    chain_table,
    exit_table,
    random_pairs,
    random_table,
)
from experiments.hops.figures import draw_all
from experiments.hops.plan import ARMS, GROUPS, LONGER, Run
from experiments.hops.reading import (
    SOLVED,
    TRAINED,
    at_depth,
    at_own_depth,
    at_own_rates,
    best_anywhere,
    by_arm,
    last_valid,
    mean_exact,
    rate,
    solved_hops,
    steps_needed,
)
from experiments.pages import Result, asked_tables, missing_part, results, save_all, table

BEYOND = (8, 16, 32)  # depths at which looped arms are shown
Pairs = Sequence[tuple[str, str]]
PAIRS: Pairs = (
    ("1⊗8", "plain 8"), ("1⊗8", "plain 1"), ("1⊗8", "plain 2"), ("2⊗4", "plain 8"), ("2⊗4", "plain 2"), ("1⊗8", "2⊗4"),
)  # fmt: skip
LONGER_PAIRS: Pairs = (
    ("1⊗8", "plain 1, 8 times the updates"), ("1⊗8", "plain 2, 4 times the updates"), ("2⊗4", "plain 2, 4 times the updates"),
    ("plain 1, 8 times the updates", "plain 1"), ("plain 2, 4 times the updates", "plain 2"),
)  # fmt: skip
HOW_TO_READ = (
    "Every row of letters is asked at its last letter, 500 rows for each number of hops; four letters, so that a guess is right on "
    "a quarter. A number of hops is *solved* where it and all smaller ones are right on at least "
    f"{100 * SOLVED:.0f} % of their rows, at the depth that was trained. Seeds stand side by side. Intervals of differences are "
    "over seeds (Student's t, 95 %), paired by seed: a difference is decided where its interval leaves 0 out."
)

Arms = Mapping[str, Sequence[Result]]


def arm_table(arms: Arms) -> str:
    """Returns what each arm costs and what it solves."""
    head = [
        "arm", "parameters", "FLOPs a token", "seeds", "hops solved", f"exact (%), mean of {TRAINED[0]} to {TRAINED[-1]} hops",
        "16 hops", "24 hops", "32 hops", "24 and 32 hops at the best of all depths", "loss on `valid`",
    ]  # fmt: skip
    lines = []
    for arm, runs in arms.items():
        one = runs[0]
        lines.append([
            arm, f"{one['parameters']:,}", f"{one['flops'] / 1e6:.1f} M", ", ".join(str(run["seed"]) for run in runs),
            " / ".join(str(solved_hops(run)) for run in runs), beside(runs, mean_exact),
            *(beside(runs, partial(at_depth, hops=hops, depth=ARMS[one["arm"]][1])) for hops in (16, 24, 32)),
            "; ".join(beside(runs, partial(best_anywhere, hops=hops)) for hops in (24, 32)),
            " / ".join(f"{last_valid(run):.4f}" for run in runs),
        ])  # fmt: skip
    return table(head, lines)


def beside(runs: Sequence[Result], value: Callable[[Result], float]) -> str:
    """Returns a share of each run in percent, seeds side by side."""
    return " / ".join(f"{100 * value(run):.4g}" for run in runs)


def pair_table(arms: Arms, pairs: Pairs = PAIRS) -> str:
    """Returns differences of arms, paired by seed."""
    lines = []
    for first, second in pairs:
        seconds = {run["seed"]: run for run in arms.get(second, ())}
        both = [(run, seconds[run["seed"]]) for run in arms.get(first, ()) if run["seed"] in seconds]
        if not both:
            continue
        lines.append([f"{first} less {second}", *apart([100 * (mean_exact(a) - mean_exact(b)) for a, b in both])])
    return table(["arms", "points, by seed", "mean (95 % over seeds)", ""], lines)


def rate_table(found: Sequence[Result]) -> str:
    """Returns every arm at every rate, seed 0; the arm's best by loss on `valid` in bold."""
    lines = []
    for arm in ARMS:
        runs = [run for run in found if run["arm"] == arm and run["seed"] == 0 and run["group"] in ("compared", "rates")]
        best = min(map(last_valid, runs), default=0.0)
        for run in sorted(runs, key=rate):
            mark = "**" if last_valid(run) == best and len(runs) > 1 else ""
            cells = [f"{rate(run):g}", f"{last_valid(run):.5f}", str(solved_hops(run)), f"{100 * mean_exact(run):.4g}"]
            lines.append([arm, *(f"{mark}{cell}{mark}" for cell in cells)])
    return table(["arm", "rate", "loss on `valid`", "hops solved", f"exact (%), mean of {TRAINED[0]} to {TRAINED[-1]} hops"], lines)


def step_table(found: Sequence[Result]) -> str:
    """Returns, of looped runs, the steps that each number of hops needs, and what steps beyond those trained do."""
    looped = [run for run in found if ARMS[run["arm"]][1] > 1 and not run["group"].startswith("chain")]
    head = ["run", *(str(hops) for hops in TRAINED), *(f"mean exact (%) at depth {depth}" for depth in BEYOND)]
    return table(head, (
        [
            run["name"], *(str(steps_needed(run, hops) or "–") for hops in TRAINED),
            *(f"{100 * sum(at_depth(run, hops, depth) for hops in TRAINED) / len(TRAINED):.4g}" for depth in BEYOND),
        ]
        for run in looped
    ))  # fmt: skip


def run_table(found: Sequence[Result]) -> str:
    """Returns every run with its accuracy at each number of hops."""
    head = ["run", "laid over the plan", "loss on `valid`", "hops solved", "exact (%) at 1 / 2 / … hops", "training, s"]
    return table(head, (
        [
            run["name"], " ".join(f"`{change}`" for change in run["laid_over"]), f"{last_valid(run):.4f}", str(solved_hops(run)),
            " / ".join(f"{100 * value:.0f}" for value in at_own_depth(run).values()), f"{run['train_seconds']:.0f}",
        ]
        for run in found
    ))  # fmt: skip


def page(found: Sequence[Result]) -> str:
    """Returns the whole page."""
    arms, own = by_arm(run for run in found if run["group"] == "compared"), at_own_rates(found)
    hops = [run for run in found if not run["group"].startswith("chain")]
    parts = [
        "# Hops: looped and plain models at equal parameters and at equal FLOPs",
        "`python -m experiments.hops.tables` made this page.", HOW_TO_READ,
        "## The arms", arm_table(arms), "## Differences", pair_table(arms), "## Rates", rate_table(found),
        "## At each arm's own rate", arm_table(own), pair_table(own),
        "## At equal training FLOPs",
        "The arms of fewer FLOPs have as many updates more, on fresh rows, and the looped ones their own rates.",
        arm_table(longer_arms(found)), pair_table(own | longer_arms(found), LONGER_PAIRS),
        "## Random depth", random_table(hops), random_pairs(hops),
        "## Steps",
        f"The least depth from which on, to the depth that was trained, at least {100 * SOLVED:.0f} % are right, for each number "
        "of hops; then the mean over all numbers of hops at some depths.",
        step_table(hops), "## Swaps", CHAIN_HOW, chain_table(found), chain_pairs(found),
        chain_rate_table(found), "## Exit rules", EXIT_HOW,
        exit_table(found), "## Every run", run_table(found), *missing_part(found, planned()),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def longer_arms(found: Sequence[Result]) -> dict[str, list[Result]]:
    """Returns the runs with more updates, by arm and how many times as many."""
    arms = by_arm(run for run in found if run["group"] == "longer")
    return {f"{arm}, {LONGER[arm]} times the updates": runs for arm, runs in arms.items()}


def planned() -> list[Run]:
    """Returns all runs of the plan."""
    return [run for group in GROUPS.values() for run in group()]


def main() -> None:
    """Writes table.md and the figures."""
    sources, folder = asked_tables(__doc__)
    found = results(sources, planned())
    (folder / "table.md").write_text(page(found))
    for path in [folder / "table.md", *save_all(draw_all(found), folder)]:
        print(path)


if __name__ == "__main__":
    main()
