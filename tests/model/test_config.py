"""LoopedConfig: round trips, what the defaults mean, and one clear message for every mistake, several at once too."""

import json
import math
import time

import pytest
from transformers import AutoConfig

import loopwright as lw
from loopwright.model import cost
from loopwright.model.config import CHOICES, MOST, MOST_DEPTH, PARTS, ROPE_TYPES, LoopedConfig, plain_parameters
from loopwright.model.parts.adapters import ADAPTERS
from loopwright.model.parts.init import INITS
from loopwright.model.presets import PRESETS
from loopwright.schema import CUSTOM_PART_HINT, options_of

EPS = " and an eps above 0 that float32 can hold"
EVERY = [*PRESETS, *(f"{name}-tiny" for name in PRESETS)]
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 512}


def message_of(**fields: object) -> str:
    with pytest.raises(ValueError) as caught:
        LoopedConfig(**fields)
    text = str(caught.value)
    assert text.startswith("model config: ") and "\n" not in text
    return text.removeprefix("model config: ")


@pytest.mark.parametrize("name", EVERY)
def test_round_trips(name, tmp_path):
    config = lw.preset(name)
    assert LoopedConfig(**config.to_dict()).to_dict() == config.to_dict()
    config.save_pretrained(tmp_path)
    for again in (
        LoopedConfig(**json.loads(config.to_json_string(use_diff=False))),
        LoopedConfig(**json.loads(config.to_json_string(use_diff=True))),
        LoopedConfig.from_pretrained(tmp_path),
        AutoConfig.from_pretrained(tmp_path),
    ):
        assert isinstance(again, LoopedConfig)
        for field in LoopedConfig.__annotations__:
            assert getattr(again, field) == getattr(config, field), field


def test_what_the_defaults_mean():
    config = LoopedConfig(num_attention_heads=8)
    assert config.num_key_value_heads == 8 and config.head_dim == 8
    assert config.norm == config.final_norm == {"kind": "rms", "eps": 1e-6}
    assert config.norm_placement == ["input"] and config.attention_bias == [] and config.adapters == []
    assert config.state == {"kind": "input"}
    assert config.injection == config.gate == config.halting == {"kind": "none"}
    assert config.rope_parameters == {"rope_type": "default", "rope_theta": 10_000.0}


def test_the_callers_data_is_not_shared():
    adapters, state = [{"kind": "sinusoidal"}], {"kind": "noise"}
    config = LoopedConfig(adapters=adapters, state=state)
    adapters[0]["kind"] = state["kind"] = "broken"
    assert config.adapters == [{"kind": "sinusoidal"}] and config.state == {"kind": "noise"}


def test_num_hidden_layers_counts_cache_slots():
    config = LoopedConfig(prelude_layers=2, core_layers=3, coda_layers=1, depth=5)
    assert config.num_hidden_layers == 2 + 1 + 3 * 5
    assert LoopedConfig(prelude_layers=4, core_layers=0).num_hidden_layers == 4


def test_final_norm_follows_the_norm_unless_it_is_given():
    layer = {"kind": "layer", "eps": 1e-5}
    assert LoopedConfig(norm=layer).final_norm == layer
    assert LoopedConfig(norm=layer, final_norm={"kind": "none"}).final_norm == {"kind": "none"}


WHOLE = ["vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim"]
WHOLE += ["max_position_embeddings", "depth", "max_steps", "sliding_window"]


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("value", [0, -3, 2.5, "4", True])
def test_whole_numbers(name, value):
    assert message_of(**{name: value}) == f"{name} is {value!r}; allowed: a whole number of at least 1"


@pytest.mark.parametrize("name", ["prelude_layers", "core_layers", "coda_layers"])
def test_layers(name):
    assert message_of(**{name: -1}) == f"{name} is -1; allowed: a whole number of at least 0"
    assert message_of(**{name: None}) == f"{name} is None; allowed: a whole number of at least 0"


