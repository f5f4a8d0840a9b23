"""What a result of the study says: accuracy by number of hops or swaps and by depth, how many are solved, steps needed.

Of chains a "number of hops" is one of swaps.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean

from experiments.hops.plan import ARMS, HARDNESS, OWN
from experiments.pages import Result

SOLVED = 0.95
TRAINED = range(1, 17)  # numbers of hops
RATE = 1e-3  # of the recipe


def at_depth(result: Result, hops: int, depth: int) -> float:
    """Returns exact match at a number of hops and a depth."""
    test = result["tests"][str(hops)]
    return float(test["exact"][test["depth"].index(depth)])


def at_own_depth(result: Result) -> dict[int, float]:
    """Returns exact match by number of hops, at the depth that was trained."""
    steps = ARMS[result["arm"]][1]
    return {hops: at_depth(result, hops, steps) for hops in sorted(map(int, result["tests"]))}


def best_anywhere(result: Result, hops: int) -> float:
    """Returns the best exact match at a number of hops over all depths that were measured."""
    return max(result["tests"][str(hops)]["exact"])


def mean_exact(result: Result) -> float:
    """Returns exact match at the depth that was trained, the mean over the numbers of hops that were."""
    exact = at_own_depth(result)
    return fmean(exact[hops] for hops in TRAINED)


def solved_hops(result: Result) -> int:
    """Returns the largest number of hops up to which all are answered at the trained depth; 0 where one hop is not."""
    return solved_at(result, ARMS[result["arm"]][1])


def solved_at(result: Result, depth: int) -> int:
    """Returns the largest number of hops up to which all are answered at a depth; 0 where one hop is not."""
    solved = 0
    for hops in sorted(map(int, result["tests"])):
        if at_depth(result, hops, depth) < SOLVED:
            break
        solved = hops
    return solved


def exact_of(result: Result, group: str, depth: int) -> float:
    """Returns exact match of easy, middle or hard rows, or of those beyond the trained ones, at a depth."""
    found = [at_depth(result, hops, depth) for hops in map(int, result["tests"]) if hops in HARDNESS[group]]
    return fmean(found)


def deepest(result: Result) -> int:
    """Returns the largest depth that was trained, of a run whose exits were measured."""
    return min(map(int, result["exits"]))


def steps_needed(result: Result, hops: int) -> int | None:
    """Returns the least depth from which on, to the depth that was trained, a number of hops is solved; None where it is not."""
    needed = None
    for depth in range(ARMS[result["arm"]][1], 0, -1):
        if at_depth(result, hops, depth) < SOLVED:
            break
        needed = depth
    return needed


def last_valid(result: Result) -> float:
    """Returns the loss on the validation rows at the end of training."""
    return float(result["valid"][-1][1])


def rate(result: Result) -> float:
    """Returns the learning rate of a run."""
    given = [change for change in (*result["changes"], *result["laid_over"]) if change.startswith("optim.lr=")]
    return float(given[-1].partition("=")[2]) if given else RATE


def at_own_rates(found: Iterable[Result]) -> dict[str, list[Result]]:
    """Returns the runs of the compared arms, each at the rate that was best for it on the validation rows (seed 0)."""
    found = list(found)
    chosen = [run for run in found if run["group"] == "compared" and run["arm"] not in OWN]
    chosen += [run for run in found if run["group"] in ("rates", "own") and rate(run) == OWN.get(run["arm"])]
    return by_arm(chosen)


def by_arm(found: Iterable[Result]) -> dict[str, list[Result]]:
    """Returns results by arm, in the order of the plan, seeds in order."""
    runs = sorted(found, key=lambda run: run["seed"])
    arms = {arm: [run for run in runs if run["arm"] == arm] for arm in ARMS}
    return {arm: each for arm, each in arms.items() if each}
