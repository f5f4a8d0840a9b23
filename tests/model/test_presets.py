"""Presets: every published system builds small with every part kept, and refuses what it does not know."""

import math

import pytest
import torch

import loopwright as lw
from loopwright.model.parts.init import init_of
from loopwright.model.presets import PRESETS
from tests.cases import noisy

# written out, so that a preset that disappears or changes its parts is a visible act
PARTS = {
    "universal": ("input", "none", ["sinusoidal"], "none", "universal-act"),
    "ouro-1.4b": ("input", "none", [], "none", "exit"),
    "ouro-2.6b": ("input", "none", [], "none", "exit"),
    "huginn": ("noise", "concat", [], "none", "none"),
    "retrofit-llama-1b": ("noise", "concat", [], "none", "none"),
    "retrofit-olmo2-1b": ("noise", "concat", [], "none", "none"),
    "retrofit-tinyllama": ("noise", "concat", [], "none", "none"),
    "stars-addition": ("input", "none", [], "none", "none"),
    "asura": ("input", "concat-per-step", ["abba"], "none", "none"),
    "ouroboros-qwen2.5-3b": ("input", "none", ["controller"], "learned", "none"),
    "relaxed": ("input", "none", ["low-rank"], "none", "none"),
}
SIZES = {"vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim"}
SIZES |= {"max_position_embeddings", "prelude_layers", "core_layers", "coda_layers", "depth", "max_steps", "embedding_scale"}
SIZES |= {"dropout", "adapters"}


def parts_of(config: lw.LoopedConfig) -> tuple:
    kinds = [spec["kind"] for spec in (config.state, config.injection, config.gate, config.halting)]
    return (*kinds[:2], [a["kind"] for a in config.adapters], *kinds[2:])


def test_the_list_of_presets():
    assert set(PARTS) == set(PRESETS)


@pytest.mark.parametrize("name", PRESETS)
def test_tiny_is_the_same_system(name):
    """Only sizes are cut: every other field of the tiny form is the full form's."""
    full, tiny = lw.preset(name), lw.preset(f"{name}-tiny")
    assert parts_of(full) == parts_of(tiny) == PARTS[name]
    for field in set(lw.LoopedConfig.__annotations__) - SIZES - {"state"}:
        assert getattr(full, field) == getattr(tiny, field), field
    # Huginn scales its noise and its embedding by √D, the Universal Transformer its embedding: they follow the width
    for config in (full, tiny):
        assert config.embedding_scale in (1.0, config.hidden_size**0.5)
        assert config.state.get("scale", config.embedding_scale) == config.embedding_scale
    assert full.state | {"scale": 1.0} == tiny.state | {"scale": 1.0}
    assert (full.num_key_value_heads < full.num_attention_heads) == (tiny.num_key_value_heads < tiny.num_attention_heads)
    for stack in ("prelude_layers", "core_layers", "coda_layers"):
        assert bool(getattr(full, stack)) == bool(getattr(tiny, stack))
    assert (full.embedding_scale == 1.0) == (tiny.embedding_scale == 1.0)


@pytest.mark.parametrize("name", PRESETS)
def test_full_size_builds_on_the_meta_device(name):
    with torch.device("meta"):
        model = lw.build(name)
    assert all(parameter.is_meta for parameter in model.parameters())


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_tiny_runs_and_every_parameter_gets_a_gradient(name, dtype):
    model = noisy(f"{name}-tiny").to(dtype)
    assert not model.training and model.num_parameters() < 200_000
    ids = torch.randint(0, model.config.vocab_size, (2, 7), generator=torch.Generator().manual_seed(0))
    halting = model.config.halting["kind"] != "none"
    depth = model.config.depth if model.config.max_steps is None else model.config.max_steps
    out = model(ids, labels=ids, depth=depth, select="expected" if halting else "last")
    assert out.logits.shape == (2, 7, model.config.vocab_size) and out.logits.dtype == dtype
    out.loss.backward()
    for key, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None and parameter.grad.isfinite().all() and parameter.grad.abs().sum() > 0, key


