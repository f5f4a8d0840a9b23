"""Checks of options: one line that names the option, its value and what is allowed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from loopwright.settings import suggest
from loopwright.untrusted import shown

MOST = 2**31 - 1  # of any count, and of a seed
LONGEST = 4096  # of the digits, hops or steps of a problem: numbers of that many digits are made


def check_count(where: str, name: str, value: Any, least: int = 0) -> int:
    """Returns a whole number of at least `least` and below 2**31, or raises a ValueError."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{where}: {name} is {shown(value)}; allowed: a whole number, {least} or more")
    if value > MOST:
        raise ValueError(f"{where}: {name} is {shown(value)}; allowed: at most {MOST:,}")
    return value


def check_numbers(where: str, name: str, values: Any, apart_from: Sequence[int] | None = None) -> tuple[int, ...]:
    """Returns different whole numbers of at least 1, sorted, or raises a ValueError.

    Where `apart_from` is given the list may be empty, but holds none of those numbers.
    """
    listed = isinstance(values, Sequence) and not isinstance(values, str)
    if not listed or not all(isinstance(x, int) and not isinstance(x, bool) and x >= 1 for x in values):
        raise ValueError(f"{where}: {name} is {shown(values)}; allowed: a list of whole numbers, each 1 or more")
    if any(x > LONGEST for x in values):
        raise ValueError(f"{where}: {name} is {shown(values)}; allowed: whole numbers of at most {LONGEST:,}")
    if not values and apart_from is None:
        raise ValueError(f"{where}: {name} is empty; allowed: at least one number")
    both = sorted(set(values) & set(apart_from or ()))
    if both:
        raise ValueError(f"{where}: {name} is {list(values)}, but {both[0]} is trained on; allowed: other numbers")
    return tuple(sorted(set(values)))


def check_choice(where: str, name: str, value: Any, allowed: Collection[str]) -> str:
    """Returns one of the allowed names, or raises a ValueError with the nearest."""
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{where}: {name} is {shown(value)}; {suggest(str(value), allowed)}")
    return value
