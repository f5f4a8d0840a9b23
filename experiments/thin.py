"""What a row keeps, whenever it is written: no more than pages, tables and figures need, since rows come with every clone.

Numbers have seven significant digits, those of long lists four, with the exceptions of LISTS. A curve of the training loss has at
most POINTS points. A sweep over depths has what was right and how far states moved, a trace from before training its stage curve, a
recipe what its run did, an origin the versions that its numbers may hang on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

DIGITS, LONG, LONG_DIGITS = 7, 32, 4
# of long lists whose small differences are read: losses of passages, and means by layer and step
LISTS = {"losses": DIGITS, "blocks": DIGITS, "valid": DIGITS, "mean": 5}
CURVES, POINTS = ("loss", "jacobian"), 40
SWEEP = {"depth", "exact", "change_largest", "rows"}  # a mapping that has all of these is a sweep over depths
# of a recipe what no run of it does, of an origin what does none of the sums
LEFT_OUT = {"recipe": {"about", "toy"}, "origin": {"platform", "accelerate", "safetensors", "numpy"}}
BEFORE, PLACES = "start", "by_place"  # a trace from before training, and what it has of each layer


def thin(value: Any, name: str = "") -> Any:
    """Returns plain data as it is kept; `name` is what its owner calls it."""
    if isinstance(value, Mapping):
        if name == BEFORE and PLACES in value:
            value = {**value, PLACES: {"colsum": {"mean": value[PLACES]["colsum"]["mean"]}}}
        kept = SWEEP if value.keys() >= SWEEP else value.keys() - LEFT_OUT.get(name, set())
        return {key: thin(each, key) for key, each in value.items() if key in kept}
    if not isinstance(value, list | tuple):
        return rounded(value, DIGITS)
    numbers = fewer_points(value) if name in CURVES and is_curve(value) else value
    return rounded(numbers, LISTS.get(name, LONG_DIGITS) if count(numbers) > LONG else DIGITS)


def rounded(value: Any, digits: int) -> Any:
    """Returns plain data with every number that is not whole cut to so many significant digits."""
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, Mapping):
        return {key: rounded(each, digits) for key, each in value.items()}
    return [rounded(each, digits) for each in value] if isinstance(value, list | tuple) else value


def count(value: Any) -> int:
    """Returns how many numbers and words plain data has."""
    if isinstance(value, Mapping):
        return sum(map(count, value.values()))
    return sum(map(count, value)) if isinstance(value, list | tuple) else 1


def is_curve(value: Sequence[Any]) -> bool:
    """Returns whether a list has pairs of an update and a number alone."""
    return all(isinstance(each, list | tuple) and list(map(type, each)) == [int, float] for each in value)


def fewer_points(curve: Sequence[Sequence[Any]]) -> Sequence[Sequence[Any]]:
    """Returns a curve in which 2, 4, 8, … neighbours became their mean, at the first one's update, so that there are few enough.
    One that is short enough comes back as it is: rows are written again and again."""
    size = 1
    while len(curve) > size * POINTS:
        size *= 2
    groups = [curve[place : place + size] for place in range(0, len(curve), size)]
    return curve if size == 1 else [[group[0][0], sum(value for _, value in group) / len(group)] for group in groups]