@pytest.mark.parametrize("name", PRESETS)
def test_start_values_are_drawn_once_and_finite(name):
    torch.manual_seed(5)
    one = lw.build(f"{name}-tiny")
    torch.manual_seed(5)
    other = lw.build(f"{name}-tiny")
    for (key, a), b in zip(one.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.equal(a, b) and a.isfinite().all(), key


def test_changes_are_laid_over():
    config = lw.preset("asura-tiny", hidden_size=64, depth=2, injection={"kind": "add"}, norm={"eps": 1e-4})
    assert (config.hidden_size, config.depth, config.injection) == (64, 2, {"kind": "add"})
    assert config.norm == {"kind": "layer", "eps": 1e-4}
    assert lw.build("asura-tiny", hidden_size=64).config.hidden_size == 64


@pytest.mark.parametrize("width", [96, 320, 1024])
@pytest.mark.parametrize("name", PRESETS)
def test_what_follows_from_the_width_follows_it(name, width):
    """Scales of embedding and noise, spreads of fresh weights, heads: as of a preset of that width, unless they are given."""
    published, found = lw.preset(name), lw.preset(name, hidden_size=width)
    root = math.sqrt(width)
    assert found.embedding_scale == (1.0 if published.embedding_scale == 1.0 else root)
    assert found.state.get("scale") == (root if "scale" in published.state else None)
    assert found.num_attention_heads * found.head_dim == width and found.head_dim % 2 == 0
    group = published.num_attention_heads // published.num_key_value_heads
    assert found.num_attention_heads == group * found.num_key_value_heads
    if width % (2 * published.num_attention_heads) == 0:
        assert found.num_attention_heads == published.num_attention_heads
    wide = [init_of(lw.preset(name, hidden_size=one)).matrix(one, one) for one in (width, 4 * width)]
    assert published.init["kind"] in ("normal", "retrofit") or wide[0] != wide[1]
    if "scale" in published.state:
        own = lw.preset(name, hidden_size=width, embedding_scale=2.0, state={"scale": 3.0}, num_attention_heads=2)
        assert (own.embedding_scale, own.state["scale"], own.num_attention_heads) == (2.0, 3.0, 2)


def test_the_heads_of_another_width_are_about_as_wide_as_the_published_ones():
    heads = {width: lw.preset("huginn", hidden_size=width).num_attention_heads for width in (5280, 2640, 1024, 960, 96)}
    assert heads == {5280: 55, 2640: 55, 1024: 8, 960: 10, 96: 1}  # of 96 channels; 2,640 is shared by 55


def test_presets_are_not_changed_by_use():
    before = {name: lw.preset(name).to_dict() for name in PRESETS}
    config = lw.preset("huginn", state={"std": 1.0})
    config.adapters.append("broken")
    config.rope_parameters["rope_theta"] = 1.0
    assert {name: lw.preset(name).to_dict() for name in PRESETS} == before


def test_unknown_presets_and_fields():
    with pytest.raises(ValueError, match=r"preset: unknown 'hugin'; did you mean 'huginn'\? allowed: asura, .*NAME-tiny"):
        lw.preset("hugin")
    with pytest.raises(ValueError, match=r"unknown 'hugin-tiny'; did you mean 'huginn-tiny'"):
        lw.build("hugin-tiny")
    with pytest.raises(ValueError, match="model config: unknown 'dpeth'; did you mean 'depth'"):
        lw.build("huginn-tiny", dpeth=3)


@pytest.mark.parametrize("wrong", [None, 3, ["asura"]])
@pytest.mark.parametrize("verb", [lw.build, lw.preset])
def test_a_preset_that_is_no_name(verb, wrong):
    with pytest.raises(TypeError, match=rf"preset: must be a name such as 'asura' \(got {type(wrong).__name__}\)"):
        verb(wrong)


def test_a_width_that_is_none_is_told_by_the_config():
    for wrong in ("x", None, -4):
        with pytest.raises(ValueError, match=r"hidden_size is .*; allowed: a whole number of at least 1"):
            lw.preset("huginn-tiny", hidden_size=wrong)


def test_a_presets_read_out_is_that_of_its_own_halting():
    assert lw.preset("universal-tiny").read_out == lw.preset("universal-tiny", halting={"kind": "act"}).read_out == "expected"
    assert lw.preset("universal-tiny", halting={"kind": "none"}).read_out == "last"
    assert lw.preset("universal-tiny", halting={"kind": "exit"}).read_out == "last"
