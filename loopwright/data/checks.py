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
        raise ValueError(f"{where}: {name} must be a whole number >= {least} (got {shown(value)})")
    if value > MOST:
        raise ValueError(f"{where}: {name} must be at most {MOST:,} (got {shown(value)})")
    return value


def check_numbers(where: str, name: str, values: Any, apart_from: Sequence[int] | None = None) -> tuple[int, ...]:
    """Returns different whole numbers of at least 1, sorted, or raises a ValueError.

    Where `apart_from` is given the list may be empty, but holds none of those numbers.
    """
    listed = isinstance(values, Sequence) and not isinstance(values, str)
    if not listed or not all(isinstance(x, int) and not isinstance(x, bool) and x >= 1 for x in values):
        raise ValueError(f"{where}: {name} must be a list of whole numbers >= 1 (got {shown(values)})")
    if any(x > LONGEST for x in values):
        raise ValueError(f"{where}: {name} must be whole numbers of at most {LONGEST:,} (got {shown(values)})")
    if not values and apart_from is None:
        raise ValueError(f"{where}: {name} is empty; give at least one number")
    both = sorted(set(values) & set(apart_from or ()))
    if both:
        raise ValueError(f"{where}: {name} must be numbers that are not trained on (got {list(values)}; {both[0]} is trained on)")
    return tuple(sorted(set(values)))


def check_choice(where: str, name: str, value: Any, allowed: Collection[str]) -> str:
    """Returns one of the allowed names, or raises a ValueError with the nearest."""
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{where}: {name} is {shown(value)}; {suggest(str(value), allowed)}")
    return value
