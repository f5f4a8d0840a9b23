"""What a value must be. Each check returns the value, or raises one line: its name, what it must be, and what was given."""

from __future__ import annotations

import difflib
import math
import operator
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from loopwright.untrusted import shown

LONGEST_NAME = 100  # characters of a name that is compared with others: the search takes the square of the length
MOST_NUMBER: float = (2 - 2**-23) * 2.0**127  # the largest that float32 holds
MOST_COUNT = 2**31 - 1  # of any count, and of a seed in a recipe
LONGEST_PROBLEM = 4096  # digits, hops or steps: numbers of that many digits are made


def is_whole(value: Any, least: float = -math.inf, most: float = math.inf) -> bool:
    """Returns whether a value is a whole number between two others, both included."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def is_number(value: Any, least: float = -MOST_NUMBER, most: float = MOST_NUMBER) -> bool:
    """Returns whether a value is a number between two others, both included; NaN is between none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most


def check_whole(name: str, value: Any, least: int | None = None, most: int | None = None) -> int:
    """Returns a whole number between two others, both included; a refusal names the bound that was crossed."""
    if not is_whole(value, -math.inf if least is None else least):
        raise ValueError(f"{name} must be a whole number{'' if least is None else f' >= {least:,}'} (got {shown(value)})")
    if most is not None and value > most:
        raise ValueError(f"{name} must be at most {most:,} (got {shown(value)})")
    return value


def check_number(name: str, value: Any, **bounds: float | None) -> float:
    """Returns a number within bounds: `least`, `above`, `most` and `below`, of which the second and last are not included."""
    asked = {word: bound for word, bound in bounds.items() if bound is not None}
    if not is_number(value) or not all(_SIDES[word][1](value, bound) for word, bound in asked.items()):
        words = " and ".join(f"{_SIDES[word][0]} {bound:g}" for word, bound in asked.items())
        raise ValueError(f"{name} must be {words or 'a number'} (got {shown(value)})")
    return value


_SIDES = {"least": (">=", operator.ge), "above": (">", operator.gt), "most": ("<=", operator.le), "below": ("<", operator.lt)}


def check_count(where: str, name: str, value: Any, least: int = 0) -> int:
    """Returns a whole number from `least` to below 2**31."""
    return check_whole(f"{where}: {name}", value, least, MOST_COUNT)


def check_numbers(where: str, name: str, values: Any, apart_from: Sequence[int] | None = None) -> tuple[int, ...]:
    """Returns different whole numbers of at least 1, sorted. With `apart_from` there may be none, but none of those."""
    listed = isinstance(values, Sequence) and not isinstance(values, str)
    if not listed or not all(is_whole(x, 1) for x in values):
        raise ValueError(f"{where}: {name} must be a list of whole numbers >= 1 (got {shown(values)})")
    if any(x > LONGEST_PROBLEM for x in values):
        raise ValueError(f"{where}: {name} must be whole numbers of at most {LONGEST_PROBLEM:,} (got {shown(values)})")
    if not values and apart_from is None:
        raise ValueError(f"{where}: {name} is empty; give at least one number")
    both = sorted(set(values) & set(apart_from or ()))
    if both:
        raise ValueError(f"{where}: {name} must be numbers that are not trained on (got {list(values)}; {both[0]} is trained on)")
    return tuple(sorted(set(values)))


def check_choice(where: str, name: str, value: Any, allowed: Collection[str]) -> str:
    """Returns one of the allowed names, or names the nearest."""
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{where}: {name} is {shown(value)}; {suggest(str(value), allowed)}")
    return value


def suggest(name: str, allowed: Iterable[str], ending: str = "") -> str:
    """Returns the tail of an error message: the nearest allowed name, with the ending that the name had, then all of them."""
    names = sorted(allowed)
    near = difflib.get_close_matches(name[:LONGEST_NAME].removesuffix(ending), names, n=1)
    hint = f"did you mean {near[0] + (ending if name.endswith(ending) else '')!r}? " if near else ""
    return f"{hint}allowed: {', '.join(names) if names else 'nothing'}"
