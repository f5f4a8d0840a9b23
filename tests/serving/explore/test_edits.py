"""Edits of the page = the package's own edits; what would change nothing, or is no edit, is refused in one line."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import loopwright as lw
from loopwright.serving.explore.edits import FIELDS, build_edit, read_edit
from loopwright.serving.explore.passes import unrolled
from loopwright.serving.schema import Refusal
from tests.generation.mix import make

IDS, OTHER = [2, 4, 8, 3, 11], [5, 6, 7, 9, 10]
DEPTH = 3
MODEL = make("huginn-tiny").float()


def states(tap: Any) -> list[Tensor]:
    return list(unrolled(MODEL, IDS, DEPTH, edit=tap).states)


def built(spec: dict[str, Any], other: list[int] = OTHER) -> list[Tensor]:
    plain = unrolled(MODEL, IDS, DEPTH)
    return states(build_edit(read_edit("edit", spec), MODEL, IDS, plain, lambda text: other))


def same(one: list[Tensor], two: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


def test_edits_are_the_packages_own() -> None:
    plain = states(None)
    seen = {("core", t, 2): s for t, s in enumerate(plain)}
    cases: list[tuple[dict[str, Any], Any]] = [
        ({"kind": "zero", "point": "mlp", "stack": "core", "layer": 1}, lw.zero("mlp", lw.at(stack="core", layer=1))),
        (
            {"kind": "zero", "point": "attention", "stack": "core", "layer": 0, "step": 2},
            lw.zero("attention", lw.at(stack="core", layer=0, step=2)),
        ),
        ({"kind": "noise", "size": 0.5, "step": 1, "seed": 3}, lw.noise("state", lw.at(stack="core", step=1), size=0.5, seed=3)),
        ({"kind": "swap", "first": 0, "second": 2}, lw.swap("state", seen, 0, 2)),
    ]
    for spec, tap in cases:
        assert same(built(spec), states(tap)) and not same(built(spec), plain), spec


def test_a_patch_is_the_state_of_the_other_prompt() -> None:
    other = list(unrolled(MODEL, OTHER, DEPTH).states)
    spec = {"kind": "patch", "step": 1, "prompt": "x"}
    assert torch.equal(built(spec)[1], other[1])
    alone = built({**spec, "token": 4})
    assert torch.equal(alone[1][:, 4], other[1][:, 4]) and torch.equal(alone[1][:, :4], states(None)[1][:, :4])
    short = built(spec, other=OTHER[:2])  # aligned at the end: the tokens before keep their own
    assert torch.equal(short[1][:, 3:], unrolled(MODEL, OTHER[:2], 2).states[1]) and torch.equal(
        short[1][:, :3], states(None)[1][:, :3]
    )
    longer = built(spec, other=[3, *OTHER])
    assert torch.equal(longer[1], unrolled(MODEL, [3, *OTHER], 2).states[1][:, 1:])


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("zero", "edit: 'zero'; allowed: a mapping"),
        ({"kind": "zeor"}, "unknown kind 'zeor'; did you mean 'zero'"),
        ({"kind": ["zero"]}, "unknown kind"),
        ({"kind": "zero"}, "point is missing"),
        ({"kind": "zero", "point": "logits"}, "edit.point: 'logits'; allowed: mlp, attention"),
        ({"kind": "zero", "point": "mlp", "size": 1}, "unknown 'size'"),
        ({"kind": "zero", "point": "mlp", "stack": "core", "layer": 9}, "would change nothing"),
        ({"kind": "zero", "point": "mlp", "layer": -1}, "edit.layer: -1"),
        ({"kind": "patch", "step": 3, "prompt": "x"}, "edit.step must be below 3"),
        ({"kind": "patch", "step": 0, "prompt": "x", "token": 5}, "edit.token must be below 5"),
        ({"kind": "swap", "first": 1, "second": 1}, "two different steps below 3"),
        ({"kind": "noise", "size": float("inf")}, "edit.size"),
    ],
)
def test_what_is_no_edit(spec: Any, message: str) -> None:
    with pytest.raises((ValueError, Refusal), match=message):
        built(spec)


def test_a_patched_token_needs_a_partner() -> None:
    with pytest.raises(ValueError, match=r"edit\.token: 1 has no partner; the other prompt has 2 tokens"):
        built({"kind": "patch", "step": 0, "prompt": "x", "token": 1}, other=OTHER[:2])


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**6) | st.floats(allow_nan=True) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=2),
    max_leaves=3,
)
NAMES = sorted({name for fields in FIELDS.values() for name in fields})


@settings(max_examples=30)
@given(st.fixed_dictionaries({"kind": st.sampled_from([*FIELDS, "x"])}, optional=dict.fromkeys(NAMES, JSON)) | JSON)
def test_any_json_is_an_edit_or_is_refused_in_one_line(value: Any) -> None:
    try:
        edit = read_edit("edit", value)
    except (ValueError, Refusal) as error:
        lines = str(error).splitlines()
    else:
        lines = [edit["kind"]]
        assert edit["kind"] in FIELDS
    assert len(lines) == 1
