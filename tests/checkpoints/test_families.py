"""Families: fields of a config.json that are read once, and tensors that are renamed, joined and split."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import loopwright as lw
from loopwright.checkpoints.families import FAMILIES
from loopwright.checkpoints.families.family import Rule, listed, name_table
from loopwright.checkpoints.families.fields import Fields, read_rope, read_token_ids, read_window, write_rope, write_window
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


def fields(**values: Any) -> Fields:
    return Fields("here", values)


def test_fields_are_taken_by_kind() -> None:
    found = fields(width=4, eps=1, tied=False, empty=None, nested={"a": 1, "b": None})
    assert found.whole("width") == 4 and found.whole("empty", 7) == 7 and found.whole("absent", 8) == 8
    assert found.number("eps") == 1.0 and isinstance(found.number("eps"), float)
    assert found.flag("tied", True) is False and found.flag("absent", True) is True
    assert found.section("nested") == {"a": 1} and found.section("absent") == {}
    found.close()


@pytest.mark.parametrize("value", [0, -1, 2.0, "4", True])
def test_a_size_is_a_whole_number(value: Any) -> None:
    with pytest.raises(ValueError, match=r"here: width is .*; allowed: a whole number of at least 1"):
        fields(width=value).whole("width")


def test_what_a_family_needs_must_be_there() -> None:
    for values in ({}, {"eps": None}):
        with pytest.raises(ValueError, match="here: eps is missing"):
            Fields("here", values).number("eps")
    with pytest.raises(ValueError, match="eps is 'x'; allowed: a number above 0"):
        fields(eps="x").number("eps")
    with pytest.raises(ValueError, match="tied is 1; allowed: true, false"):
        fields(tied=1).flag("tied", False)


def test_unknown_fields_are_refused_by_name_and_value() -> None:
    with pytest.raises(ValueError, match=r"here: unknown field logit_scale \(0.5\), odd \('x'\); .* delete it from config.json"):
        fields(logit_scale=0.5, odd="x", architectures=["A"]).close()


def test_a_field_that_is_null_says_nothing() -> None:
    fields(logit_scale=None, attention_bias=None, architectures=["A"]).close()


def test_what_transformers_writes_is_admitted() -> None:
    fields(
        architectures=["A"], auto_map={}, torch_dtype="float32", transformers_version="4.0", use_cache=True, initializer_range=0.1,
        pretraining_tp=1, _name_or_path="x", temperature=0.7, num_beams=1, id2label={}, is_decoder=False, pruned_heads={},
        quantization_config=None,
    ).close()  # fmt: skip


def test_generic_fields_that_change_the_model_are_refused() -> None:
    for name, value in {"pretraining_tp": 2, "partial_rotary_factor": 0.5, "is_encoder_decoder": True}.items():
        with pytest.raises(ValueError, match=f"{name} is {value}, which is not supported"):
            Fields("here", {name: value}).close()


def test_demand() -> None:
    fields(act="silu").demand("act", "silu")
    fields().demand("act", "silu")
    with pytest.raises(ValueError, match="act is 'gelu', which is not supported; allowed: 'silu'"):
        fields(act="gelu").demand("act", "silu")
    with pytest.raises(ValueError, match="flag is 1, which"):
        fields(flag=1).demand("flag", True)


def test_quantised_weights_are_refused_in_words() -> None:
    with pytest.raises(ValueError, match=r"weights are quantised \(gptq\); allowed: plain float weights"):
        fields(quantization_config={"quant_method": "gptq", "bits": 4})
    with pytest.raises(ValueError, match=r"MLX quantised the weights; allowed: plain float weights, so take the folder that"):
        fields(quantization={"group_size": 64, "bits": 4})


def test_token_ids() -> None:
    assert read_token_ids(fields(bos_token_id=1, eos_token_id=[2, 3], pad_token_id=-1)) == {
        "bos_token_id": 1,
        "eos_token_id": [2, 3],
        "pad_token_id": None,
    }
    with pytest.raises(ValueError, match="eos_token_id is"):
        read_token_ids(fields(eos_token_id=["a"]))


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, {"rope_type": "default", "rope_theta": 10.0}),
        ({"rope_theta": 5}, {"rope_type": "default", "rope_theta": 5.0}),
        ({"rope_theta": 5, "rope_scaling": None}, {"rope_type": "default", "rope_theta": 5.0}),
        (
            {"rope_theta": 5, "rope_scaling": {"type": "linear", "factor": 2}},
            {"rope_type": "linear", "rope_theta": 5.0, "factor": 2},
        ),
        (
            {"rope_parameters": {"rope_type": "yarn", "rope_theta": 7.0, "factor": 2.0, "attention_factor": None}},
            {"rope_type": "yarn", "rope_theta": 7.0, "factor": 2.0, "original_max_position_embeddings": 64},
        ),
        (
            {"rope_theta": 5, "rope_scaling": {"rope_type": "llama3", "original_max_position_embeddings": 9, **LLAMA3}},
            {"rope_type": "llama3", "rope_theta": 5.0, "original_max_position_embeddings": 9, **LLAMA3},
        ),
    ],
)
def test_both_layouts_of_rope(values: dict[str, Any], expected: dict[str, Any]) -> None:
    found = Fields("here", values)
    assert read_rope(found, positions=64, theta=10.0) == expected
    found.close()
    again = Fields("here", write_rope(expected))
    assert read_rope(again, positions=64) == expected


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "rope_theta is missing"),
        ({"rope_theta": 5, "rope_scaling": {"type": "dynamic", "factor": 2}}, "rope_type is 'dynamic', which is not supported"),
        ({"rope_theta": 5, "rope_scaling": {"type": "linear"}}, "'linear': missing factor; allowed: factor"),
        ({"rope_theta": 5, "rope_scaling": {"type": "linear", "factor": 2, "odd": 1}}, "unknown odd"),
        ({"rope_theta": 5, "rope_scaling": {"type": "linear", "factor": "x"}}, "rope factor is 'x'"),
        ({"rope_theta": 5, "rope_scaling": [1]}, r"rope_scaling is \[1\]; allowed: an object or null"),
        ({"rope_theta": 5, "rope_parameters": {"rope_theta": 6}}, "rope_theta is 5 at the top and 6 inside"),
        ({"rope_scaling": {"rope_theta": 5}, "rope_parameters": {"rope_theta": 6}}, "contradict each other"),
        ({"rope_theta": 5, "rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor is not 1"),
        ({"rope_parameters": {"rope_theta": 5, "full_attention": {}}}, "unknown full_attention"),
        ({"rope_theta": 0}, "rope_theta is 0; allowed: a number above 0"),
    ],
)
def test_rope_is_refused_by_name_and_value(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_rope(Fields("here", values), positions=64)


@pytest.mark.parametrize("window", [None, 16])
def test_window_round_trip(window: int | None) -> None:
    assert read_window(Fields("here", write_window(window, layers=3)), layers=3) == window


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, None),
        ({"sliding_window": 32, "max_window_layers": 0}, None),  # not in use
        ({"use_sliding_window": True, "sliding_window": 32, "max_window_layers": 0}, 32),
        ({"use_sliding_window": True, "sliding_window": 32}, None),  # layers below 28 see everything
        ({"use_sliding_window": True, "sliding_window": 32, "layer_types": ["sliding_attention"] * 2}, 32),
        ({"use_sliding_window": True, "sliding_window": None, "max_window_layers": 0}, None),
    ],
)
def test_windows(values: dict[str, Any], expected: int | None) -> None:
    assert read_window(Fields("here", values), layers=2) == expected


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"layer_types": ["full_attention", "sliding_attention"]}, "different attention"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"layer_types": ["chunked_attention"] * 2}, "'chunked_attention' with use_sliding_window false"),
        ({"layer_types": ["sliding_attention"] * 2}, "'sliding_attention' with use_sliding_window false"),
    ],
)
def test_windows_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_window(Fields("here", values), layers=2)
