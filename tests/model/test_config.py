"""LoopedConfig: round trips, what the defaults mean, and one clear message for every mistake, several at once too."""

import json

import pytest
from transformers import AutoConfig

import loopwright as lw
from loopwright.model.config import CHOICES, PARTS, ROPE_TYPES, LoopedConfig
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
