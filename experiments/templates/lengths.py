"""What pages ask of the rows on longer numbers: exact match by operand length and depth, with the penalty and without."""

from __future__ import annotations

import math
from functools import cache

from experiments.pages import Result
from experiments.templates.rows import only, rows_of

BEYOND = (96, 128, 256)  # depths beyond the frontier of every length
LONGEST = "length-64"


@cache
def runs(arm: str = "penalty") -> list[Result]:
    """Returns the runs of an arm, seeds in order."""
    return sorted((run for run in rows_of("longer/runs.jsonl") if run["arm"] == arm), key=lambda run: int(run["seed"]))


def rows() -> int:
    """Returns how many rows each test has."""
    (count,) = {test["rows"] for run in runs() for test in run["found"]["test"].values()}
    return int(count)


def right(run: Result, kind: str, length: str = LONGEST, depth: int = BEYOND[-1]) -> float:
    """Returns the share of rows of a kind and length that are right at a depth, in percent."""
    test = run["found"][kind][length]
    return 100 * float(test["exact"][test["depth"].index(depth)])


def least(run: Result) -> float:
    """Returns the least share of rows as trained that is right beyond the frontier, at any length."""
    return min(right(run, "test", length, depth) for length in run["found"]["test"] for depth in BEYOND)


def beyond(arm: str = "penalty") -> list[float]:
    """Returns that by seed."""
    return [least(run) for run in runs(arm)]


def random(arm: str = "penalty") -> list[float]:
    """Returns the share of rows of random digits that is right at the longest length, by seed."""
    return [right(run, "random") for run in runs(arm)]


def columns_to_one_wrong() -> float:
    """Returns of how many columns of random digits one is wrong with the worst seed, in hundreds."""
    return round(64 / -math.log(min(random()) / 100), -2)


def implied() -> bool:
    """Whether, with a carry through every column, no row is right before its length and all are at it, from 16 digits on."""
    for run in runs():
        for length, test in run["found"]["ripples"].items():
            digits = int(length.removeprefix("length-"))
            place = test["depth"].index(digits)
            if digits >= 16 and test["exact"][place - 1 : place + 1] != [0, 1]:
                return False
    return True


def nothing_gained() -> bool:
    """Whether random digits of any length gain no more than 0.2 points beyond depth 4."""
    return all(
        right(run, "random", length) - right(run, "random", length, 4) < 0.25 for run in runs() for length in run["found"]["random"]
    )


def changes(arm: str, length: str = "") -> list[float]:
    """Returns the largest change of a row as trained by the last step, by seed; at any length where none is given."""
    tests = [run["found"]["test"] for run in runs(arm)]
    return [max(test["change_largest"][-1] for name, test in found.items() if length in ("", name)) for found in tests]


def radius(arm: str) -> list[float]:
    """Returns the mean spectral radius by seed."""
    return [float(run["radius"]["radius_mean"]) for run in runs(arm)]


def largest_radius(arm: str) -> float:
    """Returns the largest of any row."""
    return max(float(run["radius"]["radius_largest"]) for run in runs(arm))


def cost() -> float:
    """Returns how many times an update without the penalty one with it takes on an H200."""
    return float(only("longer/cost-h200.jsonl")["ratio"])


def changed() -> tuple[int, str]:
    """Returns how many rows were made on an H200 from a working tree with changes, and at which commit."""
    found = [run["origin"] for run in rows_of("longer/runs.jsonl") if run["origin"]["changed"]]
    (commit,) = {each["commit"][:7] for each in found}
    return sum(each["devices"] == ["NVIDIA H200"] for each in found), commit
