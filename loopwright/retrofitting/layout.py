"""Which layers of a dense model become the prelude, the core and the coda of a looped one: explicit lists, or a named rule.

A rule is a kind, `{"kind": name, options}`: a small class that turns the number of layers of the source into a `Layout`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from loopwright.schema import build_kind, check_kind, check_whole, is_whole


@dataclass(frozen=True)
class Layout:
    """The source layers that each stack is taken from, in order.

    `groups` names, for each layer of the core, the source layers it stands for, in the order of steps. `depth` is how often the
    core runs where nobody says otherwise.
    """

    prelude: tuple[int, ...]
    core: tuple[int, ...]
    coda: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]
    depth: int

    @property
    def kept(self) -> tuple[int, ...]:
        """The source layers of all three stacks, in the order they run."""
        return (*self.prelude, *self.core, *self.coda)

    def dropped(self, layers: int) -> tuple[int, ...]:
        """Returns the layers of a source of so many that no stack is taken from."""
        return tuple(layer for layer in range(layers) if layer not in set(self.kept))


class Lists:
    """Lists of layers. `prelude` and `coda` may be how many first and last ones; left out, all before and after the core."""

    def __init__(self, core: list, prelude: int | list | None = None, coda: int | list | None = None) -> None:
        self.core, self.prelude, self.coda = _whole("core", core), prelude, coda

    def __call__(self, layers: int) -> Layout:
        _ascending("core", self.core)
        # a core beyond the source leaves nothing around it; the check says so
        before = max(0, min(self.core, default=0)) if self.prelude is None else self.prelude
        after = max(0, layers - 1 - max(self.core, default=layers)) if self.coda is None else self.coda
        prelude = _first(before) if isinstance(before, int) else _whole("prelude", before)
        coda = _last(after, layers) if isinstance(after, int) else _whole("coda", after)
        return _cut(layers, prelude, self.core, coda, depth=4)


class Ouroboros:
    """One middle layer looped between the first and last 8 of 36 (Ouroboros V2 on Qwen2.5-3B), in proportion for fewer.

    `prelude` and `coda` say how many, `core` which layer.
    """

    def __init__(self, prelude: int | None = None, core: int | None = None, coda: int | None = None) -> None:
        self.prelude, self.core, self.coda = prelude, core, coda

    def __call__(self, layers: int) -> Layout:
        share = min(8, max(1, round(layers * 8 / 36)))
        prelude = _first(share if self.prelude is None else self.prelude)
        coda = _last(share if self.coda is None else self.coda, layers)
        return _cut(layers, prelude, [layers // 2 if self.core is None else self.core], coda, depth=8)


class Retrofit:
    """Early layers as prelude, late ones as core and coda, the gap between them dropped (arXiv 2511.07384).

    `prelude`, `core` and `coda` say how many; left out, the paper's 4, 6, 4 of 16 and 4, 8, 4 of 22, in proportion for others.
    """

    def __init__(self, prelude: int | None = None, core: int | None = None, coda: int | None = None) -> None:
        self.prelude, self.core, self.coda = prelude, core, coda

    def __call__(self, layers: int) -> Layout:
        share = min(4, max(1, layers // 4))
        prelude = share if self.prelude is None else self.prelude
        core = max(1, round(layers * 3 / 8)) if self.core is None else self.core
        coda = share if self.coda is None else self.coda
        if prelude + core + coda > layers:
            raise ValueError(f"layout (retrofit): {prelude} + {core} + {coda} layers of {layers}; allowed: at most {layers} in all")
        return _cut(layers, _first(prelude), range(layers - coda - core, layers - coda), _last(coda, layers), depth=4)


class Ouro:
    """The whole stack looped."""

    def __call__(self, layers: int) -> Layout:
        return _cut(layers, [], range(layers), [], depth=4)


class Relaxed:
    """`tied` layers, the first ones, in the place of all (arXiv 2410.20672); left out, half of them, or the most that divides
    their number."""

    def __init__(self, tied: int | None = None) -> None:
        self.tied = tied

    def __call__(self, layers: int) -> Layout:
        divisors = [n for n in range(1, layers) if layers % n == 0] or [1]
        tied = divisors[-1] if self.tied is None else self.tied
        if tied not in divisors:
            listed = ", ".join(map(str, divisors))
            raise ValueError(f"layout (relaxed): {tied} tied layers for the {layers} of the source; allowed: {listed}")
        return _cut(layers, [], range(tied), [], depth=layers // tied)


class Refiner:
    """The intact model, its `last` layers looped; nothing is removed and there is no coda."""

    def __init__(self, last: int = 1) -> None:
        self.last = last

    def __call__(self, layers: int) -> Layout:
        if not 1 <= self.last <= layers:
            raise ValueError(f"layout (refiner): the last {self.last} layers of {layers}; allowed: 1 to {layers}")
        return _cut(layers, range(layers - self.last), _last(self.last, layers), [], depth=4)


class Again:
    """The intact model, and behind it its `last` layers once more, looped: they run as they are before the first step (the refiner
    of Ouroboros' code)."""

    def __init__(self, last: int = 1) -> None:
        self.last = last

    def __call__(self, layers: int) -> Layout:
        if not 1 <= self.last <= layers:
            raise ValueError(f"layout (again): the last {self.last} layers of {layers}; allowed: 1 to {layers}")
        core = tuple(_last(self.last, layers))
        layout = Layout(tuple(range(layers)), core, (), tuple((layer,) for layer in core), depth=4)
        _check(layout, layers)
        return layout


class Repeat:
    """The intact model, a window of it looped: layers `first` to `last`; left out, its middle third (arXiv 2605.23872)."""

    def __init__(self, first: int | None = None, last: int | None = None) -> None:
        self.first, self.last = first, last

    def __call__(self, layers: int) -> Layout:
        first = layers // 3 if self.first is None else self.first
        last = max(first, 2 * layers // 3 - 1) if self.last is None else self.last
        return _cut(layers, range(first), range(first, last + 1), range(last + 1, layers), depth=6)


class Upcycle:
    """The whole list of layers several `times` over, looped as a whole (how Ouro 2.6B came from 24 layers)."""

    def __init__(self, times: int = 2) -> None:
        self.times = times

    def __call__(self, layers: int) -> Layout:
        check_whole("layout (upcycle): times", self.times, 1)
        return _cut(layers, [], [*range(layers)] * self.times, [], depth=4)


def find_layout(spec: str | dict[str, Any] | Layout, layers: int) -> Layout:
    """Returns the layout that a rule's name, a rule with options, or a ready one gives for a source of so many layers."""
    if isinstance(spec, Layout):
        _check(spec, layers)
        return spec
    spec = {"kind": spec} if isinstance(spec, str) else spec
    check_kind("layout", spec, LAYOUTS)
    return build_kind(spec, LAYOUTS)(layers)


def stepwise(layout: Layout) -> tuple[int, ...]:
    """Returns as many layers as the core has, at even intervals over all that its groups stand for, first and last included; the
    first one where the core has one. So does arXiv 2410.20672's public code, which rounds positions as we do."""
    pool, count = sorted({layer for group in layout.groups for layer in group}), len(layout.core)
    return tuple(pool[round(i * ((len(pool) - 1) / max(count - 1, 1)))] for i in range(count))


def _cut(layers: int, prelude: Sequence[int], core: Sequence[int], coda: Sequence[int], *, depth: int) -> Layout:
    """Returns the checked layout. The core stands for all layers between prelude and coda, taken in turn: step t of its layer i for
    layer t · (layers of the core) + i of them; a core that holds layers twice stands for itself."""
    layout = Layout(tuple(prelude), tuple(core), tuple(coda), tuple((layer,) for layer in core), depth)
    _check(layout, layers)
    if len(set(core)) < len(core):
        return layout
    between = range(prelude[-1] + 1 if len(prelude) else 0, coda[0] if len(coda) else layers)
    return replace(layout, groups=tuple(tuple(between[i :: len(core)]) for i in range(len(core))))


def _check(layout: Layout, layers: int) -> None:
    """Raises a ValueError, one line, where a layout does not fit a source of so many layers."""
    stacks = {"core": layout.core, "prelude": layout.prelude, "coda": layout.coda}
    if not layout.core:
        raise ValueError("layout: the core has no layer; allowed: at least one")
    for name, held in stacks.items():
        outside = [layer for layer in held if not 0 <= layer < layers]
        if outside:
            raise ValueError(f"layout: {name} holds layer {outside[0]}; allowed: 0 to {layers - 1}, the layers of the source")
        if name != "core" or [*held] != [*range(layers)] * (len(held) // layers):
            _ascending(name, held)
    if [*layout.prelude] == [*range(layers)] and layout.core == layout.prelude[-len(layout.core) :]:
        stacks["prelude"] = layout.prelude[: -len(layout.core)]  # the last layers stand in both: once as they are, then looped
    for a, b in (("prelude", "core"), ("prelude", "coda"), ("core", "coda")):
        shared = sorted(set(stacks[a]) & set(stacks[b]))
        if shared:
            raise ValueError(f"layout: layer {shared[0]} is in the {a} and in the {b}; allowed: each layer in one stack")
        if stacks[a] and stacks[b] and max(stacks[a]) > min(stacks[b]):
            last, first = max(stacks[a]), min(stacks[b])
            raise ValueError(f"layout: the {a} ends with layer {last}, the {b} begins with {first}; allowed: stacks in this order")
    if len(layout.groups) != len(layout.core) or not all(layout.groups):
        raise ValueError(f"layout: {len(layout.groups)} groups for {len(layout.core)} layers of the core; allowed: one for each")
    if any(not 0 <= layer < layers for group in layout.groups for layer in group):
        raise ValueError(f"layout: groups name layers that are not there; allowed: 0 to {layers - 1}")
    check_whole("layout: depth", layout.depth, 1)


def _ascending(name: str, held: Sequence[int]) -> None:
    if any(a >= b for a, b in pairwise(held)):
        raise ValueError(f"layout: {name} is {list(held)}; allowed: layers in ascending order, each once")


def _whole(name: str, held: Sequence[Any]) -> list[int]:
    wrong = [layer for layer in held if not is_whole(layer)]
    if wrong:
        raise ValueError(f"layout: {name} holds {wrong[0]!r}; allowed: numbers of layers")
    return list(held)


def _first(count: int) -> range:
    if count < 0:
        raise ValueError(f"layout: {count} layers of the prelude; allowed: at least 0")
    return range(count)


def _last(count: int, layers: int) -> range:
    if not 0 <= count <= layers:
        raise ValueError(f"layout: the last {count} layers of {layers}; allowed: 0 to {layers}")
    return range(layers - count, layers)


LAYOUTS: dict[str, type] = {
    "lists": Lists,
    "ouroboros": Ouroboros,
    "retrofit": Retrofit,
    "ouro": Ouro,
    "relaxed": Relaxed,
    "refiner": Refiner,
    "again": Again,
    "repeat": Repeat,
    "upcycle": Upcycle,
}