@pytest.mark.parametrize("name", CHOICES)
def test_choices(name):
    text = message_of(**{name: "wrong"})
    assert text.startswith(f"{name} is 'wrong'; allowed: {', '.join(CHOICES[name])}")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"core_layers": 0}, "prelude_layers, core_layers and coda_layers are 0; allowed: at least one layer in all"),
        ({"num_key_value_heads": 3}, "heads and key/value heads are (4, 3); the first must be a multiple of the second"),
        ({"hidden_size": 2}, r"head_dim is 0 (by default hidden_size / num_attention_heads, 2 / 4); allowed: at least 1"),
        ({"head_dim": 7}, "head_dim (7) must be even for rotary positions"),
        ({"dropout": 1.0}, "dropout is 1.0; allowed: at least 0, below 1"),
        ({"dropout": "no"}, "dropout is 'no'; allowed: a number from 0 that float32 can hold"),
        (
            {"initializer_range": 2**31},
            "initializer_range is 2147483648; allowed: a number from 0 to 10,000",
        ),
        ({"embedding_scale": float("nan")}, "embedding_scale is nan; allowed: a number above 0 that float32 can hold"),
        ({"attention_bias": ["q", "x"]}, "attention_bias is ['q', 'x']; allowed: each of q, k, v, o at most once"),
        ({"attention_bias": ["q", "q"]}, "attention_bias is ['q', 'q']; allowed: each of q, k, v, o at most once"),
        ({"attention_bias": "q"}, "attention_bias is 'q'; allowed: a list"),
        ({"norm_placement": "input"}, "norm_placement is 'input'; allowed: a list"),
        ({"norm_placement": ["before"]}, "norm_placement is ['before']; allowed: each of input, output, residual at most once"),
        ({"norm": "rms"}, "norm is 'rms'; allowed: a mapping of names to values"),
        ({"state": "noise"}, "state is 'noise'; allowed: a mapping of names to values"),
        ({"adapters": {"kind": "abba"}}, "adapters is {'kind': 'abba'}; allowed: a list"),
        ({"adapters": ["abba"]}, "adapters[0] is 'abba'; allowed: a mapping with a 'kind'"),
        (
            {"final_norm": {"kind": "rsm", "eps": 1.0}},
            "final_norm is {'kind': 'rsm', 'eps': 1.0}; allowed: a kind (rms, layer, simple, none)" + EPS + f"; {CUSTOM_PART_HINT}",
        ),
        (
            {"final_norm": {"kind": "rms", "eps": 0}},
            "final_norm is {'kind': 'rms', 'eps': 0}; allowed: a kind (rms, layer, simple, none)" + EPS,
        ),
        (
            {"final_norm": {"kind": "rms", "eps": "tiny"}},
            "final_norm is {'kind': 'rms', 'eps': 'tiny'}; allowed: a kind (rms, layer, simple, none)" + EPS,
        ),
        (
            {"end_norm": "last", "final_norm": {"kind": "none"}},
            "end_norm 'last' applies the final norm after the loop; final_norm must not be none",
        ),
        ({"rope_parameters": {"rope_type": "ntk"}}, "rope_type is 'ntk'; allowed: default, linear, llama3, yarn"),
        ({"rope_parameters": {"rope_type": "linear"}}, "rope_parameters of type 'linear': missing factor"),
        (
            {"rope_parameters": {"rope_type": "default", "rope_teta": 1.0}},
            "rope_parameters of type 'default': unknown 'rope_teta'; did you mean 'rope_theta'? allowed: rope_theta, rope_type",
        ),
        (
            {"gate": {"kind": "mxi"}},
            f"gate: unknown kind 'mxi'; did you mean 'mix'? allowed: grown, learned, mix, none; {CUSTOM_PART_HINT}",
        ),
        ({"gate": {"weight": 0.5}}, "gate: {'weight': 0.5} is not a mapping with a 'kind'; allowed: grown, learned, mix, none"),
        (
            {"gate": {"kind": "mix", "wieght": 0.5}},
            "gate (mix): unknown 'wieght'; did you mean 'weight'? allowed: weight",
        ),
        (
            {"adapters": [{"kind": "sinusoidal"}, {"kind": "low_rank"}]},
            "adapters[1]: unknown kind 'low_rank'; did you mean 'low-rank'? allowed: abba, basis-controller, controller, diagonal, "
            f"hira, low-rank, sinusoidal; {CUSTOM_PART_HINT}",
        ),
        ({"end_norm": "per-step"}, "max_steps is missing; needed by parts with one row of parameters per step: end_norm"),
        ({"attn_implementation": "owner/name"}, "attn_implementation is 'owner/name'; allowed: eager, sdpa"),
        ({"experts_implementation": "sonicmoe"}, "experts_implementation is 'sonicmoe'; allowed: eager, grouped_mm, batched_mm"),
        ({"max_steps": 4}, "max_steps is 4, but nothing here holds one row per step"),
        ({"end_norm": "per-step", "max_steps": 2}, "depth (4) is beyond max_steps (2)"),
        (
            {"core_layers": 0, "prelude_layers": 1, "gate": {"kind": "mix"}},
            "a model without a core (core_layers 0) has no steps, and gate is 'mix', not 'none'",
        ),
    ],
)
def test_one_mistake_one_message(fields, message):
    assert message_of(**fields) == message


