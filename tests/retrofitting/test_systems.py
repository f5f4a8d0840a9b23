"""Which layers stand where, and named retrofits: what changes reach, and when an equality at the start still applies."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwright.model.parts.state import huginn_std
from loopwright.retrofitting.layout import LAYOUTS, Layout, find_layout, stepwise
from loopwright.retrofitting.systems import make_plan, promised, systems

PUBLISHED: list[tuple[str | dict[str, Any], int, tuple[range | list[int], ...]]] = [
    ("ouroboros", 36, (range(8), [18], range(28, 36))),
    ("ouroboros", 24, (range(5), [12], range(19, 24))),
    ({"kind": "ouroboros", "prelude": 2, "core": 4, "coda": 2}, 8, (range(2), [4], range(6, 8))),
    ("retrofit", 22, (range(4), range(10, 18), range(18, 22))),
    ("retrofit", 16, (range(4), range(6, 12), range(12, 16))),
    ({"kind": "retrofit", "prelude": 2, "core": 4, "coda": 2}, 16, (range(2), range(10, 14), range(14, 16))),
    ("ouro", 24, ([], range(24), [])),
    ("relaxed", 22, ([], range(11), [])),
    ("relaxed", 7, ([], [0], [])),
    ({"kind": "relaxed", "tied": 10}, 30, ([], range(10), [])),
    ("refiner", 24, (range(23), [23], [])),
    ({"kind": "refiner", "last": 3}, 24, (range(21), range(21, 24), [])),
    ("again", 24, (range(24), [23], [])),
    ({"kind": "again", "last": 3}, 24, (range(24), range(21, 24), [])),
    ("repeat", 24, (range(8), range(8, 16), range(16, 24))),
    ({"kind": "repeat", "first": 3, "last": 3}, 5, (range(3), [3], [4])),
    ("upcycle", 24, ([], [*range(24), *range(24)], [])),
    ({"kind": "lists", "core": [10, 11, 12], "prelude": 4, "coda": 4}, 20, (range(4), range(10, 13), range(16, 20))),
    ({"kind": "lists", "core": [2], "prelude": [0], "coda": [5, 7]}, 8, ([0], [2], [5, 7])),
    ({"kind": "lists", "core": [2, 3]}, 8, (range(2), [2, 3], range(4, 8))),
]


@pytest.mark.parametrize(("spec", "layers", "stacks"), PUBLISHED, ids=str)
def test_published_layouts(spec: str | dict[str, Any], layers: int, stacks: tuple[list[int], ...]) -> None:
    found = find_layout(spec, layers)
    assert [list(found.prelude), list(found.core), list(found.coda)] == [list(stack) for stack in stacks]
    assert find_layout(found, layers) == found, "a ready layout is taken as it is"
    assert sorted({*found.kept, *found.dropped(layers)}) == list(range(layers))
    assert not set(found.kept) & set(found.dropped(layers))


def test_every_rule_is_tried() -> None:
    assert {spec if isinstance(spec, str) else spec["kind"] for spec, _, _ in PUBLISHED} == set(LAYOUTS)


def test_what_the_core_stands_for() -> None:
    assert find_layout("ouroboros", 36).groups == (tuple(range(8, 28)),), "all that lies between, the layer itself among them"
    assert find_layout("retrofit", 16).groups == ((4, 10), (5, 11), (6,), (7,), (8,), (9,)), "what lies between, in turn"
    assert find_layout({"kind": "lists", "core": [3, 6], "prelude": 2, "coda": 1}, 10).groups == ((2, 4, 6, 8), (3, 5, 7))
    assert find_layout({"kind": "relaxed", "tied": 2}, 6).groups == ((0, 2, 4), (1, 3, 5)), "one layer a step"
    assert find_layout("refiner", 4).groups == ((3,),)
    assert find_layout("again", 4).groups == ((3,),)
    assert find_layout("upcycle", 2).groups == ((0,), (1,), (0,), (1,))


def test_depths() -> None:
    assert find_layout({"kind": "relaxed", "tied": 5}, 30).depth == 6, "as many steps as bring all layers back"
    assert find_layout("ouroboros", 36).depth == 8


@given(layers=st.integers(3, 60), rule=st.sampled_from(sorted(set(LAYOUTS) - {"lists"})))
def test_rules_fit_any_number_of_layers(layers: int, rule: str) -> None:
    found = find_layout(rule, layers)
    members = [layer for group in found.groups for layer in group]
    assert len(found.groups) == len(found.core) and set(members) <= set(range(layers))
    assert set(found.dropped(layers)) <= set(members), "every dropped layer has one that stands for it"
    assert list(found.prelude) == list(range(len(found.prelude)))


@given(layers=st.integers(1, 40), tied=st.integers(1, 40))
def test_stepwise_picks_first_and_last(layers: int, tied: int) -> None:
    if layers % tied or tied == layers:
        return
    picked = stepwise(find_layout({"kind": "relaxed", "tied": tied}, layers))
    assert len(picked) == tied and sorted(set(picked)) == list(picked)
    assert picked[0] == 0 and (tied == 1 or picked[-1] == layers - 1)


def test_stepwise_is_even() -> None:
    assert stepwise(find_layout({"kind": "relaxed", "tied": 3}, 9)) == (0, 4, 8)
    assert stepwise(find_layout("ouroboros", 9)) == (2,), "the first of those that one layer stands for"


READY = Layout((0,), (1,), (2,), ((1,),), 2)
WRONG: list[tuple[Any, str]] = [
    ({"kind": "lists", "core": []}, "the core has no layer"),
    ({"kind": "lists", "core": [9]}, "core holds layer 9; allowed: 0 to 7"),
    ({"kind": "lists", "core": [-1]}, "core holds layer -1"),
    ({"kind": "lists", "core": [4], "prelude": [0, 8]}, "prelude holds layer 8"),
    ({"kind": "lists", "core": [4, 3]}, "core is [4, 3]; allowed: layers in ascending order"),
    ({"kind": "lists", "core": [4], "prelude": [1, 1]}, "prelude is [1, 1]"),
    ({"kind": "lists", "core": [2, 2]}, "core is [2, 2]; allowed: layers in ascending order, each once"),
    ({"kind": "lists", "core": [1, 2, 1, 2]}, "core is [1, 2, 1, 2]; allowed: layers in ascending order, each once"),
    ({"kind": "lists", "core": [*range(8), *range(8)]}, "allowed: layers in ascending order, each once"),
    (Layout((0,), (1, 2, 1, 2), (3,), ((1,), (2,), (1,), (2,)), 2), "core is [1, 2, 1, 2]; allowed: layers in ascending order"),
    ({"kind": "lists", "core": [4], "prelude": 5}, "layer 4 is in the prelude and in the core"),
    ({"kind": "lists", "core": [4], "coda": 4}, "layer 4 is in the core and in the coda"),
    ({"kind": "lists", "core": [3], "prelude": [5], "coda": [6]}, "the prelude ends with layer 5, the core begins with 3"),
    ({"kind": "lists", "core": [6], "prelude": 1, "coda": [4]}, "the core ends with layer 6, the coda begins with 4"),
    ({"kind": "lists", "core": [True]}, "core holds True"),
    ({"kind": "lists", "core": ["3"]}, "core holds '3'"),
    ({"kind": "lists", "core": [4], "prelude": -1}, "-1 layers of the prelude"),
    ({"kind": "lists", "core": [4], "coda": 9}, "the last 9 layers of 8"),
    ({"kind": "lists"}, "missing core"),
    ({"kind": "ouroboros", "prelude": 6, "coda": 6}, "layer 4 is in the prelude and in the core"),
    ({"kind": "ouroboros", "core": 0}, "layer 0 is in the prelude and in the core"),
    ({"kind": "retrofit", "core": 7}, "2 + 7 + 2 layers of 8"),
    ({"kind": "retrofit", "core": 0}, "the core has no layer"),
    ({"kind": "relaxed", "tied": 3}, "3 tied layers for the 8 of the source; allowed: 1, 2, 4"),
    ({"kind": "refiner", "last": 9}, "the last 9 layers of 8; allowed: 1 to 8"),
    ({"kind": "again", "last": 9}, "layout (again): the last 9 layers of 8; allowed: 1 to 8"),
    ({"kind": "refiner", "last": 0}, "the last 0 layers of 8; allowed: 1 to 8"),
    ({"kind": "repeat", "first": 5, "last": 4}, "the core has no layer"),
    ({"kind": "upcycle", "times": 0}, "times must be a whole number >= 1"),
    ({"kind": "ouroboros", "prelud": 2}, "did you mean 'prelude'"),
    ("ouroborus", "did you mean 'ouroboros'"),
    ({"prelude": 2}, "not a mapping with a 'kind'"),
    (Layout((0,), (1,), (2,), (), 2), "0 groups for 1 layers of the core"),
    (Layout((0,), (1,), (2,), ((),), 2), "1 groups for 1 layers of the core"),
    (Layout((0,), (1,), (2,), ((8,),), 2), "groups name layers that are not there"),
    (Layout((0,), (1,), (2,), ((1,),), 0), "depth must be a whole number >= 1"),
]


@pytest.mark.parametrize(("spec", "message"), WRONG, ids=str)
def test_what_cannot_be_is_one_line(spec: Any, message: str) -> None:
    assert find_layout(READY, 8) == READY
    with pytest.raises(ValueError) as caught:
        find_layout(spec, 8)
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert str(caught.value).startswith("layout")


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
