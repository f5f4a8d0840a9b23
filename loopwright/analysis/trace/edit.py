"""Edits: taps that change what passes. Each names its places; `chain` joins several; every one is a pure function of its input.

model(ids, tap=zero("mlp", at(stack="core", layer=1)))
lw.trace(model, ids, edit=chain(noise("state", at(step=4), size=0.1, seed=0), zero("attention", at(layer=0))))

A trace, and a pass of the model itself, refuse an edit that has no place in the pass. Of a tap of another kind nothing is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from operator import index

import torch
from torch import Tensor

from loopwright.analysis.trace.places import Places
from loopwright.model.config import LoopedConfig
from loopwright.model.parts.adapters import ADAPTERS, stack_of
from loopwright.model.parts.gate import GATES
from loopwright.model.passes import STACKS
from loopwright.model.taps import POINTS, Tap, check_tap

Place = tuple[str, int, int]  # stack, step, layer
Where = Callable[[str, int, int], bool]
Change = Callable[[Tensor, Place], Tensor]
OF_CORE = tuple(point for point in POINTS if point not in ("embed", "logits"))  # the points that a step shows


@dataclass(frozen=True)
class Spots:
    """The places of a stack, of steps and of layers, each None where it may be any; made by `at`."""

    stack: str | None
    steps: frozenset[int] | None
    layers: frozenset[int] | None

    def __call__(self, stack: str, step: int, layer: int) -> bool:
        right = (self.steps is None or step in self.steps) and (self.layers is None or layer in self.layers)
        return right and self.stack in (None, stack)

    def __str__(self) -> str:
        named = [] if self.stack is None else [f"stack {self.stack}"]
        for name, given in (("step", self.steps), ("layer", self.layers)):
            named += [] if given is None else [f"{name} {' or '.join(map(str, sorted(given)))}"]
        return ", ".join(named) or "any place"


@dataclass(frozen=True)
class Edit:
    """A tap that changes one point wherever `where` holds; made by `change`."""

    point: str
    where: Where
    make: Change

    def __call__(self, name: str, value: Tensor, *, stack: str, step: int | Tensor, layer: int) -> Tensor:
        if name != self.point:
            return value
        if isinstance(step, Tensor):
            raise ValueError("edit: rows at different steps have no common place; edit them one depth at a time")
        return self.make(value, (stack, step, layer)) if self.where(stack, step, layer) else value

    def check_places(self, config: LoopedConfig, depth: int, *, head: bool) -> None:
        """Raises where it would change nothing in a pass of a model at a depth, with its `head` or without it."""
        check_edit(self, config, depth, head=head)


@dataclass(frozen=True)
class EditChain:
    """A tap that hands each tensor through several, in order; made by `chain`."""

    taps: tuple[Tap, ...]

    def __call__(self, name: str, value: Tensor, *, stack: str, step: int | Tensor, layer: int) -> Tensor:
        for each in self.taps:
            value = each(name, value, stack=stack, step=step, layer=layer)
        return value

    def check_places(self, config: LoopedConfig, depth: int, *, head: bool) -> None:
        """Raises where one of them would change nothing in a pass of a model at a depth, with its `head` or without it."""
        for each in self.taps:
            check_tap(each, config, depth, head=head)


def at(*, stack: str | None = None, step: int | Iterable[int] | None = None, layer: int | Iterable[int] | None = None) -> Where:
    """Selects places by stack, step or steps, and layer or layers; what is not given matches all."""
    if stack not in (None, *STACKS):
        raise ValueError(f"edit: unknown stack {stack!r}; allowed: {', '.join(STACKS)}")
    return Spots(stack, _numbers("step", step), _numbers("layer", layer))


def change(point: str, where: Where, make: Change) -> Tap:
    """Returns a tap that puts make(value, place) in the place of the tensors of one point wherever `where` holds."""
    if point not in POINTS:
        raise ValueError(f"edit: unknown point {point!r}; allowed: {', '.join(POINTS)}")
    return Edit(point, where, make)


def shown(point: str, config: LoopedConfig, depth: int, *, head: bool = False) -> list[Place]:
    """Returns where a pass of a model at a depth shows a point; the logits with the `head` alone, before which a trace stops."""
    places = Places.of(config, depth)
    if point == "embed":
        return [("prelude", 0, 0)]
    if point == "gate" and not GATES[config.gate["kind"]].opens:
        return []
    if point in ("gate", "state"):
        return [("core", step, places.core) for step in range(places.steps)] if places.core else []
    if point == "logits":
        return [("coda", 0, places.coda)] if head else []
    every = [places.name(i) for i in range(places.count)]
    if point == "diagonal":
        with_any = {stack_of(spec) for spec in config.adapters if ADAPTERS[spec["kind"]].diagonal}
        return [place for place in every if place[0] in with_any]
    return every


def check_edit(tap: Tap | None, config: LoopedConfig, depth: int, *, head: bool = False) -> None:
    """Raises where an edit, or one of a chain, would change nothing in a pass of a model at a depth, with the `head` where that is
    so. Of other taps nothing is known."""
    for edit in _edits(tap):
        there = shown(edit.point, config, depth, head=head)
        if not any(edit.where(*place) for place in there):
            where = edit.where if isinstance(edit.where, Spots) else "the places of a function"
            raise ValueError(f"edit: {edit.point} at {where} would change nothing; the pass shows it at: {_say(there)}")


def zero(name: str, where: Where) -> Tap:
    """Returns an edit that sets values to zero: a layer whose "attention" or "mlp" is zero runs without that branch."""
    return change(name, where, lambda value, _: torch.zeros_like(value))


def ablate_massive(config: LoopedConfig, layer: int = 1) -> Tap:
    """Returns an edit that zeroes the MLP output of the second layer of a model (or of `layer`, counted from 0 through prelude
    and core), where massive activations arise in the paper's model; where it is a layer of the core, at every step."""
    count = config.prelude_layers + config.core_layers
    if not 0 <= layer < count:
        raise ValueError(f"edit: layer {layer}; allowed: 0 to {count - 1}, the layers of prelude and core")
    if layer < config.prelude_layers:
        return zero("mlp", at(stack="prelude", layer=layer))
    return zero("mlp", at(stack="core", layer=layer - config.prelude_layers))


