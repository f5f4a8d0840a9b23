"""What docs/stars.md says of the result that a fine-tuned model gives after the true reasoning, by depth."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import mean

from experiments.pages import difference
from experiments.readme.retrofit.language import FARTHEST
from experiments.seeds import decided, over_seeds
from experiments.sft.plan import TRAINED
from experiments.sft.tables import DEPTHS
from experiments.templates import sft

FIXED, PENALTY, RANDOM = "fixed", "fixed-penalty", "random"


def right(label: str, depth: int) -> list[float]:
    """Returns the share of chats in per cent whose result is right, seed by seed."""
    return [100 * run["results"][DEPTHS.index(depth)] for run in sft.chats()[label]]


def points(differences: list[float]) -> str:
    """Returns a mean difference in percentage points with its interval over seeds, and whether that decides it."""
    interval = over_seeds(differences)
    ends = " to ".join(difference(end, 1) for end in interval)
    return f"{difference(mean(differences), 1)} points ({ends}, {decided(interval)} over seeds)"


def less(first: list[float], second: list[float]) -> list[float]:
    """Returns a row less another, seed by seed."""
    return [a - b for a, b in zip(first, second, strict=True)]


def claims() -> Iterator[str]:
    """Yields what the rows say."""
    ends = {label: [right(label, depth) for depth in (TRAINED, FARTHEST)] for label in (FIXED, RANDOM)}
    (near, far), (near_random, far_random) = ([f"{mean(each):.1f}" for each in both] for both in ends.values())
    change, change_random = (points(less(far, near)) for near, far in ends.values())
    yield f"With a fixed depth of 4 it is right in {near} % of the chats at depth 4 and in {far} % at 16: {change}"
    yield f"With random depth in {near_random} and {far_random} %: {change_random}"
    beside = {depth: points(less(right(RANDOM, depth), right(FIXED, depth))) for depth in (2, TRAINED, FARTHEST)}
    told = ", ".join(f"{each} at depth {depth}" for depth, each in beside.items())
    yield f"Random depth less fixed depth is {told}"
    yield f"The penalty alone less none is {points(less(right(PENALTY, FARTHEST), right(FIXED, FARTHEST)))} at 16"
