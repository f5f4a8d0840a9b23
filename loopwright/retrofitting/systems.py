"""Named retrofits (systems.yaml) and the plans made of them: a layout, how the core starts, and the parts, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from loopwright.model.parts.adapters import ADAPTERS, stack_of
from loopwright.model.passes import STACKS
from loopwright.retrofitting.layout import Layout
from loopwright.retrofitting.start import HOWS, METHODS
from loopwright.schema import fill_section, merge, read_yaml, suggest

STARTS = ("selected", "average", "stepwise")
INJECTION_STARTS = ("fresh", "input")
BASES = ("none", *HOWS)
TRAINS = ("parts", "all")
# the fields of Plan that are those of the model's config; the others are the surgeon's own
PARTS = (
    "state", "injection", "adapters", "gate", "halting", "end_norm", "layer_post_norm", "final_norm", "beyond_max_steps", "init",
)  # fmt: skip


@dataclass(frozen=True)
class RetrofitPlan:
    """What a retrofit does, as data. The fields after `max_steps` are those of the model's config.

    `start` is where the core's weights come from: the layers of the layout, the average of what each stands for, or layers picked
    stepwise. `bases` is what the adapters' factors start from (start.py), `svd` how they are found. `injection_start` "input" makes
    a concatenating injection pass the input on. `max_steps` is the depth where something holds one row per step and none is given.
    Without `init` what is new starts as the source's config says.
    """

    layout: dict | Layout
    start: str = "selected"
    bases: str = "none"
    svd: str = "exact"
    injection_start: str = "fresh"
    depth: int | None = None
    max_steps: int | None = None
    beyond_max_steps: str = "refuse"
    state: dict | None = None
    injection: dict | None = None
    adapters: list | None = None
    gate: dict | None = None
    halting: dict | None = None
    end_norm: str = "never"
    layer_post_norm: str = "none"
    final_norm: dict | None = None
    init: dict | None = None

    def __post_init__(self) -> None:
        for name, allowed in (
            ("start", STARTS),
            ("bases", BASES),
            ("svd", METHODS),
            ("injection_start", INJECTION_STARTS),
        ):
            if getattr(self, name) not in allowed:
                raise ValueError(f"retrofit: {name} is {getattr(self, name)!r}; allowed: {', '.join(allowed)}")
        if self.svd != "exact" and self.bases == "none":
            raise ValueError(f"retrofit: svd is {self.svd!r}, and bases are 'none'; allowed: with bases that an SVD gives")


@dataclass(frozen=True)
class System:
    """A named retrofit. Untrained it `equals` the "truncated" model (its own layers, once each, without parts), the "full" one it
    was made from, or "none" of them: at every depth, or `at_depth` alone. A run of it `trains` its "parts" or "all"."""

    about: str
    equals: str
    plan: Mapping[str, Any]
    at_depth: int | None = None
    trains: str = "parts"


@cache
def systems() -> dict[str, System]:
    """Returns the named systems of systems.yaml."""
    text = (Path(__file__).parent / "systems.yaml").read_text()
    return {name: fill_section(System, entry, name) for name, entry in read_yaml(text, "systems.yaml").items()}


def find_system(name: str) -> System:
    """Returns a system by its name."""
    if name not in systems():
        raise ValueError(f"retrofit: unknown system {name!r}; {suggest(name, systems())}")
    return systems()[name]


def make_plan(system: str, changes: Mapping[str, Any]) -> RetrofitPlan:
    """Returns the plan of a system with changes laid over it.

    Beside the fields of a plan, changes may hold `prelude`, `core` and `coda`: with a list for `core` the layout is explicit, and
    without one they are options of the system's own rule. `layout` may be a rule's name alone; a mapping for `adapters` is laid
    over each adapter of the system, a list replaces them.
    """
    base, changes = dict(find_system(system).plan), dict(changes)
    stacks = {name: changes.pop(name, None) for name in STACKS}
    stacks = {name: value for name, value in stacks.items() if value is not None}
    if isinstance(changes.get("layout"), str):
        changes["layout"] = {"kind": changes["layout"]}
    if isinstance(changes.get("adapters"), Mapping):
        if not base.get("adapters"):
            listed = ", ".join(map(str, changes["adapters"]))
            raise ValueError(f"retrofit: adapters.{listed} given, and {system} has no adapter; allowed: a list of them")
        changes["adapters"] = [merge(spec, changes["adapters"]) for spec in base["adapters"]]
    if stacks and isinstance(changes.get("layout"), Layout):
        raise ValueError(f"retrofit: {', '.join(stacks)} given beside a ready layout; allowed: one of the two")
    if isinstance(stacks.get("core"), Sequence):
        if changes.get("layout", {"kind": "lists"}) != {"kind": "lists"}:
            raise ValueError(f"retrofit: core lists layers beside layout {changes['layout']!r}; allowed: one of the two")
        changes["layout"] = {"kind": "lists", **stacks}
    elif stacks:
        changes["layout"] = merge(changes.get("layout", {}), stacks)
    plan: RetrofitPlan = fill_section(RetrofitPlan, merge(base, changes), "retrofit")
    return plan


def promised(system: str, plan: RetrofitPlan) -> System | None:
    """Returns the system if what it says of its start still applies to a plan: parts may not differ, sizes and layers may."""
    entry = find_system(system)
    return entry if _equality_fields(make_plan(system, {}), entry.equals) == _equality_fields(plan, entry.equals) else None


def _equality_fields(plan: RetrofitPlan, equals: str) -> list[Any]:
    """Returns the values of a plan that its equality at the start depends on."""
    fields = ("state", "injection", "injection_start", "gate", "end_norm", "layer_post_norm", "final_norm")
    values: list[Any] = [getattr(plan, name) for name in fields]
    values += [[(spec["kind"], spec.get("stack")) for spec in plan.adapters or []]]
    if any(
        ADAPTERS[spec["kind"]].starts_from == "factors" and stack_of(spec) == "core"
        for spec in plan.adapters or []
        if spec["kind"] in ADAPTERS
    ):  # bases are what its update starts as
        values.append(plan.bases)
    rule = plan.layout["kind"] if isinstance(plan.layout, Mapping) else "given"
    return [*values, rule, plan.start] if equals == "full" else values
