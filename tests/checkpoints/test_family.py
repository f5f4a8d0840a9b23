"""The two-way table itself."""

from __future__ import annotations

import pytest
import torch

import loopwright as lw
from loopwright.checkpoints.families import FAMILIES
from loopwright.checkpoints.families.family import Rule, listed, name_table
from loopwright.checkpoints.load import empty_model, parameter_shapes


def test_a_rule_reads_the_same_from_either_side() -> None:
    rule = Rule("fused", ("q", "k", "v"), (7, 3), (4, 2, 1))
    theirs = torch.randn(7, 3)
    ours = rule.split(theirs)
    assert {name: tuple(t.shape) for name, t in ours.items()} == {"q": (4, 3), "k": (2, 3), "v": (1, 3)}
    assert torch.equal(ours["k"], theirs[4:6])
    assert torch.equal(rule.join(ours), theirs)


def test_a_rule_can_change_the_shape() -> None:
    rule = Rule("qk_bias", ("q", "k"), (2, 1, 3, 4), (12, 12))
    theirs = torch.randn(2, 1, 3, 4)
    ours = {name: piece.reshape(12) for name, piece in rule.split(theirs).items()}
    assert torch.equal(ours["k"], theirs[1].flatten())
    assert torch.equal(rule.join(ours), theirs)


def test_names_of_stacks() -> None:
    table = name_table({"prelude": "p", "core": "c"}, {"top": "embed_tokens.weight"}, {"w": "a.weight", "f": ("q", "k")})
    config = lw.LoopedConfig(prelude_layers=1, core_layers=2)
    names = table(config, [])
    assert names["c.1.w"] == "core.1.a.weight" and names["p.0.f"] == ("prelude.0.q", "prelude.0.k")
    assert len(names) == 1 + 3 * 2


def test_parameters_without_a_tensor_are_listed() -> None:
    model = empty_model(lw.preset("asura-tiny"))
    with pytest.raises(ValueError, match=r"family llama: it has no tensor for .*core.0.self_attn.q_proj.weight.* more"):
        FAMILIES["llama"].rules(model.config, parameter_shapes(model))


@pytest.mark.parametrize("name", ["ouro-1.4b-tiny", "huginn-tiny", "retrofit-llama-1b-tiny", "retrofit-olmo2-1b-tiny"])
def test_rules_name_each_parameter_once(name: str) -> None:
    model = empty_model(lw.preset(name))
    family = FAMILIES[{"ouro-1.4b-tiny": "ouro", "huginn-tiny": "huginn"}.get(name, name.removesuffix("-1b-tiny"))]
    rules = family.rules(model.config, parameter_shapes(model))
    named = [ours for rule in rules for ours in rule.ours]
    assert sorted(named) == sorted(parameter_shapes(model)) and len({rule.theirs for rule in rules}) == len(rules)


def test_long_lists_are_cut() -> None:
    assert listed(["a", "b"]) == "a, b"
    assert listed([str(i) for i in range(23)]).endswith("19 and 3 more")
