"""What the README says about addition: the STARS study and longer numbers."""

from __future__ import annotations

from collections.abc import Iterator

from experiments.readme.rows import RESULTS, line, of, only, rows_of
from experiments.seeds import over_seeds, paired_p
from experiments.stars.tables import Runs, accuracy, change_at_100, read, side_by_side

LINES = {
    "`addition-stable` (ours)": ("target", "addition-stable"),
    "STARS as released: random depth + penalty": ("main", "random + penalty"),
    "its random depth alone": ("main", "random"),
    "fixed depth 4": ("main", "fixed"),
}
DEPTHS = (4, 8, 100, 1000)
BEYOND = (96, 128, 256)  # depths beyond every length
SETTINGS = (
    "Four-digit addition, width 512, one looped layer, 5,000 unseen sums (at depth 1,000 below the first row 1,000)",
    "seeds side by side; one H200.",
    "depth 4 | 8 | 100 | 1,000 | radius ρ at 100, mean (largest) |",
    "trained on sums of 4 to 8 digits",
    "numbers of 64 digits",
    "stays right to depth 256",
)


def claims() -> Iterator[str]:
    """Yields what the rows say."""
    found = read([str(RESULTS / "stars/runs.jsonl")])
    for label, (group, name) in LINES.items():
        runs = found[group][name]
        radius = [run["radius"]["100"] for run in runs]
        mean, largest = sum(each["radius_mean"] for each in radius) / len(radius), max(each["radius_largest"] for each in radius)
        exact = [side_by_side(100 * accuracy(run)[depth] for run in runs) for depth in DEPTHS]
        yield line(label, *exact, f"{mean:.2f} ({largest:.2f})")
    yield from penalty(
        found["ablation"]["injection + embedding norm + every step"], found["target"]["addition-stable"],
        found["main"]["random"], found["main"]["random + penalty"],
    )  # fmt: skip
    yield from longer()


def penalty(off: Runs, on: Runs, random: Runs, released: Runs) -> Iterator[str]:
    """Yields what the penalty does at our settings, and as released."""
    right = sum(accuracy(run)[100] == accuracy(run)[1000] == 1 for run in off)
    yield f"At its settings {of(right, len(off))} seeds are 100 % right at depths 100 and 1,000 without the penalty as well"
    moved, rest = [100 * change_at_100(run) for run in off], max(100 * change_at_100(run) for run in on)
    yield f"some state still changes by {min(moved):.2g} to {max(moved):.2g} % without it, by at most {rest:.2g} % with it"
    apart = [accuracy(b)[1000] - accuracy(a)[1000] for a, b in zip(random, released, strict=True)]
    low, high = over_seeds(apart)
    better = "better on each seed" if min(apart) > 0 else "not better on each seed"
    verdict = "not decided" if low <= 0 <= high else "decided"
    yield f"{better}, {verdict} (p = {paired_p(apart):.2f} at depth 1,000)"


def longer() -> Iterator[str]:
    """Yields what is right of longer numbers."""
    runs = [run for run in rows_of("longer/runs.jsonl") if run["arm"] == "penalty"]
    least = min(
        held["exact"][held["depth"].index(depth)] for run in runs for held in run["found"]["test"].values() for depth in BEYOND
    )
    worst = min(run["found"]["random"]["length-64"]["exact"][-1] for run in runs)
    ratio = only("longer/cost-h200.jsonl")["ratio"]
    rows = {f"{held['rows']:,}" for run in runs for held in run["found"]["test"].values()}
    yield (
        f"at least {100 * least:.1f} % of {' and '.join(sorted(rows))} rows with far carries at every length, "
        f"{of(len(runs), len(runs))} seeds; of 64-digit sums of random digits {100 * worst:.1f} % with the worst seed; "
        f"an update costs {ratio:.2f} times one without the penalty"
    )
