"""What docs/stars.md and docs/longer.md say about addition."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache

from experiments.pages import Result
from experiments.readme.rows import RESULTS, line, of, only, rows_of, when
from experiments.seeds import over_seeds, paired_p
from experiments.stars.tables import SOLVED, Runs, accuracy, change_at_100, radius_at_100, read, side_by_side
from loopwright.metrics.score import holds_from_to, wilson_interval

LINES = {
    "ours": ("target", "addition-stable"),
    "paper: random depth + penalty": ("main", "random + penalty"),
    "paper: random depth": ("main", "random"),
    "paper: fixed depth 4": ("main", "fixed"),
    "paper: fixed depth 4 + penalty": ("main", "fixed + penalty"),
}
DEPTHS = (4, 8, 32, 100, 1000)
PENALTY_DEPTHS = (8, 32, 100, 1000)
BEYOND = (96, 128, 256)  # depths beyond every length
TABLE_SETTINGS = (
    "| run | 4 | 8 | 32 | 100 | 1,000 | ρ at depth 100, mean (largest) | K = 1 reading |",
    "95 % intervals (Wilson) over sums",
    "of 1,000 sums (depth 1,000, all but ours)",
    "The fixed arms had 5,000 updates, the random ones 10,000.",
)


@cache
def runs_of() -> dict[str, dict[str, Runs]]:
    """Returns the study's runs by group and label."""
    return read([str(RESULTS / "stars/runs.jsonl")])


def exact_at(label: str, depth: int) -> str:
    """Returns exact match (%) at a depth, seeds side by side."""
    group, name = LINES[label]
    return side_by_side(100 * accuracy(run)[depth] for run in runs_of()[group][name])


def table_claims() -> Iterator[str]:
    """Yields what the rows say in the first table and below it."""
    for label, (group, name) in LINES.items():
        radius = [run["radius"]["100"] for run in runs_of()[group][name]]
        mean, largest = sum(each["radius_mean"] for each in radius) / len(radius), max(each["radius_largest"] for each in radius)
        reading = sum(each["reading"] for each in radius) / len(radius)
        yield line(label, *(exact_at(label, depth) for depth in DEPTHS), f"{mean:.2f} ({largest:.2f})", f"{reading:.3f}")
    yield f"100 % right to depth 1,000 on {without_penalty()} seeds too"
    yield rest()
    rows = {run["near"]["rows"] for group, name in LINES.values() for run in runs_of()[group][name]}
    (sums,) = rows
    yield f"100 % of {sums:,} is {100 * wilson_interval(sums, sums)[0]:.2f} to 100"
    yield f"at 99.7 % they are within {reach(0.997, sums):.1f} points"
    yield f"within {reach(0.85, 1000):.1f} points at 85 %"


def reach(share: float, count: int) -> float:
    """Returns how far the farther end of Wilson's interval is from a share, in points, rounded up to a tenth."""
    low, high = wilson_interval(round(share * count), count)
    return math.ceil(1000 * max(share - low, high - share)) / 10


def without_penalty() -> str:
    """Returns on how many seeds our settings are right at depths 100 and 1,000 without the penalty: "three of three"."""
    runs = runs_of()["ablation"]["injection + embedding norm + every step"]
    return of(sum(accuracy(run)[100] == accuracy(run)[1000] == 1 for run in runs), len(runs))


def rest() -> str:
    """Returns how far states move by the hundredth step, without and with the penalty."""
    off, on = runs_of()["ablation"]["injection + embedding norm + every step"], runs_of()["target"]["addition-stable"]
    moved, still = [100 * change_at_100(run) for run in off], max(100 * change_at_100(run) for run in on)
    return f"some state still changes by {min(moved):.2g} to {max(moved):.2g} % without it, by at most {still:.2g} % with it"


def released() -> tuple[list[float], str, float]:
    """Returns by how much the released penalty is ahead at depth 1,000, seed by seed, whether that is decided, and its p."""
    random, penalty = runs_of()["main"]["random"], runs_of()["main"]["random + penalty"]
    apart = [accuracy(b)[1000] - accuracy(a)[1000] for a, b in zip(random, penalty, strict=True)]
    low, high = over_seeds(apart)
    return apart, "not decided" if low <= 0 <= high else "decided", paired_p(apart)


def claims() -> Iterator[str]:
    """Yields what the rows say elsewhere on the page."""
    ahead, verdict, p = released()
    points = f"{100 * min(ahead):.1f} to {100 * max(ahead):.0f} points"
    yield when(
        min(ahead) > 0 and verdict == "not decided",
        f"With the penalty each seed is better, by {points} at depth 1,000, which three seeds do not decide.",
    )
    yield f"at depth 1,000 (paired t-test p = {p:.2f})"
    readings = [[run["radius"]["100"]["reading"] for run in runs_of()["main"][label]] for label in ("random", "random + penalty")]
    chance = paired_p([math.log(on / off) for off, on in zip(*readings, strict=True)])
    first, second = (f"{sum(each) / len(each):.2f}" for each in readings)
    fewer = of(sum(on < off for off, on in zip(*readings, strict=True)), len(readings[0]))
    told = f"on {fewer} seeds (paired t-test of the logarithm p = {chance:.3f})"
    yield f"It takes its own reading from {first} to {second}, {told}"
    yield from weight_claims()


