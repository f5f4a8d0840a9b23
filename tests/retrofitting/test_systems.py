"""Named retrofits as data: what changes reach, and when a system's word on its start still holds."""

from __future__ import annotations

from typing import Any

import pytest

from loopwright.model.parts.state import huginn_std
from loopwright.retrofitting.layout import LAYOUTS, find_layout
from loopwright.retrofitting.systems import make_plan, promised, systems


def test_every_system_is_sound_and_every_rule_has_one() -> None:
    plans = {name: make_plan(name, {}) for name in systems()}
    assert {plan.layout["kind"] for plan in plans.values()} | {"lists"} == set(LAYOUTS)
    assert {system.equals for system in systems().values()} == {"truncated", "full", "none"}
    assert {system.trains for system in systems().values()} == {"parts", "all"}
    assert all(promised(name, plan) is systems()[name] for name, plan in plans.items())


def test_the_noise_of_a_retrofit_is_huginns() -> None:
    assert systems()["retrofit"].plan["state"]["std"] == huginn_std(5280)


def test_changes_reach_the_layout_the_parts_and_each_adapter() -> None:
    plan = make_plan("ouroboros-coda", {"prelude": 3, "adapters": {"rank": 4}, "depth": 5, "gate": {"bias": 0.1}})
    assert plan.layout == {"kind": "ouroboros", "prelude": 3}
    assert [spec["rank"] for spec in plan.adapters or []] == [4, 4] and plan.depth == 5
    assert plan.gate == {"kind": "grown", "bias": 0.1}
    assert make_plan("static", {"layout": "retrofit"}).layout == {"kind": "retrofit"}
    assert make_plan("static", {"layout": {"kind": "retrofit", "core": 2}, "coda": 1}).layout == {
        "kind": "retrofit",
        "core": 2,
        "coda": 1,
    }
    assert make_plan("static", {"adapters": [{"kind": "abba"}]}).adapters == [{"kind": "abba"}]
    explicit = make_plan("static", {"prelude": 4, "core": [10, 11, 12], "coda": 4})
    assert explicit.layout == {"kind": "lists", "prelude": 4, "core": [10, 11, 12], "coda": 4}
    assert make_plan("static", {}).layout == {"kind": "ouroboros"}, "no system was changed"


@pytest.mark.parametrize(
    ("system", "changes", "keeps"),
    [
        ("ouroboros-identity", {"adapters": {"rank": 2}, "depth": 3, "prelude": 2, "start": "average"}, True),
        ("ouroboros-identity", {"layout": "retrofit"}, True),
        ("ouroboros-identity", {"gate": {"kind": "learned"}}, False),
        ("ouroboros-identity", {"gate": {"bias": 0.5}}, False),
        ("ouroboros-identity", {"end_norm": "every"}, False),
        ("ouroboros-identity", {"adapters": [{"kind": "sinusoidal"}]}, False),
        ("ouroboros-coda", {"bases": "per-step"}, True),
        ("healed", {"bases": "mean"}, False),
        ("retrofit-identity", {"injection_start": "fresh"}, False),
        ("refiner", {"layout": {"last": 2}}, True),
        ("refiner", {"layout": "ouroboros"}, False),
        ("refiner", {"start": "stepwise"}, False),
    ],
)
def test_a_word_holds_as_long_as_its_ground_is_there(system: str, changes: dict[str, Any], keeps: bool) -> None:
    assert (promised(system, make_plan(system, changes)) is not None) == keeps


@pytest.mark.parametrize(
    ("system", "changes", "message"),
    [
        ("ouroborus", {}, "did you mean 'ouroboros'"),
        ("static", {"start": "first"}, "start is 'first'; allowed: selected, average, stepwise"),
        ("static", {"bases": "median"}, "bases is 'median'; allowed: none, mean"),
        ("static", {"svd": "fast"}, "svd is 'fast'; allowed: exact"),
        ("static", {"injection_start": "state"}, "injection_start is 'state'"),
        ("static", {"dept": 3}, "did you mean 'depth'"),
        ("static", {"depth": "many"}, "depth is 'many'; allowed: a whole number"),
        ("static", {"gate": "mix"}, "gate is 'mix'; allowed: a mapping"),
        ("static", {"prelude": 2, "layout": find_layout("ouroboros", 6)}, "prelude given beside a ready layout"),
        ("static", {"core": [2], "layout": "retrofit"}, "core lists layers beside layout {'kind': 'retrofit'}"),
        ("gate-only", {"adapters": {"rank": 4, "alpha": 2.0}}, "adapters.rank, alpha given, and gate-only has no adapter"),
        ("gate-only", {"svd": "randomised"}, "svd is 'randomised', and bases are 'none'"),
    ],
)
def test_mistakes_are_one_line(system: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        make_plan(system, changes)
    assert message in str(caught.value) and "\n" not in str(caught.value)
