"""Adapter-only saving: small files that know their base."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import loopwright as lw
from loopwright.convert.adapters import fingerprint
from tests.cases import noisy

NAMES = ["asura-tiny", "ouroboros-qwen2.5-3b-tiny", "relaxed-tiny", "huginn-tiny", "ouro-1.4b-tiny"]
IDS = torch.arange(10)[None]


def fresh_parts(model: lw.LoopedForCausalLM, name: str) -> lw.LoopedForCausalLM:
    """Returns a model with the same base and parts at their start."""
    torch.manual_seed(99)
    other = lw.build(name)
    base = {n: p for n, p in model.state_dict().items() if n.split(".")[0] in ("embed_tokens", "embed_norm", "norm", "lm_head")}
    base |= {n: p for n, p in model.state_dict().items() if n.split(".")[0] in ("prelude", "core", "coda")}
    if model.config.end_norm == "every":
        base["end_norm.weight"] = model.end_norm.weight.detach()
    other.load_state_dict(base, strict=False)
    return other


@pytest.mark.parametrize("name", NAMES)
def test_parts_go_back_onto_their_base(name: str, tmp_path: Path) -> None:
    model = noisy(name)
    lw.save_adapters(model, tmp_path / "parts")
    stored = load_file(tmp_path / "parts" / "adapters.safetensors")
    assert stored and not any(n.startswith(("core.", "prelude.", "coda.", "embed", "lm_head", "norm.")) for n in stored)
    plain = fresh_parts(model, name)
    assert not torch.equal(plain(IDS).logits, model(IDS).logits) or name == "ouro-1.4b-tiny"
    whole = lw.load_adapters(plain, tmp_path / "parts")
    assert torch.equal(whole(IDS).logits, model(IDS).logits)
    assert whole.embed_tokens.weight is plain.embed_tokens.weight and not whole.training
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), model.parameters(), strict=True))


def test_a_base_can_be_a_folder_and_lack_the_parts(tmp_path: Path) -> None:
    """The parts bring the config: a plainly looped base becomes the adapted model."""
    model = noisy("relaxed-tiny")
    plain = lw.build("relaxed-tiny", adapters=[], max_steps=None)
    plain.load_state_dict({n: p for n, p in model.state_dict().items() if not n.startswith("adapters.")})
    lw.save(plain, tmp_path / "base")
    lw.save_adapters(model, tmp_path / "parts")
    assert torch.equal(lw.load_adapters(tmp_path / "base", tmp_path / "parts")(IDS).logits, model(IDS).logits)


def test_another_base_is_refused_with_the_reason(tmp_path: Path) -> None:
    model = noisy("relaxed-tiny")
    lw.save_adapters(model, tmp_path / "parts")
    with pytest.raises(ValueError, match="belong on another base; its tensors have the same shapes but other values"):
        lw.load_adapters(noisy("relaxed-tiny", seed=1), tmp_path / "parts")
    with pytest.raises(ValueError, match="belong on another base; its config differs: hidden_size is 64, not 32"):
        lw.load_adapters(lw.build("relaxed-tiny", hidden_size=64), tmp_path / "parts")
    with pytest.raises(ValueError, match=r"it lacks: core\.1"):
        lw.load_adapters(lw.build("relaxed-tiny", core_layers=1, prelude_layers=1), tmp_path / "parts")
    with pytest.raises(ValueError, match="norm is "):
        lw.load_adapters(lw.build("relaxed-tiny", norm={"kind": "rms", "eps": 1e-3}), tmp_path / "parts")


def test_a_folder_of_parts_is_not_a_model(tmp_path: Path) -> None:
    lw.save_adapters(noisy("relaxed-tiny"), tmp_path / "parts")
    with pytest.raises(FileNotFoundError, match="holds adapters only; put them on their base with load_adapters"):
        lw.load(tmp_path / "parts")
    with pytest.raises(FileNotFoundError, match=r"there is no config.json"):
        lw.load_adapters(noisy("relaxed-tiny"), tmp_path / "nothing")


def test_nothing_to_save(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no part of this model holds parameters"):
        lw.save_adapters(lw.build("stars-addition-tiny"), tmp_path / "parts")


def test_the_fingerprint_is_of_values_not_of_their_dtype() -> None:
    values = {"a": torch.randn(3, 4).bfloat16(), "b": torch.randn(2)}
    assert fingerprint(values) == fingerprint({name: value.float() for name, value in values.items()})
    assert fingerprint(values) != fingerprint({**values, "b": values["b"] + 1e-6})
    assert fingerprint(values) != fingerprint({"a": values["a"].T.contiguous(), "b": values["b"]})
    assert fingerprint(values) != fingerprint({"c": values["a"], "b": values["b"]})
