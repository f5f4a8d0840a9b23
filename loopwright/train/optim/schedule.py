"""Learning-rate schedules, counted in updates: each returns the factor, from 0 to 1, by which every learning rate is scaled.

Update u runs from 0 to N − 1. Warm-up over W updates gives (u + 1) / (W + 1), so that the first update already moves and
update W is the first at the full rate; a decay that begins at update B of N is at progress (u − B) / (N − B), so that the
last update still moves and the floor would be reached at update N, where it stays. A run no longer than its warm-up warms
up to its end.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from loopwright.settings import Kinds
from loopwright.values import check_number, check_whole


class Constant:
    """The full rate after the warm-up."""

    def __init__(self, warmup: int = 0) -> None:
        self.warmup = check_whole("schedule.warmup", warmup, 0)

    def __call__(self, update: int, updates: int) -> float:
        """Returns the factor of one update."""
        return _warm(update, self.warmup)


class Cosine:
    """Half a cosine from the full rate down to `floor` of it."""

    def __init__(self, warmup: int = 0, floor: float = 0.0) -> None:
        self.warmup = check_whole("schedule.warmup", warmup, 0)
        self.floor = check_number("schedule.floor", floor, least=0, most=1)

    def __call__(self, update: int, updates: int) -> float:
        """Returns the factor of one update."""
        fall = SHAPES["cosine"](_progress(update, self.warmup, updates))
        return _warm(update, self.warmup) * (self.floor + (1 - self.floor) * fall)


class Linear:
    """A straight line from the full rate down to `floor` of it."""

    def __init__(self, warmup: int = 0, floor: float = 0.0) -> None:
        self.warmup = check_whole("schedule.warmup", warmup, 0)
        self.floor = check_number("schedule.floor", floor, least=0, most=1)

    def __call__(self, update: int, updates: int) -> float:
        """Returns the factor of one update."""
        fall = SHAPES["linear"](_progress(update, self.warmup, updates))
        return _warm(update, self.warmup) * (self.floor + (1 - self.floor) * fall)


class WarmupStableDecay:
    """The full rate, then down to `floor` of it over the last `decay` updates, along a straight line or 1 − √progress."""

    def __init__(self, decay: int, warmup: int = 0, shape: str = "linear", floor: float = 0.0) -> None:
        self.warmup = check_whole("schedule.warmup", warmup, 0)
        self.decay = check_whole("schedule.decay", decay, 0)
        self.floor = check_number("schedule.floor", floor, least=0, most=1)
        if shape not in SHAPES:
            raise ValueError(f"schedule: shape is {shape!r}; allowed: {', '.join(SHAPES)}")
        self.shape = shape

    def __call__(self, update: int, updates: int) -> float:
        """Returns the factor of one update."""
        fall = SHAPES[self.shape](_progress(update, max(self.warmup, updates - self.decay), updates))
        return _warm(update, self.warmup) * (self.floor + (1 - self.floor) * fall)


def cut_short(schedule: Callable[[int, int], float], updates: int) -> list[str]:
    """Returns, in a line each, what a run of so many updates is too short for."""
    warmup, decay = getattr(schedule, "warmup", 0), getattr(schedule, "decay", 0)
    left = updates - warmup
    if left <= 0:
        return [f"schedule: warmup is {warmup:,} and the run has {updates:,} updates: it never comes to the full rate"]
    if decay > left:
        return [f"schedule: decay is {decay:,} and the run has {left:,} updates after its warmup: the rate falls over these alone"]
    return []


def _warm(update: int, warmup: int) -> float:
    return min(1.0, (update + 1) / (warmup + 1))


def _progress(update: int, begin: int, end: int) -> float:
    """How far an update is between two others, from 0 to 1."""
    if update < begin:
        return 0.0
    return 1.0 if update >= end else (update - begin) / (end - begin)


# how far the rate has still to fall, by progress
SHAPES: dict[str, Callable[[float], float]] = {
    "linear": lambda x: 1 - x,
    "cosine": lambda x: (1 + math.cos(math.pi * x)) / 2,
    "sqrt": lambda x: 1 - math.sqrt(x),
}
SCHEDULES = Kinds(
    "schedule", {"constant": Constant, "cosine": Cosine, "linear": Linear, "wsd": WarmupStableDecay}, offers=["__call__"]
)
