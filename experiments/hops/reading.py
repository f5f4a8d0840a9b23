"""What a result of the study says: accuracy by number of hops and by depth, hops solved, steps needed."""

from __future__ import annotations

from collections.abc import Iterable

from experiments.hops.plan import ARMS
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
    return sum(exact[hops] for hops in TRAINED) / len(TRAINED)


def solved_hops(result: Result) -> int:
    """Returns the largest number of hops up to which all are answered at the trained depth; 0 where one hop is not."""
    solved = 0
    for hops, exact in at_own_depth(result).items():
        if exact < SOLVED:
            break
        solved = hops
    return solved


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


def by_arm(found: Iterable[Result]) -> dict[str, list[Result]]:
    """Returns results by arm, in the order of the plan, seeds in order."""
    runs = sorted(found, key=lambda run: run["seed"])
    arms = {arm: [run for run in runs if run["arm"] == arm] for arm in ARMS}
    return {arm: each for arm, each in arms.items() if each}
