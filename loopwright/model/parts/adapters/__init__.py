"""What differs per step: a list of adapters, each a kind of this table, on the core or, with a `stack`, on prelude or coda."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from loopwright.model.parts.adapters.controllers import BasisController
from loopwright.model.parts.adapters.diagonal import Controller, StaticDiagonal
from loopwright.model.parts.adapters.effects import Adapter, Site
from loopwright.model.parts.adapters.tables import ABBA, HiRA, LowRank, SinusoidalStep
from loopwright.model.parts.part import Sizes
from loopwright.model.passes import STACKS
from loopwright.schema import Kinds, build_kind, check_kind

ADAPTERS = Kinds(
    "adapter",
    {
        "sinusoidal": SinusoidalStep,
        "low-rank": LowRank,
        "hira": HiRA,
        "abba": ABBA,
        "diagonal": StaticDiagonal,
        "controller": Controller,
        "basis-controller": BasisController,
    },
    inherits=Adapter, offers=["begin"], given=["site"], reserved=["stack"],
)  # fmt: skip


def stack_of(spec: Mapping[str, Any]) -> str:
    """Returns the stack that an entry of `adapters` stands on."""
    return spec.get("stack", "core")


def check_adapter(where: str, spec: Mapping[str, Any]) -> None:
    """Raises a ValueError where an entry of `adapters` is not a kind with its options and a stack."""
    check_kind(where, _plain(spec), ADAPTERS)
    if stack_of(spec) not in STACKS:
        raise ValueError(f"{where} ({spec['kind']}): stack is {spec['stack']!r}; allowed: {', '.join(STACKS)}")


def build_adapters(config: Sizes) -> list[Adapter]:
    """Returns the adapters of a checked config, each under the name of its place."""
    adapters = [build_adapter(spec, config) for spec in config.adapters]
    for index, adapter in enumerate(adapters):
        adapter.key = f"adapters.{index}"
    return adapters


def build_adapter(spec: Mapping[str, Any], config: Sizes) -> Adapter:
    """Returns the adapter that a checked entry of `adapters` describes."""
    adapter: Adapter = build_kind(_plain(spec), ADAPTERS, Site(config, stack_of(spec)))
    adapter.stack = stack_of(spec)
    return adapter


def _plain(spec: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in spec.items() if key != "stack"}
