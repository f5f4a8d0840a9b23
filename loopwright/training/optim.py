"""Learning-rate schedules, counted in updates: each returns the factor, from 0 to 1, by which every learning rate is scaled.

Update u runs from 0 to N − 1. Warm-up over W updates gives (u + 1) / (W + 1), so that the first update already moves and
update W is the first at the full rate; a decay that begins at update B of N is at progress (u − B) / (N − B), so that the
last update still moves and the floor would be reached at update N, where it stays. A run no longer than its warm-up warms
up to its end.

Averages of the weights over the updates of a run, kept beside them in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from loopwright.checkpoints.families.family import listed
from loopwright.schema import Kinds, check_number, check_whole
from loopwright.training.optimisers import spread, whole


class Constant:
    """The full rate after the warm-up."""

    def __init__(self, warmup: int = 0) -> None:
        self.warmup = check_whole("schedule.warmup", warmup, 0)

    def __call__(self, update: int, updates: int) -> float:
        """Returns the factor of one update."""
        return _warm(update, self.warmup)


class CosineSchedule:
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
    "schedule", {"constant": Constant, "cosine": CosineSchedule, "linear": Linear, "wsd": WarmupStableDecay}, offers=["__call__"]
)


class Average:
    """An exponential moving average of trainable parameters: a ← d·a + (1 − d)·p after each update.

    With a `warmup`, d grows with the update u (from 0) as min(decay, (u + 1) / (u + 1 + warmup)), so that the start is soon
    forgotten. d is a function of the update alone: the averages are all there is to save.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], *, decay: float, warmup: int) -> None:
        self.decay = decay
        self.warmup = warmup
        self.parameters = dict(parameters)
        self.values = {name: parameter.detach().float().clone() for name, parameter in self.parameters.items()}

    def decay_at(self, update: int) -> float:
        """Returns d of one update."""
        return min(self.decay, (update + 1) / (update + 1 + self.warmup))

    @torch.no_grad()
    def take_in(self, update: int) -> None:
        """Moves the averages towards the parameters as they are after update `update`."""
        now = [parameter.detach().float() for parameter in self.parameters.values()]
        get_ema_multi_avg_fn(self.decay_at(update))(list(self.values.values()), now, update)

    @contextmanager
    def swapped(self) -> Iterator[None]:
        """Lets the averages stand in the place of the parameters for a while; the parameters come back bit for bit."""
        kept = {name: parameter.detach().clone() for name, parameter in self.parameters.items()}
        try:
            self._fill(self.values)
            yield
        finally:
            self._fill(kept)

    def state_tensors(self) -> dict[str, Tensor]:
        """Returns the averages by parameter name, whole where they are spread over processes (then all must ask)."""
        return {name: whole(value) for name, value in self.values.items()}

    def load_state_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Goes on from averages of the same parameters."""
        odd = sorted(set(tensors) ^ set(self.values))
        odd += [name for name in sorted(self.values) if name in tensors and tensors[name].shape != self.values[name].shape]
        if odd:
            raise ValueError(f"average: does not fit the trainable parameters: {listed(odd)}")
        for name, value in self.values.items():
            value.copy_(spread(tensors[name], value))

    @torch.no_grad()
    def _fill(self, values: Mapping[str, Tensor]) -> None:
        for name, parameter in self.parameters.items():
            parameter.copy_(values[name])


class EMA:
    """The exponential moving average as a recipe names it."""

    def __init__(self, decay: float = 0.999, warmup: int = 0) -> None:
        check_number("average.decay", decay, least=0, below=1)
        check_whole("average.warmup", warmup, 0)
        self.decay = decay
        self.warmup = warmup

    def __call__(self, model: nn.Module) -> Average:
        """Returns the average of a model's trainable parameters, as they are now."""
        trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        return Average(trained, decay=self.decay, warmup=self.warmup)


AVERAGES: dict[str, type] = {"ema": EMA}
