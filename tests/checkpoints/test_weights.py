"""Safetensors files that are damaged, incomplete or of another model: one line each, before anything is read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import loopwright as lw
from loopwright.checkpoints import load as loading
from loopwright.checkpoints.weights import read_header, stored_tensors
from tests.cases import golden_folders
from tests.checkpoints.parity import folder_copy

GOLDEN = golden_folders("ouro-gqa")[0]


def forbid_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on, the step that allocates and reads must not be reached."""

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("reading began")

    monkeypatch.setattr(loading, "fill", refuse)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    forbid_reading(monkeypatch)
    return folder_copy(GOLDEN, tmp_path / "model")


@pytest.fixture
def sharded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "sharded"
    lw.export(lw.load(GOLDEN), folder, shard_bytes=20_000)
    (folder / "manifest.json").unlink()  # somebody else's folder
    forbid_reading(monkeypatch)
    return folder


def rewrite(folder: Path, **tensors: torch.Tensor | None) -> None:
    """Changes tensors of a file; None removes one."""
    found = load_file(folder / "model.safetensors")
    for name, value in tensors.items():
        found.pop(name, None)
        if value is not None:
            found[name] = value
    save_file(found, folder / "model.safetensors")


def refused(folder: Path, message: str, kind: type[Exception] = ValueError) -> None:
    with pytest.raises(kind, match=message) as caught:
        lw.load(folder)
    assert "\n" not in str(caught.value) and str(folder) in str(caught.value)


@pytest.mark.parametrize("keep", [0, 4, 100, 5000, -1])
def test_truncated(folder: Path, keep: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    refused(folder, "the file is truncated")


def test_longer_than_the_header_says(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes() + b"xx")
    refused(folder, "bytes where its header says")


def test_not_safetensors(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes((20).to_bytes(8, "little") + b"no header here at all, sorry")
    refused(folder, "its header is not readable")
    (folder / "model.safetensors").write_text("<html>" + "x" * 100)
    refused(folder, "truncated or not safetensors")


def test_missing_unexpected_and_wrong_shapes_are_all_listed(folder: Path) -> None:
    rewrite(folder, **{"model.norm.weight": None, "model.odd.weight": torch.zeros(3), "lm_head.weight": torch.zeros(4, 32)})
    refused(
        folder,
        r"do not fit the family ouro; missing: model.norm.weight; unexpected: model.odd.weight; "
        r"of another shape: lm_head.weight is \[4, 32\], expected \[40, 32\]",
    )


def test_quantised_tensors(folder: Path) -> None:
    rewrite(folder, **{"lm_head.weight": torch.zeros(40, 32, dtype=torch.int8)})
    refused(folder, r"not of a float kind: lm_head.weight \(I8\)")


def test_tables_of_old_files_are_passed_over(folder: Path) -> None:
    rewrite(folder, **{"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4)})
    with pytest.raises(AssertionError, match="reading began"):  # every check passed
        lw.load(folder)


def test_missing_shards(sharded: Path) -> None:
    gone = sorted(sharded.glob("model-*"))[1]
    gone.unlink()
    refused(sharded, f"1 of [0-9]+ shards are missing: {gone.name}", FileNotFoundError)


def test_index_that_points_nowhere(sharded: Path) -> None:
    path = sharded / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["model.phantom.weight"] = index["weight_map"]["lm_head.weight"]
    path.write_text(json.dumps(index))
    refused(sharded, "points to tensors that the shards do not hold: model.phantom.weight")


def test_index_that_leaves_the_folder(sharded: Path) -> None:
    path = sharded / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    index["weight_map"]["lm_head.weight"] = "../model.safetensors"
    path.write_text(json.dumps(index))
    refused(sharded, r"names ../model.safetensors; allowed: .safetensors files of the same folder")


@pytest.mark.parametrize("text", ["{", "[]", '{"weight_map": {}}', '{"weight_map": 3}'])
def test_index_that_is_damaged(sharded: Path, text: str) -> None:
    (sharded / "model.safetensors.index.json").write_text(text)
    refused(sharded, "not readable as JSON|holds a list|the index is damaged")


def test_tensor_in_two_shards(sharded: Path) -> None:
    first, second = sorted(sharded.glob("model-*"))[:2]
    both = load_file(first)
    save_file({**load_file(second), next(iter(both)): next(iter(both.values()))}, second)
    refused(sharded, "holds tensors that another shard holds too")


def test_no_weights_at_all(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    refused(folder, "there is neither model.safetensors nor model.safetensors.index.json", FileNotFoundError)
    torch.save({}, folder / "pytorch_model.bin")
    refused(folder, "holds pytorch_model.bin but no model.safetensors; pickled weights are not read", FileNotFoundError)


def test_headers_name_shape_kind_and_file(sharded: Path) -> None:
    found = stored_tensors(sharded)
    assert found["lm_head.weight"].shape == (40, 32) and found["lm_head.weight"].dtype == "F32"
    shutil.copy(found["lm_head.weight"].file, sharded / "copy.safetensors")
    assert "lm_head.weight" in read_header(sharded / "copy.safetensors")
