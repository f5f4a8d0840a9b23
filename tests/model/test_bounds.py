"""Sizes and numbers that a config is refused for before anything is built."""

import math
import time

import pytest

import loopwright as lw
from loopwright.model import cost
from loopwright.model.config import MOST, MOST_DEPTH, LoopedConfig, plain_parameters
from loopwright.model.presets import PRESETS

STEPS = {"max_steps": 4}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"core_layers": 10**12}, "core_layers is 1000000000000; allowed: a whole number of at least 0 and at most 1,024"),
        ({"prelude_layers": 1000, "core_layers": 1000}, "are 2,000 together; allowed: at most 1,024"),
        ({"depth": 10**9}, "depth is 1000000000; allowed: a whole number of at least 1 and at most 1,000,000"),
        ({"adapters": [{"kind": "sinusoidal"}] * 200_000}, "adapters has 200,000 entries; allowed: at most 64"),
        ({"num_labels": 10**9}, "num_labels: 1,000,000,000 labels; allowed: at most 65,536"),
        ({"id2label": {"a": 1}}, "id2label is {'a': 1}; allowed: whole numbers with their labels"),
        ({"id2label": {0: 1}}, "id2label is {0: 1}; allowed: whole numbers with their labels"),
        ({"label2id": {"a": 1.5}}, "label2id is {'a': 1.5}; allowed: labels with their whole numbers"),
        ({"label2id": {0: "a"}}, "label2id is {0: 'a'}; allowed: labels with their whole numbers"),
        ({"num_labels": None}, "num_labels is None; allowed: a whole number"),
        ({"problem_type": "x"}, "problem_type is 'x'; allowed: regression, single_label_classification, multi_label_"),
        ({"id2label": "x"}, "id2label is 'x'; allowed: a mapping"),
        ({"hidden_size": 2**20, "core_layers": 999}, "parameters; allowed: at most 8,796,093,022,208"),
        (
            {"adapters": [{"kind": "low-rank", "rank": 2**20}], "max_steps": 2**16, "hidden_size": 2**16},
            r"its sizes make up to 4,503,599,627,370,496 numbers",
        ),
        ({"adapters": [{"kind": "low-rank", "rank": -1}], **STEPS}, r"rank is -1; allowed: a whole number from 1 to 1048576"),
        ({"adapters": [{"kind": "controller", "style": 0}], **STEPS}, "style is 0; allowed: a whole number from 1"),
        ({"adapters": [{"kind": "abba", "gamma": 1e300}], **STEPS}, "gamma is 1e.300; allowed: a number of float32"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": math.nan}}, "rope_theta is nan; allowed: a number above 0"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 0}}, "rope_theta is 0; allowed: a number above 0"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": -1}}, "rope_theta is -1; allowed: a number above 0"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": "a"}}, "rope_theta is 'a'; allowed: a number above 0"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 0.5}}, "rope_theta is 0.5; allowed: a number above 1"),
        ({"rope_parameters": {"rope_type": []}}, r"rope_type is \[\]; allowed: default"),
        ({"rope_parameters": {"rope_type": "linear", "factor": None}}, "missing factor"),
        ({"rope_parameters": {"rope_type": "linear", "factor": "2"}}, "factor is '2'; allowed: a number above 0"),
        ({"norm": {"kind": "rms", "eps": math.inf}}, "norm is .*inf.*; allowed: a kind .* and an eps above 0"),
        ({"norm": {"kind": "rms", "eps": 1e-300}}, "an eps above 0 that float32 can hold"),
        ({"norm": {"kind": "rms", "eps": True}}, "an eps above 0 that float32 can hold"),
        ({"eos_token_id": "a"}, "eos_token_id is 'a'; allowed: a token id"),
        ({"eos_token_id": [1, "a"]}, "eos_token_id is .*; allowed: a token id"),
        ({"eos_token_id": []}, "eos_token_id is .*; allowed: a token id"),
        ({"pad_token_id": -1}, "pad_token_id is -1; allowed: a token id"),
        ({"bos_token_id": 0.5}, "bos_token_id is 0.5; allowed: a token id"),
        ({"bos_token_id": [1]}, "bos_token_id is .*; allowed: a token id"),
        ({"embedding_scale": 0}, "embedding_scale is 0; allowed: a number above 0"),
        ({"embedding_scale": 1e300}, "embedding_scale is 1e.300; allowed: a number above 0 that float32 can hold"),
        ({"initializer_range": -1}, "initializer_range is -1; allowed: a number from 0"),
        ({"dropout": 1}, "dropout is 1; allowed: at least 0, below 1"),
        ({"state": {"kind": "learned", "std": -1}}, r"state \(learned\): std is -1; allowed: from 0, a number of float32"),
        ({"state": {"kind": "noise", "seed": 2**64}}, "seed is 18446744073709551616; allowed: a number of at most 64 bits"),
        ({"halting": {"kind": "exit", "threshold": 0}}, r"halting \(exit\): threshold is 0; allowed: above 0, a number of float32"),
        ({"halting": {"kind": "act", "eps": 2}}, r"halting \(act\): eps is 2; allowed: from 0, at most 1"),
        ({"gate": {"kind": "mix", "weight": 0}}, r"gate \(mix\): weight is 0; allowed: above 0, at most 1"),
        ({"dtype": "rotary"}, "dtype is 'rotary'; allowed: float32"),
        ({"torch_dtype": 5}, "torch_dtype is 5; allowed: float32"),
        ({"architectures": 5}, "architectures is 5; allowed: a list or nothing"),
        ({"per_layer_config": {"0": {}}}, "per_layer_config is .*; allowed: nothing"),
        ({"is_encoder_decoder": True}, "is_encoder_decoder is True; allowed: nothing"),
        ({"problem_type": []}, r"problem_type is \[\]; allowed: text or nothing"),
    ],
)
def test_out_of_bounds_is_one_line_at_once(fields, message):
    begin = time.perf_counter()
    with pytest.raises(ValueError, match=f"^model config: .*{message}") as caught:
        LoopedConfig(**fields)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 2000
    assert time.perf_counter() - begin < 5


def test_a_field_of_transformers_is_not_set_to_another_form_later():
    config = LoopedConfig()
    with pytest.raises(ValueError, match=r"^model config: id2label is 'x'; allowed: a mapping of names to values or nothing"):
        config.id2label = "x"
    config.problem_type = "regression"
    assert config.problem_type == "regression"


def test_bands_that_leave_nothing_between_them_are_refused():
    llama3 = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 4.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    with pytest.raises(ValueError, match=r"low_freq_factor is 4.0 and high_freq_factor 4.0; the first must be below the second"):
        LoopedConfig(rope_parameters=llama3)


def test_depth_has_a_bound():
    config = lw.preset("huginn-tiny")
    assert config.check_depth(MOST_DEPTH) == MOST_DEPTH
    with pytest.raises(ValueError, match=r"^depth: 100000000; allowed: a whole number of at least 1, at most 1,000,000$"):
        config.check_depth(100_000_000)


@pytest.mark.parametrize("name", [name for name in PRESETS if not name.startswith(("asura", "relaxed", "ouroboros"))])
def test_the_count_is_from_below_and_near(name):
    config = lw.preset(f"{name}-tiny")
    total = cost.parameters(config)["total"].unique
    assert 0.75 * total < plain_parameters(config) <= total


def test_numbers():
    assert set(MOST) >= {"vocab_size", "hidden_size", "core_layers", "depth", "max_steps"}
