"""What pages ask of ASURA by depth, and of its parts without a loop (depth 1), on text that is read once.

`calm`: at the smaller rate, which is that of the plain layers; else at the larger one, the depths' own.
"""

from __future__ import annotations

from functools import cache
from statistics import mean

from experiments.pages import Result
from experiments.repeats.plan import DEPTH_RATES
from experiments.repeats.tables import BY_DEPTH, HALVES, Chosen, at_rate, slopes
from experiments.seeds import Pooled, pooled
from experiments.templates.repeats import PARAMETERS, all_runs, kept
from experiments.templates.rows import from_to, of, when


@cache
def chosen(calm: bool) -> Chosen:
    """Returns all runs at one of the rates."""
    return at_rate(all_runs(), min(DEPTH_RATES)) if calm else kept()


def runs_of(depth: int, calm: bool = False) -> list[Result]:
    """Returns ASURA's runs at a depth."""
    return [*chosen(calm)[BY_DEPTH[depth], 1]]


def losses_of(depth: int, calm: bool = False) -> list[float]:
    """Returns the losses on `test`, seed by seed."""
    return [run["loss"]["test"] for run in runs_of(depth, calm)]


@cache
def less(depth: int, other: int, calm: bool = False) -> Pooled:
    """Returns ASURA at one depth less ASURA at another."""
    return _pooled(runs_of(depth, calm), runs_of(other, calm))


@cache
def less_plain(depth: int, calm: bool = False) -> Pooled:
    """Returns ASURA at a depth less the plain layers of nearly equal parameters."""
    return _pooled(runs_of(depth, calm), [*chosen(calm)[PARAMETERS, 1]])


def half_of(depth: int, calm: bool = False) -> Pooled | None:
    """Returns ASURA at a depth less ASURA at half of it, where that was run."""
    return less(depth, depth // 2, calm) if depth % 2 == 0 and depth // 2 in HALVES else None


def _pooled(first: list[Result], second: list[Result]) -> Pooled:
    found = pooled(first, second, "test")
    assert found is not None and len(found.seeds) == 3
    return found


def family(calm: bool = False) -> dict[tuple[int, int | str], Pooled]:
    """Returns each depth less depth 1, less half of it and less four plain layers, at one rate."""
    found: dict[tuple[int, int | str], Pooled] = {}
    for depth in BY_DEPTH:
        found[depth, PARAMETERS] = less_plain(depth, calm)
        if depth > 1:
            found[depth, 1] = less(depth, 1, calm)
        if (half := half_of(depth, calm)) is not None:
            found[depth, depth // 2] = half
    return found


def none_decided(calm: bool = False) -> bool:
    """Whether no depth differs from depth 1, and no doubling from its half, by a decided amount."""
    return {each.verdict for (_, other), each in family(calm).items() if other != PARAMETERS} == {"not resolved"}


def best_at(depth: int) -> str:
    """Returns with how many seeds a depth has the lowest loss of all: "two of three"."""
    by_depth = zip(*(losses_of(each) for each in BY_DEPTH), strict=True)
    best = [list(BY_DEPTH)[row.index(min(row))] for row in by_depth]
    return of(best.count(depth), len(best))


def shares() -> str:
    """Returns which part of the parameters and FLOPs of depth 1 the four plain layers have."""
    ours, theirs = runs_of(1)[0], kept()[PARAMETERS, 1][0]
    parts = [theirs[what] / ours[what] for what in ("parameters", "flops")]
    return f"{parts[0]:.2f} of its parameters and {parts[1]:.2f} of its FLOPs"


def deeper(calm: bool = False) -> list[Pooled]:
    """Returns the other depths less depth 1."""
    return [less(depth, 1, calm) for depth in BY_DEPTH if depth > 1]


def deeper_less_plain(calm: bool = False) -> list[Pooled]:
    """Returns the other depths less four plain layers."""
    return [less_plain(depth, calm) for depth in BY_DEPTH if depth > 1]


def behind_one() -> str:
    """Returns how far greater depths are behind depth 1 at the smaller rate, in the mean."""
    found = [each.difference for each in deeper(calm=True)]
    return when(min(found) > 0, f"in the mean depths 2 to 8 are {from_to(found)} behind depth 1")


def most_gain() -> float:
    """Returns the largest gain over depth 1 that an interval, over seeds or over documents, leaves open at the smaller rate."""
    return max(open_gain(depth) for depth in BY_DEPTH if depth > 1)


def open_gain(depth: int) -> float:
    """Returns the same of one depth."""
    found = less(depth, 1, calm=True)
    return -min(found.low, found.over_seeds[0])


def spread(calm: bool = False) -> dict[int, float]:
    """Returns how far apart the seeds of each depth lie."""
    return {depth: max(losses_of(depth, calm)) - min(losses_of(depth, calm)) for depth in BY_DEPTH}


def spread_from(depth: int) -> float:
    """Returns how far apart they lie at most from a depth on."""
    return max(far for each, far in spread().items() if each >= depth)


def worst() -> dict[int, float]:
    """Returns the loss of seed 2 at the depths where it is the worst seed."""
    return {depth: losses_of(depth)[2] for depth in BY_DEPTH if losses_of(depth)[2] == max(losses_of(depth))}


def led() -> list[int]:
    """Returns the depths whose lead over four plain layers is decided."""
    return [depth for depth in BY_DEPTH if less_plain(depth).verdict == "lower"]


@cache
def by_rate() -> dict[int, Pooled]:
    """Returns the larger rate less the smaller one at each depth."""
    return {depth: _pooled(runs_of(depth), runs_of(depth, True)) for depth in BY_DEPTH}


def better_rate() -> list[int]:
    """Returns the depths at which the larger rate is better, decided."""
    return [depth for depth, each in by_rate().items() if each.verdict == "lower"]


def gains() -> list[float]:
    """Returns how much lower the loss on `valid` is at the larger rate, by depth (seed 0)."""
    tried = {(run["label"], run["rate"]): run["loss"]["valid"] for run in all_runs() if run["times"] == 1 and run["seed"] == 0}
    return [tried[label, min(DEPTH_RATES)] - tried[label, max(DEPTH_RATES)] for label in BY_DEPTH.values()]


def sloped(calm: bool = False) -> list[float]:
    """Returns by how much the loss changes with each doubling, on the straight line that fits each seed best."""
    return list(slopes(chosen(calm)).values())


def mean_of(depth: int) -> float:
    """Returns the mean loss of a depth."""
    return mean(losses_of(depth))
