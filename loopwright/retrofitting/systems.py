"""Named retrofits: a layout, how the core starts, and the parts, as plain data. Each says what it equals before it is trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loopwright.model.parts.adapters import ADAPTERS, stack_of
from loopwright.model.parts.state import huginn_std
from loopwright.model.passes import STACKS
from loopwright.retrofitting.layout import Layout
from loopwright.retrofitting.start import HOWS, METHODS
from loopwright.schema import fill_section, merge, suggest

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
    stepwise. `bases` is what the adapters' factors start from (bases.py), `svd` how they are found. `injection_start` "input" makes
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


_CONTROLLER = {"kind": "controller", "rank": 32, "alpha": 16.0, "style": 128}
_PUBLISHED: dict[str, Any] = {"gate": {"kind": "learned"}, "end_norm": "per-step", "max_steps": 64, "beyond_max_steps": "repeat"}
_OUROBOROS: dict[str, Any] = {"layout": {"kind": "ouroboros"}, "gate": {"kind": "grown"}}
_OURO: dict[str, Any] = {"end_norm": "every", "final_norm": {"kind": "none"}, "halting": {"kind": "exit"}}
_RETROFIT: dict[str, Any] = {
    "layout": {"kind": "retrofit"}, "injection": {"kind": "concat"}, "state": {"kind": "noise", "std": huginn_std(5280)},
    "init": {"kind": "retrofit"},
}  # fmt: skip

SYSTEMS: dict[str, System] = {
    "ouroboros": System(
        "Ouroboros V2 as published, but for causal pooling: controller, gate at 0.12, a norm per step", "none",
        {
            **_PUBLISHED, "layout": {"kind": "ouroboros"}, "bases": "mean", "adapters": [{**_CONTROLLER, "init": "linear"}],
        },
    ),
    "ouroboros-static": System(
        "the static rival of Ouroboros as published: a table of diagonals in the controller's place, all else alike", "none",
        {
            **_PUBLISHED, "layout": {"kind": "ouroboros"}, "bases": "mean",
            "adapters": [{"kind": "diagonal", "rank": 32, "alpha": 16.0}],
        },
    ),
    "ouroboros-refiner": System(
        "Ouroboros' refiner as published: the intact model, its last layer again under a controller, gate and step norms", "none",
        {
            **_PUBLISHED, "layout": {"kind": "again"},
            "adapters": [{
                "kind": "basis-controller", "rank": 8, "alpha": 16.0, "count": 8, "state": 256, "step": 128, "width": 512,
                "style": 32, "init": "linear",
            }],
        },
    ),
    "ouroboros-identity": System(
        "the Ouroboros controller under a gate that starts closed, without step norms", "truncated",
        {**_OUROBOROS, "bases": "mean", "adapters": [_CONTROLLER]},
    ),
    "ouroboros-coda": System(
        "ouroboros-identity with low-rank adapters on the coda", "truncated",
        {**_OUROBOROS, "bases": "mean", "adapters": [_CONTROLLER, {"kind": "low-rank", "rank": 8, "stack": "coda"}]},
    ),
    "static": System(
        "ouroboros-identity with one diagonal per step in the controller's place: no input is read", "truncated",
        {**_OUROBOROS, "bases": "mean", "adapters": [{"kind": "diagonal", "rank": 32, "alpha": 16.0}]},
    ),
    "gate-only": System("ouroboros-identity without its controller: the gate alone", "truncated", _OUROBOROS),
    "plain-loop": System(
        "one middle layer repeated, no parts", "truncated", {"layout": {"kind": "ouroboros"}}, at_depth=1, trains="all",
    ),
    "healed": System(
        "the truncated model, not looped, with low-rank adapters on every layer", "truncated",
        {
            "layout": {"kind": "ouroboros"}, "depth": 1,
            "adapters": [{"kind": "low-rank", "rank": 8, "stack": stack} for stack in STACKS],
        },
        at_depth=1,
    ),
    "relaxed": System(
        "tied layers, low-rank updates per step from what each step's own layer differs by (arXiv 2410.20672)", "none",
        {"layout": {"kind": "relaxed"}, "start": "average", "bases": "per-step", "adapters": [{"kind": "low-rank", "rank": 64}]},
        trains="all",
    ),
    "refiner": System(
        "the intact model, its last layer applied again under the larger controller and a gate that starts closed", "full",
        {
            "layout": {"kind": "refiner"}, "gate": {"kind": "grown"},
            # states after the last layer are far larger than any before: read as they are, they drive the controller to infinity
            "adapters": [{"kind": "basis-controller", "rank": 16, "pool_norm": "rms"}],
        },
    ),
    "repeat": System(
        "the intact model, its middle third run several times, damped by 1/depth; nothing to train (arXiv 2605.23872)", "none",
        {"layout": {"kind": "repeat"}, "gate": {"kind": "mix"}},
    ),
    "retrofit": System(
        "early prelude, late core and coda, fresh concatenating injection, state from noise (arXiv 2511.07384)", "none",
        _RETROFIT, trains="all",
    ),
    "retrofit-identity": System(
        "retrofit with an injection that starts as the input alone", "truncated",
        {**_RETROFIT, "injection_start": "input"}, trains="all",
    ),
    "ouro": System(
        "the whole stack looped, the final norm at the end of every step, an exit gate (arXiv 2510.25741)", "full",
        {**_OURO, "layout": {"kind": "ouro"}}, at_depth=1, trains="all",
    ),
    "upcycle": System(
        "ouro on the list of layers twice over (how Ouro 2.6B began)", "truncated",
        {**_OURO, "layout": {"kind": "upcycle"}}, at_depth=1, trains="all",
    ),
}  # fmt: skip


def find_system(name: str) -> System:
    """Returns a system by its name."""
    if name not in SYSTEMS:
        raise ValueError(f"retrofit: unknown system {name!r}; {suggest(name, SYSTEMS)}")
    return SYSTEMS[name]


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
    """Returns the system where its word on the start still holds for a plan: sizes, layers and bases may differ, parts may not."""
    entry = find_system(system)
    return entry if _ground(make_plan(system, {}), entry.equals) == _ground(plan, entry.equals) else None


def _ground(plan: RetrofitPlan, equals: str) -> list[Any]:
    """What the word of a system rests on."""
    fields = ("state", "injection", "injection_start", "gate", "end_norm", "layer_post_norm", "final_norm")
    ground: list[Any] = [getattr(plan, name) for name in fields]
    ground += [[(spec["kind"], spec.get("stack")) for spec in plan.adapters or []]]
    if any(
        ADAPTERS[spec["kind"]].starts_from == "factors" and stack_of(spec) == "core"
        for spec in plan.adapters or []
        if spec["kind"] in ADAPTERS
    ):  # bases are what its update starts as
        ground.append(plan.bases)
    rule = plan.layout["kind"] if isinstance(plan.layout, Mapping) else "given"
    return [*ground, rule, plan.start] if equals == "full" else ground
