"""Named starts: every tensor is drawn as its law says, the plain start is what it was, and what is loaded stays."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import nn

import loopwright as lw
from loopwright.model.parts.init import INITS, Init, Law, init_of
from loopwright.schema import options_of


@pytest.mark.parametrize("shape", ["zero", "normal", "truncated", "uniform"])
def test_a_law_is_drawn(shape: str) -> None:
    torch.manual_seed(0)
    x = torch.full((400, 500), math.nan)
    Law(shape, 0.1).fill(x)
    most = {"zero": 0.0, "normal": math.inf, "truncated": 0.3, "uniform": 0.1 * math.sqrt(3)}[shape]
    assert x.abs().max() <= most
    assert x.std().item() == pytest.approx({"zero": 0.0, "truncated": 0.0987}.get(shape, 0.1), rel=0.01)
    assert abs(x.mean().item()) < 1e-3


@pytest.mark.parametrize("name", INITS)
def test_every_kind_is_final_and_every_tensor_of_a_model_follows_it(name: str) -> None:
    assert issubclass(INITS[name], Init) and not INITS[name].__subclasses__() and not options_of(INITS[name])
    sizes = {"hidden_size": 128, "intermediate_size": 160, "vocab_size": 512, "tie_word_embeddings": False}
    more = {"attention_bias": ["q"], "mlp_bias": True, "positions": "learned", "max_position_embeddings": 256, "head_bias": True}
    torch.manual_seed(1)
    model = lw.LoopedForCausalLM(lw.LoopedConfig(**sizes, **more, init={"kind": name}, injection={"kind": "concat", "bias": True}))
    seen = 0
    for module in model.modules():
        for tensor, law in model.start_of(module):
            cut = 0.9866 if law.shape == "truncated" else 1.0
            assert tensor.std().item() == pytest.approx(cut * law.std, rel=0.15 if tensor.dim() == 1 else 0.02)
            seen += tensor.numel()
    norms = sum(p.numel() for key, p in model.named_parameters() if "norm" in key)
    assert seen + norms == model.num_parameters()


def test_the_plain_start_draws_what_it_always_drew() -> None:
    """A config without `init` means N(0, initializer_range) and biases of 0, number for number."""
    config = lw.LoopedConfig(attention_bias=["q"], initializer_range=0.05, injection={"kind": "concat"}, tie_word_embeddings=False)
    assert config.init == {"kind": "normal"} and lw.LoopedConfig(**config.to_dict()).init == {"kind": "normal"}
    model = lw.LoopedForCausalLM(config)
    torch.manual_seed(3)
    model.apply(model._init_weights)
    torch.manual_seed(3)
    for module in _bottom_up(model):
        if isinstance(module, nn.Linear | nn.Embedding):
            assert torch.equal(module.weight, torch.empty_like(module.weight).normal_(std=0.05))
            assert getattr(module, "bias", None) is None or not module.bias.any()


def _bottom_up(module: nn.Module) -> list[nn.Module]:
    return [*(below for child in module.children() for below in _bottom_up(child)), module]


def test_loaded_weights_are_not_drawn_again(tmp_path: Path) -> None:
    model = lw.build("huginn-tiny")
    lw.save(model, tmp_path / "m")
    from transformers import AutoModelForCausalLM

    for loaded in (lw.load(tmp_path / "m"), AutoModelForCausalLM.from_pretrained(tmp_path / "m")):
        assert loaded.config.init == {"kind": "takase"}
        assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), loaded.state_dict().values(), strict=True))


def test_what_a_preset_scales_by_the_root_of_the_width_follows_the_width() -> None:
    config = lw.preset("huginn", hidden_size=110)
    assert config.embedding_scale == config.state["scale"] == math.sqrt(110)
    given = lw.preset("huginn", hidden_size=110, embedding_scale=2.0, state={"scale": 3.0})
    assert (given.embedding_scale, given.state["scale"]) == (2.0, 3.0)
    assert lw.preset("huginn", state={"kind": "noise", "std": 1.0}).state == {"kind": "noise", "std": 1.0, "scale": math.sqrt(5280)}
    assert lw.preset("universal", hidden_size=128).embedding_scale == math.sqrt(128)
    assert lw.preset("ouro-1.4b", hidden_size=128).embedding_scale == 1.0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"init": {"kind": "takas"}},
            "init: unknown kind 'takas'; did you mean 'takase'? allowed: normal, react, retrofit, takase",
        ),
        ({"init": "takase"}, "init is 'takase'; allowed: a mapping of names to values"),
        ({"init": {"kind": "takase", "std": 1}}, "init (takase): unknown 'std'; allowed: nothing"),
        (
            {"init": {"kind": "takase"}, "initializer_range": 0.1},
            "initializer_range is 0.1, and init 'takase' does not read it; allowed: with normal, retrofit",
        ),
    ],
)
def test_mistakes_are_one_line(changes: dict, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        lw.LoopedConfig(**changes)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_kind_is_built_from_the_config() -> None:
    config = lw.LoopedConfig(hidden_size=80, init={"kind": "takase"}, prelude_layers=1, core_layers=2, coda_layers=1, depth=3)
    assert init_of(config).residual(7, 80) == ("truncated", pytest.approx(math.sqrt(2 / 400) / math.sqrt(2 * 8)))
