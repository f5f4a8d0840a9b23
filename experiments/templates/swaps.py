"""What pages ask of the rows on swaps: arms at equal FLOPs and at equal parameters, depth, windows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from statistics import fmean

from experiments.hops.depth_tables import deeper, models, swaps_by_rate, trained_mean
from experiments.hops.plan import ARMS, RATES, SWAPS_OWN
from experiments.hops.reading import RATE, TRAINED, best_anywhere, last_valid, mean_exact, rate, solved_at, solved_hops
from experiments.pages import Result
from experiments.templates.hops import LOOPED, PLAIN, found, less, ratio
from experiments.templates.words import Gaps

ALL, WINDOW = "all in sight", "window 2"
FIXED, RANDOM = f"1⊗16, {WINDOW}", f"1⊗16, {WINDOW}, depth 8 to 24"
OWN = f"{ALL}, rate {SWAPS_OWN:g}"
DEPTHS = (8, 16, 32, 64)
ENOUGH = 24  # steps: enough for all trained swaps with a window
WHOLE = 0.999  # of rows: what counts as learned to the end
NAMED = {SWAPS_OWN: "5e-4", RATE: "1e-3", RATES[-1]: "2e-3"}
# what the page shows of swaps: model → how it is called there
SHOWN = {
    f"1⊗8, {OWN}": "1⊗8",
    f"plain 8, {OWN}": "plain 8",
    f"1⊗8, {ALL}": "1⊗8",
    f"plain 8, {ALL}": "plain 8",
    f"plain 1, {ALL}": "plain 1",
    f"1⊗8, {ALL}, depth 4 to 12": "1⊗8, 4 to 12 steps",
    FIXED: "1⊗16, window",
    f"plain 16, {WINDOW}": "plain 16, window",
    RANDOM: "1⊗16, window, 8 to 24 steps",
}
Pair = tuple[list[Result], list[Result]]


@cache
def arms() -> dict[str, list[Result]]:
    """Returns the models of swaps at every rate, seeds in order."""
    return models(found(), "chain", "chain_rates")


def rate_of(runs: Sequence[Result]) -> str:
    """Returns the rate of some runs as the page writes it."""
    return NAMED[rate(runs[0])]


def solved_at_depth(runs: Sequence[Result], depth: int) -> list[int]:
    """Returns how many swaps are solved at a depth, seed by seed; nothing where no layer runs twice."""
    return [solved_at(run, depth) for run in runs] if ARMS[runs[0]["arm"]][1] > 1 else []


def most() -> int:
    """Returns how many swaps any run solves at its trained depth at most."""
    return max(solved_hops(run) for runs in arms().values() for run in runs)


def earlier_version() -> bool:
    """Whether seed 0 at 1e-3 and all seeds of plain 1, and no others, are of an earlier version of the code."""
    earlier = {run["origin"]["commit"] for run in arms()[f"plain 1, {ALL}"]}
    first = {run["name"] for run in found() if run["group"].startswith("chain") and run["origin"]["commit"] in earlier}
    common = [run for name in SHOWN for run in arms()[name] if rate(run) == RATE]
    return first == {run["name"] for run in common if run["seed"] == 0 or run["arm"] == "plain 1"}


def lowest_is_best() -> bool:
    """Whether the lowest rate tried is both arms' own, by seed 0 and by the mean of all seeds."""
    for arm in (LOOPED, PLAIN):
        rates = swaps_by_rate(found(), arm)
        means = {each: fmean(map(last_valid, runs)) for each, runs in rates.items()}
        if {next(iter(rates)), min(means, key=lambda each: means[each]), min(rates)} != {SWAPS_OWN}:
            return False
    return True


def badly() -> list[float]:
    """Returns the mean exact match in percent at the largest rate, of both arms."""
    return [100 * mean_exact(run) for arm in (LOOPED, PLAIN) for run in swaps_by_rate(found(), arm)[max(RATES)]]


def own() -> Pair:
    """Returns the looped layer and eight layers on swaps, each at the rate of its least loss (seed 0)."""
    looped, plain = (next(iter(swaps_by_rate(found(), arm).values())) for arm in (LOOPED, PLAIN))
    return looped, plain


def common() -> Pair:
    """Returns both at 1e-3."""
    return arms()[f"1⊗8, {ALL}"], arms()[f"plain 8, {ALL}"]


def against_one() -> Pair:
    """Returns the looped layer and the same layer run once, at 1e-3."""
    return arms()[f"1⊗8, {ALL}"], arms()[f"plain 1, {ALL}"]


def with_window() -> Pair:
    """Returns the looped layer and sixteen layers with a window, at 1e-3."""
    return arms()[FIXED], arms()[f"plain 16, {WINDOW}"]


def times_smaller(looped: Sequence[Result], plain: Sequence[Result]) -> int:
    """Returns how many times the parameters of a looped model the plain one has."""
    return round(ratio("parameters", plain, looped))


