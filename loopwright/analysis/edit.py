"""Edits: taps that change what passes. Each names its places; `chain` joins several; every one is a pure function of its input.

model(ids, tap=zero("mlp", at(stack="core", layer=1)))
lw.trace(model, ids, edit=chain(noise("state", at(step=4), size=0.1, seed=0), zero("attention", at(layer=0))))
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import torch
from torch import Tensor

from loopwright.model.config import LoopedConfig
from loopwright.model.tap import POINTS, Tap

Place = tuple[str, int, int]  # stack, step, layer
Where = Callable[[str, int, int], bool]
Change = Callable[[Tensor, Place], Tensor]


def at(*, stack: str | None = None, step: int | Collection[int] | None = None, layer: int | Collection[int] | None = None) -> Where:
    """Returns the places of a stack, of a step or steps, and of a layer or layers; what is left out may be any."""
    if stack not in (None, "prelude", "core", "coda"):
        raise ValueError(f"edit: unknown stack {stack!r}; allowed: prelude, core, coda")
    steps, layers = ({n} if isinstance(n, int) else n for n in (step, layer))
    return lambda here, t, i: stack in (None, here) and (steps is None or t in steps) and (layers is None or i in layers)


def change(point: str, where: Where, make: Change) -> Tap:
    """Returns a tap that puts make(value, place) in the place of the tensors of one point wherever `where` holds."""
    if point not in POINTS:
        raise ValueError(f"edit: unknown point {point!r}; allowed: {', '.join(POINTS)}")

    def tap(name: str, value: Tensor, *, stack: str, step: int | Tensor, layer: int) -> Tensor:
        if name != point:
            return value
        if isinstance(step, Tensor):
            raise ValueError("edit: rows at different steps have no common place; edit them one depth at a time")
        return make(value, (stack, step, layer)) if where(stack, step, layer) else value

    return tap


def zero(name: str, where: Where) -> Tap:
    """Returns an edit that puts zeros: a layer whose "attention" or "mlp" is zero runs without that branch."""
    return change(name, where, lambda value, _: torch.zeros_like(value))


def ablate_massive(config: LoopedConfig, layer: int = 1) -> Tap:
    """Returns an edit that zeroes the MLP output of the second layer of a model (or of `layer`, counted from 0 through prelude
    and core), which is where massive activations arise; where it is a layer of the core, at every step."""
    count = config.prelude_layers + config.core_layers
    if not 0 <= layer < count:
        raise ValueError(f"edit: layer {layer}; allowed: 0 to {count - 1}, the layers of prelude and core")
    if layer < config.prelude_layers:
        return zero("mlp", at(stack="prelude", layer=layer))
    return zero("mlp", at(stack="core", layer=layer - config.prelude_layers))


def patch(name: str, where: Where, values: Mapping[Place, Tensor], *, tokens: Tensor | None = None) -> Tap:
    """Returns an edit that puts the value of another pass, by (stack, step, layer); only at `tokens` [B, T] where given."""

    def make(value: Tensor, place: Place) -> Tensor:
        if place not in values:
            raise ValueError(f"patch: no value for {place}; given: {len(values)} others (record them with a Recorder)")
        other = values[place].to(value)
        if other.shape != value.shape:
            raise ValueError(f"patch: a value of shape {tuple(other.shape)} for {place}; allowed: {tuple(value.shape)}")
        return other if tokens is None else torch.where(_over(tokens.to(value.device), value), other, value)

    return change(name, where, make)


def swap(name: str, seen: Mapping[Place, Tensor], first: int, second: int, *, layer: int | Collection[int] | None = None) -> Tap:
    """Returns an edit that puts what the core showed at step `second` at step `first`, and the other way round; `seen` holds the
    tensors of an unedited pass, by (stack, step, layer)."""
    other = {first: second, second: first}

    def make(value: Tensor, place: Place) -> Tensor:
        there = ("core", other[place[1]], place[2])
        if there not in seen:
            raise ValueError(f"swap: nothing was recorded at {there}; record the points of a pass that is deep enough")
        return seen[there].to(value)

    return change(name, at(stack="core", step=(first, second), layer=layer), make)


def noise(name: str, where: Where, *, size: float, seed: int) -> Tap:
    """Returns an edit that adds normal noise of `size` times the root mean square of each token; a pure function of the seed and
    the place, the same for every row and whatever else passed before."""

    def make(value: Tensor, place: Place) -> Tensor:
        stack, step, layer = place
        key = (seed * 1_000_003 + step) * 4099 + layer * 3 + ("prelude", "core", "coda").index(stack)
        draw = torch.Generator().manual_seed(key % 2**63)
        drawn = torch.randn(value.shape[1:], generator=draw).to(value)
        flat = value.flatten(2).float().square().mean(-1).sqrt()
        return value + size * _spread(flat, value) * drawn

    return change(name, where, make)


def chain(*taps: Tap) -> Tap:
    """Returns a tap that hands each tensor through all of them, in order."""

    def tap(name: str, value: Tensor, *, stack: str, step: int | Tensor, layer: int) -> Tensor:
        for each in taps:
            value = each(name, value, stack=stack, step=step, layer=layer)
        return value

    return tap


def recorded(seen: Mapping[tuple[str, str, int, int], Tensor], name: str) -> dict[Place, Tensor]:
    """Returns what a Recorder saw at one point, by (stack, step, layer): the values that `patch` and `swap` take."""
    return {(stack, step, layer): value for (point, stack, step, layer), value in seen.items() if point == name}


def _over(tokens: Tensor, value: Tensor) -> Tensor:
    return tokens.bool().view(*tokens.shape, *[1] * (value.dim() - 2))


def _spread(tokens: Tensor, value: Tensor) -> Tensor:
    return tokens.to(value.dtype).view(*tokens.shape, *[1] * (value.dim() - 2))