def test_several_mistakes_are_listed_together():
    text = message_of(mlp="silu", dropout=2.0, num_key_value_heads=3, state={"kind": "nois"}, gate={"kind": "mix", "w": 1})
    for part in ("mlp is 'silu'", "dropout is 2.0", "(4, 3)", "unknown kind 'nois'", "gate (mix): unknown 'w'"):
        assert part in text
    assert message_of(depth=0, core_layers=-1, norm=3).count("; allowed: ") == 3


def test_unknown_fields_are_refused_with_a_suggestion():
    text = message_of(hiden_size=3, num_steps=4)
    assert text.startswith("unknown 'hiden_size', 'num_steps'; did you mean 'hidden_size'? allowed: adapters, attention_bias")
    assert "tokens_per_second" not in text and "temperature" not in text, "only the fields of a looped model are listed"


@pytest.mark.parametrize("name", ["rope_theta", "rope_scaling", "partial_rotary_factor"])
def test_older_rope_fields_are_refused_not_ignored(name):
    """transformers would take them and, where rope_parameters is there, drop them without a word."""
    assert message_of(**{name: 0.5}).startswith(f"unknown '{name}'")


@pytest.mark.parametrize("kind", ROPE_TYPES)
def test_rope_types_build(kind):
    needs, takes = ROPE_TYPES[kind]
    values = {"original_max_position_embeddings": 512, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "factor": 4.0}
    config = LoopedConfig(rope_parameters={"rope_type": kind, "rope_theta": 1e4, **{n: values[n] for n in needs}})
    lw.LoopedForCausalLM(config)
    assert LoopedConfig(**config.to_dict()).rope_parameters == config.rope_parameters
    assert bool(takes) == (kind == "yarn")
    assert LoopedConfig(rope_parameters=YARN | {"beta_fast": 16.0}).rope_parameters["beta_fast"] == 16.0


@pytest.mark.parametrize(
    ("where", "kind"),
    [(w, k) for w, table in {**PARTS, "adapters": ADAPTERS, "init": INITS}.items() for k in table],
    ids=lambda x: x,
)
def test_every_kind_of_every_part_is_refused_a_wrong_option(where, kind):
    spec = {"kind": kind, "no_such_option": 1}
    text = message_of(**{where: [spec] if where == "adapters" else spec})
    name = "adapters[0]" if where == "adapters" else where
    allowed = sorted(options_of({**PARTS, "adapters": ADAPTERS, "init": INITS}[where][kind])) or ["nothing"]
    assert text == f"{name} ({kind}): unknown 'no_such_option'; allowed: {', '.join(allowed)}"


def test_step_tables_name_what_holds_rows():
    config = LoopedConfig(
        max_steps=4, end_norm="per-step", layer_post_norm="per-step", injection={"kind": "concat-per-step"},
        adapters=[{"kind": "sinusoidal"}, {"kind": "low-rank"}],
    )  # fmt: skip
    assert config.step_tables == ["end_norm", "layer_post_norm", "injection", "adapters (low-rank)"]


def test_check_depth():
    looped = LoopedConfig(depth=3)
    assert looped.check_depth(None) == 3 and looped.check_depth(40) == 40
    for wrong in (0, -1, 2.0, True, "3"):
        with pytest.raises(ValueError) as caught:
            looped.check_depth(wrong)
        assert str(caught.value) == f"depth: {wrong!r}; allowed: a whole number of at least 1"
    bounded = LoopedConfig(depth=2, max_steps=3, end_norm="per-step")
    assert bounded.check_depth(3) == 3
    with pytest.raises(ValueError, match=r"depth: 4 is beyond max_steps=3; end_norm have no parameters for later steps"):
        bounded.check_depth(4)
    assert LoopedConfig(depth=2, max_steps=3, end_norm="per-step", beyond_max_steps="repeat").check_depth(9) == 9
    dense = LoopedConfig(prelude_layers=2, core_layers=0)
    assert not dense.is_looped and dense.check_depth(None) == 1
    with pytest.raises(ValueError, match="depth: 2 was asked of a dense model; it has no core to loop, so leave depth out"):
        dense.check_depth(2)


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
