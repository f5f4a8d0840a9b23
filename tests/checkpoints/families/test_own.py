"""Our own folders: every preset saved and loaded again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

import loopwright as lw
from loopwright.model.config import LoopedConfig
from loopwright.model.presets import PRESETS
from tests.cases import UNLIKE, noisy, some


@pytest.mark.parametrize("name", some(PRESETS, UNLIKE))
def test_save_load_save_gives_the_same_bytes(name: str, tmp_path: Path) -> None:
    model = noisy(f"{name}-tiny")
    lw.save(model, tmp_path / "a")
    loaded = lw.load(tmp_path / "a")
    lw.save(loaded, tmp_path / "b")
    assert (tmp_path / "a/model.safetensors").read_bytes() == (tmp_path / "b/model.safetensors").read_bytes()
    frozen = {n: p.requires_grad for n, p in model.named_parameters()}
    assert {n: p.requires_grad for n, p in loaded.named_parameters()} == frozen
    ids = torch.arange(12)[None]
    with torch.no_grad():
        expected = model(ids).logits
        assert torch.equal(loaded(ids).logits, expected)
        assert torch.equal(AutoModelForCausalLM.from_pretrained(tmp_path / "a")(ids).logits, expected)


def test_a_folder_written_by_save_pretrained_loads(tmp_path: Path) -> None:
    model = noisy("huginn-tiny")
    model.save_pretrained(tmp_path, max_shard_size="20KB")
    assert len(list(tmp_path.glob("model-*"))) > 1
    ids = torch.arange(12)[None]
    assert torch.equal(lw.load(tmp_path)(ids).logits, model(ids).logits)


def test_the_dtype_of_the_config_is_not_asked(tmp_path: Path) -> None:
    lw.save(lw.build("ouro-1.4b-tiny"), tmp_path / "a")
    (tmp_path / "a" / "manifest.json").unlink()
    path = tmp_path / "a" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "dtype": "odd"}))
    assert lw.load(tmp_path / "a", "bfloat16").dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [("fnord", 1, "unknown 'fnord'"), ("core_layers", -1, "core_layers"), ("gate", {"kind": "nand"}, "unknown kind 'nand'")],
)
def test_a_config_that_is_wrong_is_refused(field: str, value: object, message: str, tmp_path: Path) -> None:
    lw.save(lw.build("ouro-1.4b-tiny"), tmp_path / "a")
    (tmp_path / "a" / "manifest.json").unlink()
    path = tmp_path / "a" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    with pytest.raises(ValueError, match=f"config.json: model config: .*{message}"):
        lw.load(tmp_path / "a")


def test_a_null_in_the_config_means_what_is_left_out(tmp_path: Path) -> None:
    """Read by us and by transformers."""
    model = lw.build("ouro-1.4b-tiny")
    lw.save(model, tmp_path)
    (tmp_path / "manifest.json").unlink()
    settings = json.loads((tmp_path / "config.json").read_text())
    nulls = dict.fromkeys(
        ("attention_bias", "prelude_layers", "positions", "dropout", "use_cache", "state", "max_steps", "num_labels")
    )
    (tmp_path / "config.json").write_text(json.dumps({**settings, **nulls}))
    for found in (lw.load(tmp_path), AutoModelForCausalLM.from_pretrained(tmp_path)):
        ours = {name: getattr(model.config, name) for name in LoopedConfig.__annotations__}
        assert {name: getattr(found.config, name) for name in ours} == ours
