"""The table of families and the choice among them."""

from __future__ import annotations

import pytest

from loopwright.checkpoints.families import FAMILIES, family_of


@pytest.mark.parametrize(
    ("kind", "names", "expected"),
    [
        ("llama", ["model.norm.weight"], "llama"),
        ("loopwright", ["norm.weight"], "loopwright"),
        ("huginn_raven", ["transformer.prelude.0.norm_3.weight"], "huginn"),
        ("huginn_raven", ["transformer.prelude.0.attn.q_norm.weight"], "retrofit-olmo2"),
        ("huginn_raven", ["transformer.prelude.0.norm_2.weight"], "retrofit-llama"),
    ],
)
def test_family_of(kind: str, names: list[str], expected: str) -> None:
    assert family_of({"model_type": kind}, names, "here").name == expected


def test_other_models_are_refused_with_what_is_allowed() -> None:
    with pytest.raises(ValueError, match=r"here: model_type is 'qwen4', which no family has; did you mean 'qwen[23]'\? allowed: "):
        family_of({"model_type": "qwen4"}, [], "here")
    with pytest.raises(ValueError, match="model_type is None"):
        family_of({}, [], "here")


def test_each_family_is_known_by_its_own_name() -> None:
    assert all(name == family.name for name, family in FAMILIES.items())
    assert len(FAMILIES) == 10
