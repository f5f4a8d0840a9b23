"""lw.load: dtypes, devices, generation settings, and folders that are no models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import loopwright as lw
from loopwright.checkpoints.load import DTYPE_NAMES, generation_config_of
from loopwright.cli.opening import find_dtype
from tests.cases import golden_folders
from tests.checkpoints.parity import folder_copy

GOLDEN = golden_folders("ouro-gqa")[0]


def test_eval_mode_and_own_memory() -> None:
    model = lw.load(str(GOLDEN))
    assert not model.training and model.dtype == torch.float32 and model.device.type == "cpu"
    storages = [parameter.untyped_storage() for parameter in model.parameters()]
    assert len({storage.data_ptr() for storage in storages}) == len(storages)
    sizes = [parameter.numel() * 4 for parameter in model.parameters()]
    assert [storage.nbytes() for storage in storages] == sizes  # no parameter is a view of a file or a fused tensor


def test_fused_tensors_do_not_keep_each_other_alive() -> None:
    model = lw.load(golden_folders("huginn-tiny")[0])
    weight = model.core[0].self_attn.k_proj.weight
    assert weight.untyped_storage().nbytes() == weight.numel() * 4
    assert model.lm_head.weight is model.embed_tokens.weight


@pytest.mark.parametrize("dtype", ["bfloat16", torch.bfloat16, "torch.bfloat16"])
def test_dtype(dtype: str | torch.dtype) -> None:
    model = lw.load(GOLDEN, dtype)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16} and model.config.dtype == torch.bfloat16
    stored = load_file(GOLDEN / "model.safetensors")["lm_head.weight"]
    assert torch.equal(model.lm_head.weight, stored.bfloat16())


def test_dtype_auto_is_the_files_own(tmp_path: Path) -> None:
    folder = folder_copy(GOLDEN, tmp_path / "half")
    tensors = load_file(folder / "model.safetensors")
    halved = {name: value if "norm" in name else value.half() for name, value in tensors.items()}
    save_file(halved, folder / "model.safetensors")
    assert lw.load(folder, "auto").dtype == torch.float16
    assert lw.load(folder, dtype="float32").dtype == torch.float32
    assert lw.load(GOLDEN, "auto").dtype == torch.float32


def test_a_dtype_has_the_same_names_from_python_and_on_the_command_line() -> None:
    for name, dtype in DTYPE_NAMES.items():
        assert find_dtype(name) == dtype
        assert lw.load(GOLDEN, dtype=name).dtype == dtype == lw.load(GOLDEN, dtype=dtype).dtype


def test_wrong_dtypes_and_devices() -> None:
    for dtype in ("float8", "int8", torch.int64):
        with pytest.raises(ValueError, match=r"dtype: .*allowed: auto, bf16, bfloat16, float16, float32, float64, fp16, fp32"):
            lw.load(GOLDEN, dtype)
    with pytest.raises(ValueError, match="device: nowhere cannot be used here"):
        lw.load(GOLDEN, device="nowhere")


def test_generation_settings(tmp_path: Path) -> None:
    folder = folder_copy(GOLDEN, tmp_path / "a", bos_token_id=3, eos_token_id=[4, 5], pad_token_id=6)
    without = lw.load(folder).generation_config
    assert (without.bos_token_id, without.eos_token_id, without.pad_token_id) == (3, [4, 5], 6)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 9, "do_sample": True, "temperature": 0.5}))
    settings = lw.load(folder).generation_config
    assert (settings.eos_token_id, settings.do_sample, settings.temperature) == (9, True, 0.5)
    (folder / "generation_config.json").write_text("{")
    with pytest.raises(ValueError, match=r"generation_config.json: not readable as JSON"):
        lw.load(folder)


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("eos_token_id", "x", "a token id, a list of them"),
        ("eos_token_id", [1, [2]], "a token id, a list of them"),
        ("eos_token_id", True, "a token id, a list of them"),
        ("stop_strings", 5, "a string, a list of them, none of them empty"),
        ("stop_strings", ["a", 5], "a string, a list of them, none of them empty"),
        ("top_k", "x", "a whole number"),
        ("max_new_tokens", "x", "a whole number of at least 1"),
        ("max_length", 1.5, "a whole number of at least 1"),
        ("temperature", "x", "a number"),
        ("top_p", [1], "a number"),
        ("do_sample", "yes", "true, false"),
    ],
)
def test_generation_settings_of_another_form_are_refused(field: str, value: object, allowed: str, tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({field: value}))
    with pytest.raises(ValueError, match=rf"generation_config.json: {field} is .*; allowed: {allowed}, or null$"):
        generation_config_of(tmp_path)


def test_folders_that_are_no_models(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no config.json; a folder that was saved holds one"):
        lw.load(tmp_path)
    (tmp_path / "config.json").write_text("{ not json")
    with pytest.raises(ValueError, match="not readable as JSON"):
        lw.load(tmp_path)
    with pytest.raises(ValueError, match="is a file; allowed: a model folder or a hub id"):
        lw.load(tmp_path / "config.json")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("logit_scale", 0.1, r"unknown field logit_scale \(0.1\)"),
        ("model_type", "gpt2", "model_type is 'gpt2', which no family has"),
        ("hidden_act", "gelu", "hidden_act is 'gelu'"),
        ("quantization_config", {"quant_method": "awq"}, r"quantised \(awq\)"),
        ("num_key_value_heads", 3, "heads and key/value heads"),
        ("early_exit_step", 2, "early_exit_step is 2"),
    ],
)
def test_configs_that_are_refused(field: str, value: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        lw.load(folder_copy(GOLDEN, tmp_path / "a", **{field: value}))
    assert "config.json" in str(caught.value) and "\n" not in str(caught.value)


def test_a_part_that_refuses_its_options_is_named_with_the_file(tmp_path: Path) -> None:
    lw.save(lw.build("asura-tiny"), tmp_path / "a")
    (tmp_path / "a" / "manifest.json").unlink()
    path = tmp_path / "a" / "config.json"
    settings = json.loads(path.read_text())
    settings["adapters"][0]["rank1"] = 0
    path.write_text(json.dumps(settings))
    with pytest.raises(ValueError, match=r"config.json: .*rank1 is 0; allowed: a whole number from 1"):
        lw.load(tmp_path / "a")


@pytest.mark.gpu
def test_straight_onto_the_device() -> None:
    before = torch.cuda.memory_allocated()
    model = lw.load(GOLDEN, "bfloat16", device="cuda")
    assert {parameter.device.type for parameter in model.parameters()} == {"cuda"}
    assert torch.cuda.memory_allocated() > before
    ids = torch.arange(10)[None]
    assert torch.equal(model(ids.cuda()).logits.argmax(-1).cpu(), lw.load(GOLDEN, "bfloat16")(ids).logits.argmax(-1))
