"""lw.export: which family can hold a model, and what a family would lose."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

import loopwright as lw
from loopwright.checkpoints.export import find_family, lost_fields
from loopwright.checkpoints.families import FAMILIES
from tests.cases import noisy

HELD = {
    "ouro-1.4b": "ouro", "ouro-2.6b": "ouro", "huginn": "huginn", "retrofit-llama-1b": "retrofit-llama",
    "retrofit-olmo2-1b": "retrofit-olmo2", "retrofit-tinyllama": "retrofit-llama",
}  # fmt: skip


@pytest.mark.parametrize("name", HELD)
def test_presets_of_releases_are_what_the_families_read(name: str) -> None:
    """The released sizes as presets, written as config.json and read again, are the same config: two sources of one truth."""
    assert find_family(lw.preset(name)).name == HELD[name]


@pytest.mark.parametrize("name", ["universal", "stars-addition", "asura", "ouroboros-qwen2.5-3b", "relaxed"])
def test_presets_without_a_family_are_refused_with_reasons(name: str) -> None:
    with pytest.raises(
        ValueError, match=r"export: no family can hold this model; \S+ would lose .*; \S+ would lose .*; \S+ would lose"
    ):
        find_family(lw.preset(f"{name}-tiny"))


@pytest.mark.parametrize("name", ["ouro-1.4b-tiny", "huginn-tiny", "retrofit-olmo2-1b-tiny"])
def test_there_and_back(name: str, tmp_path: Path) -> None:
    # Raven's files have one scale for the embedding and the state
    state = {"state": {"kind": "noise", "std": 0.1, "scale": math.sqrt(32)}} if name == "huginn-tiny" else {}
    model = noisy(name, bos_token_id=1, eos_token_id=[2, 3], **state)
    lw.export(model, tmp_path, shard_bytes=30_000)
    assert len(list(tmp_path.glob("model-*"))) > 1
    again = lw.load(tmp_path)
    ids = torch.arange(10)[None]
    assert torch.equal(again(ids).logits, model(ids).logits)
    assert again.config.eos_token_id == [2, 3] and again.generation_config.eos_token_id == [2, 3]


def test_the_dtype_is_kept(tmp_path: Path) -> None:
    lw.export(noisy("ouro-1.4b-tiny").bfloat16(), tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["torch_dtype"] == "bfloat16"
    assert lw.load(tmp_path, "auto").dtype == torch.bfloat16


def test_what_a_family_would_lose(tmp_path: Path) -> None:
    model = lw.build("ouro-1.4b-tiny", gate={"kind": "learned"}, embedding_scale=2.0)
    assert set(lost_fields(FAMILIES["ouro"], model.config)) == {"gate", "embedding_scale"}
    with pytest.raises(ValueError, match="the family ouro cannot hold this model; it would lose: embedding_scale, gate"):
        lw.export(model, tmp_path / "a", family="ouro")
    with pytest.raises(ValueError, match="unknown family 'oura'; did you mean 'ouro'"):
        lw.export(model, tmp_path / "a", family="oura")
    with pytest.raises(ValueError, match="unknown family 'loopwright'"):
        lw.export(model, tmp_path / "a", family="loopwright")
    assert not (tmp_path / "a").exists()


def test_options_left_out_mean_their_defaults() -> None:
    spelled = {"kind": "noise", "std": (2 / (5 * 32)) ** 0.5, "scale": 1.0, "seed": 0}
    for state in ({"kind": "noise"}, spelled):
        assert find_family(lw.preset("retrofit-llama-1b-tiny", state=state)).name == "retrofit-llama"
    assert lost_fields(FAMILIES["retrofit-llama"], lw.preset("retrofit-llama-1b-tiny", state={"kind": "zero"})) == ["state"]
    assert lost_fields(FAMILIES["huginn"], lw.preset("huginn-tiny", state={"kind": "noise", "seed": 5})) == ["state"]