def gains() -> list[Gaps]:
    """Returns what twice the trained steps add where every token is in sight, at 5e-4 and at 1e-3."""
    return [Gaps(tuple(deeper(swaps_by_rate(found(), LOOPED)[each]))) for each in (SWAPS_OWN, RATE)]


def whole(value: float) -> list[int]:
    """Returns the depths at which all seeds solve all swaps at a rate."""
    runs = swaps_by_rate(found(), LOOPED)[value]
    return [depth for depth in _depths(runs[0]) if all(solved_at(run, depth) == TRAINED[-1] for run in runs)]


def _depths(run: Result) -> list[int]:
    return list(run["tests"]["1"]["depth"])


def whole_at_both() -> list[int]:
    """Returns the depths at which they do at both rates."""
    return sorted({*whole(SWAPS_OWN)} & {*whole(RATE)})


def stretch() -> tuple[int, int]:
    """Returns from where to where they do at 1e-3, at every depth that was measured."""
    at_rate = whole(RATE)
    between = [depth for depth in _depths(common()[0][0]) if at_rate[0] <= depth <= at_rate[-1]]
    if between != at_rate:
        raise ValueError("swaps: not all depths between solve all swaps at 1e-3")
    return at_rate[0], at_rate[-1]


def spoiled() -> Result:
    """Returns the run at 5e-4 that solves the fewest swaps at depth 64."""
    return min(swaps_by_rate(found(), LOOPED)[SWAPS_OWN], key=lambda run: solved_at(run, 64))


def peaks(swaps: int) -> list[float]:
    """Returns exact match in percent at a number of swaps at the best depth, of every run with all in sight at both rates."""
    by_rate = swaps_by_rate(found(), LOOPED)
    return [100 * best_anywhere(run, swaps) for each in (SWAPS_OWN, RATE) for run in by_rate[each]]


@cache
def runs_with_window() -> dict[str, Result]:
    """Returns the looped runs with a window, by how the page calls them."""
    names = {FIXED: "16 steps", RANDOM: "8 to 24 steps"}
    return {f"seed {run['seed']} of {shown}": run for name, shown in names.items() for run in arms()[name]}


def share(name: str) -> float:
    """Returns the share of rows of trained swaps that such a run has right, given enough steps."""
    return trained_mean(runs_with_window()[name], ENOUGH)


def learned() -> list[str]:
    """Returns the runs with a window that learned all trained swaps, given enough steps."""
    return [name for name in runs_with_window() if share(name) >= WHOLE]


def without_error() -> list[str]:
    """Returns those that have every row right then."""
    return [name for name in runs_with_window() if share(name) == 1]


def solving() -> list[str]:
    """Returns those that solve all trained swaps then."""
    return [name for name, run in runs_with_window().items() if solved_at(run, ENOUGH) == TRAINED[-1]]


def behind(name: str) -> int | None:
    """Returns how many fewer swaps than steps a run solves at depths 8 to 16, where that is always the same."""
    found = {depth - solved_at(runs_with_window()[name], depth) for depth in range(8, 17)}
    return found.pop() if len(found) == 1 else None


def steady_not_clean() -> list[str]:
    """Returns the runs that always solve as many fewer, but for those that learned all swaps."""
    return [name for name in runs_with_window() if behind(name) is not None and name not in learned()]


def unsteady() -> list[str]:
    """Returns the runs that do not."""
    return [name for name in runs_with_window() if behind(name) is None]


def farthest(run: Result) -> int:
    """Returns how many swaps a run solves at its best depth."""
    return max(solved_at(run, depth) for depth in _depths(run))


def longer() -> list[str]:
    """Returns the runs with a window that solve longer chains than were trained."""
    return [name for name, run in runs_with_window().items() if farthest(run) > TRAINED[-1]]


def near() -> str:
    """Returns the run that comes nearest to them."""
    runs = runs_with_window()
    return max((name for name in runs if name not in longer()), key=lambda name: peak(runs[name], ENOUGH))


def peak(run: Result, swaps: int) -> float:
    """Returns the exact match of a run at a number of swaps at its best depth."""
    return best_anywhere(run, swaps)


def best_of_all(swaps: int) -> float:
    """Returns that of the best run with a window."""
    return max(peak(run, swaps) for run in runs_with_window().values())


def random_less() -> Gaps:
    """Returns random depth less the fixed one, all in sight."""
    return less(arms()[f"1⊗8, {ALL}, depth 4 to 12"], arms()[f"1⊗8, {ALL}"])


def random_window_less(depth: int | None = None) -> Gaps:
    """Returns the same with a window, at the trained depth where none is given."""
    first, second = arms()[RANDOM], arms()[FIXED]
    if depth is None:
        return less(first, second)
    return Gaps(tuple(100 * (trained_mean(a, depth) - trained_mean(b, depth)) for a, b in zip(first, second, strict=True)))