def weight_claims() -> Iterator[str]:
    """Yields the worst seed at depth 1,000 by weight of the penalty, begun once the task is solved."""
    begun = runs_of()["once_solved"]
    worst = {weight: min(100 * accuracy(run)[1000] for run in begun[f"λ={weight}"]) for weight in (0.05, 0.1, 0.15, 0.2)}
    without = min(100 * accuracy(run)[1000] for run in runs_of()["main"]["random"])
    even = min(worst[0.1], worst[0.15])
    yield f"the worst has {even:.1f} % at depth 1,000, the worst without a penalty {without:.1f} %"
    yield f"the worst seed has {worst[0.05]:.1f} % with 0.05 and {worst[0.2]:.1f} % with 0.2"


def brief_claims() -> Iterator[str]:
    """Yields the table of the short runs: exact match by depth, how far it holds, the state's size after one step and a hundred."""
    for group in ("brief_distributions", "brief_norms", "brief_static"):
        for label, runs in runs_of().get(group, {}).items():
            exact = [side_by_side(100 * accuracy(run)[depth] for run in runs) for depth in (1, 8, 32, 100, 1000)]
            held = [holds_from_to(accuracy(run), 8, SOLVED) for run in runs]
            sizes = " / ".join(map(grown, runs))
            yield line(label, *exact, " / ".join("–" if h is None else f"{h:,}" for h in held), sizes)
    changes, weights = runs_of()["brief_changes"], runs_of()["brief_weights"]
    for weight in (0.001, 0.01, 0.1):
        both = [changes[f"{place} + {weight} L2"][0] for place in ("post-sandwich", "pre-sandwich")]
        yield line(f"{weight}", *[cell for run in both for cell in (*_at(run, PENALTY_DEPTHS), grown(run))])
    for weight in (0.05, 0.1, 0.15, 0.2):
        early, late = (weights[f"λ={weight} {begun}"][0] for begun in ("early", "once solved"))
        radii = [f"{radius_at_100(run):.2f}" for run in (early, late)]
        yield line(
            f"{weight}", *_at(early, PENALTY_DEPTHS), radii[0], f"{late['solved_at']:,}", *_at(late, PENALTY_DEPTHS), radii[1]
        )
    yield from path_claims()


def path_claims() -> Iterator[str]:
    """Yields the table of the runs made for their paths: exact match, the largest change and the radius at depth 100, sizes."""
    for label, (run,) in runs_of().get("paths", {}).items():
        still = f"{100 * change_at_100(run):.2g} %"
        yield line(label, *_at(run, (8, 100, 1000)), still, f"{radius_at_100(run):.2f}", grown(run))


def grown(run: Result) -> str:
    """Returns the size of the state of one sum after one step and after a hundred."""
    return f"{run['path']['size'][1]:,.0f} → {run['path']['size'][-1]:,.0f}"


def _at(run: Result, depths: Sequence[int]) -> list[str]:
    return [side_by_side([100 * accuracy(run)[depth]]) for depth in depths]


@cache
def longer() -> tuple[float, list[float], str, str]:
    """Returns of longer numbers: the least exact match beyond every length, that of random digits by seed, rows, seeds."""
    runs = [run for run in rows_of("longer/runs.jsonl") if run["arm"] == "penalty"]
    least = min(
        held["exact"][held["depth"].index(depth)] for run in runs for held in run["found"]["test"].values() for depth in BEYOND
    )
    random = [run["found"]["random"]["length-64"]["exact"][-1] for run in runs]
    rows = {f"{held['rows']:,}" for run in runs for held in run["found"]["test"].values()}
    return least, random, " and ".join(sorted(rows)), of(len(runs), len(runs))


def longer_claims() -> Iterator[str]:
    """Yields what docs/longer.md says of them."""
    least, random, rows, seeds = longer()
    depths = f"{', '.join(map(str, BEYOND[:-1]))} and {BEYOND[-1]}"
    yield f"at depths {depths} at least {100 * least:.1f} % of {rows} rows at every length from 4 to 64 digits, on {seeds} seeds"
    first, second, third = (f"{100 * each:.4g}" for each in random)
    yield f"Random digits at 64: {first}, {second} and {third} % with it"
    yield f"an update with the penalty takes {only('longer/cost-h200.jsonl')['ratio']:.3f} times one without on an H200"