def patch(name: str, where: Where, values: Mapping[Place, Tensor], *, tokens: Tensor | None = None) -> Tap:
    """Returns an edit that puts in the value of another pass, by (stack, step, layer); only at `tokens` [B, T] if given."""

    def make(value: Tensor, place: Place) -> Tensor:
        if place not in values:
            raise ValueError(f"patch: no value for {place}; given: {len(values)} others (record them with a Recorder)")
        other = _fitting("patch", values[place], value, place)
        return other if tokens is None else torch.where(_over(tokens.to(value.device), value), other, value)

    return change(name, where, make)


def swap(name: str, seen: Mapping[Place, Tensor], first: int, second: int, *, layer: int | Iterable[int] | None = None) -> Tap:
    """Returns an edit that exchanges the core's values of steps `first` and `second`; `seen` holds the tensors of an unedited pass,
    by (stack, step, layer)."""
    if name not in OF_CORE:
        raise ValueError(f"swap: point {name!r}; allowed: {', '.join(OF_CORE)}")
    other = {first: second, second: first}

    def make(value: Tensor, place: Place) -> Tensor:
        there = ("core", other[place[1]], place[2])
        if there not in seen:
            raise ValueError(f"swap: nothing was recorded at {there}; record the points of a pass that is deep enough")
        return _fitting("swap", seen[there], value, there)

    return change(name, at(stack="core", step=(first, second), layer=layer), make)


def noise(name: str, where: Where, *, size: float, seed: int) -> Tap:
    """Returns an edit that adds normal noise of `size` times the root mean square of each token; a pure function of the seed and
    the place, the same for every row and whatever else passed before."""

    def make(value: Tensor, place: Place) -> Tensor:
        stack, step, layer = place
        key = (seed * 1_000_003 + step) * 4099 + layer * 3 + STACKS.index(stack)
        draw = torch.Generator().manual_seed(key % 2**63)
        drawn = torch.randn(value.shape[1:], generator=draw).to(value)
        flat = value.flatten(2).float().square().mean(-1).sqrt()
        return value + size * _spread(flat, value) * drawn

    return change(name, where, make)


def chain(*taps: Tap) -> Tap:
    """Returns a tap that hands each tensor through all of them, in order."""
    return EditChain(taps)


def recorded(seen: Mapping[tuple[str, str, int, int], Tensor], name: str) -> dict[Place, Tensor]:
    """Returns what a Recorder saw at one point, by (stack, step, layer): the values that `patch` and `swap` take."""
    return {(stack, step, layer): value for (point, stack, step, layer), value in seen.items() if point == name}


def _numbers(name: str, given: int | Iterable[int] | None) -> frozenset[int] | None:
    """Returns one number or several, read once: an iterator would be used up at the first place."""
    if given is None:
        return None
    try:
        several = list(given) if isinstance(given, Iterable) else [given]
        numbers = frozenset(-1 if isinstance(n, bool) else index(n) for n in several)
    except TypeError:
        numbers = frozenset()
    if not numbers or min(numbers) < 0:
        raise ValueError(f"edit: {name} {given!r}; allowed: a whole number of at least 0, or one or more of them")
    return numbers


def _edits(tap: Tap | None) -> Iterator[Edit]:
    if isinstance(tap, Edit):
        yield tap
    elif isinstance(tap, EditChain):
        for each in tap.taps:
            yield from _edits(each)


def _say(there: list[Place]) -> str:
    """Returns places in words: each stack with its layers and steps."""
    parts = []
    for stack in dict.fromkeys(place[0] for place in there):
        _, steps, layers = zip(*(place for place in there if place[0] == stack), strict=True)
        parts.append(f"{stack} ({_from_to('layer', layers)}, {_from_to('step', steps)})")
    return ", ".join(parts) or "no place"


def _from_to(name: str, numbers: tuple[int, ...]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{name} {low}" if low == high else f"{name}s {low} to {high}"


def _fitting(what: str, other: Tensor, value: Tensor, place: Place) -> Tensor:
    """Returns the value of another pass, which must have the shape of the one that it stands for."""
    if other.shape != value.shape:
        raise ValueError(f"{what}: a value of shape {tuple(other.shape)} for {place}; allowed: {tuple(value.shape)}")
    return other.to(value)


def _over(tokens: Tensor, value: Tensor) -> Tensor:
    return tokens.bool().view(*tokens.shape, *[1] * (value.dim() - 2))


def _spread(tokens: Tensor, value: Tensor) -> Tensor:
    return tokens.to(value.dtype).view(*tokens.shape, *[1] * (value.dim() - 2))
