"""Model folders compared with their manifest: what is read must be what was written; other files are nobody's business."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import loopwright as lw
from loopwright.checkpoints import checked as checked_module
from loopwright.checkpoints.checked import AVERAGE, CheckedFolder
from loopwright.checkpoints.source import Source
from loopwright.storage.manifest import MANIFEST, Damaged, Manifest
from loopwright.storage.run import STATE
from loopwright.training.checkpoint import save_checkpoint
from tests.cases import noisy
from tests.checkpoints.dense import source
from tests.generation.tiny import word_tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return lw.save(noisy("huginn-tiny"), tmp_path / "m", word_tokenizer())


def flip(path: Path, place: int = -9) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(bytes(content))


AS_IT_IS = r"; delete manifest.json there to read the folder as it is$"


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda m: flip(m / "model.safetensors"), r"model.safetensors: its content changed \(sha256 differs\)"),
        (lambda m: flip(m / "model.safetensors", 20), r"model.safetensors: its content changed \(sha256 differs\)"),
        (lambda m: flip(m / "config.json", 3), r"config.json: its content changed \(sha256 differs\)"),
        (lambda m: flip(m / "generation_config.json", 3), r"generation_config.json: its content changed \(sha256 differs\)"),
        (lambda m: (m / "generation_config.json").unlink(), r"generation_config.json: missing"),
        (lambda m: (m / "config.json").unlink(), r"config.json: missing"),
        (lambda m: (m / "model.safetensors").write_bytes(b""), r"model.safetensors: 0 bytes where the manifest says \d+"),
        (lambda m: flip(m / MANIFEST), r"manifest.json: not .*"),
        (lambda m: shutil.copy(m / "model.safetensors", m / AVERAGE), r"average.safetensors: not in the manifest"),
        (lambda m: (m / "adapters.json").write_text("{}"), r"adapters.json: not in the manifest"),
    ],
)
def test_what_was_changed_and_is_read_is_refused_in_one_line(folder: Path, harm: Callable[[Path], object], said: str) -> None:
    before = lw.load(folder).state_dict()
    harm(folder)
    with pytest.raises(Damaged, match=said + AS_IT_IS) as caught:
        lw.load(folder)
    assert "\n" not in str(caught.value) and str(folder) in str(caught.value)
    assert before.keys()


def test_a_changed_folder_is_read_when_its_manifest_is_deleted(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight" if "lm_head.weight" in tensors else "embed_tokens.weight"].mul_(2)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(Damaged, match=AS_IT_IS):
        lw.load(folder)
    (folder / MANIFEST).unlink()
    assert all(torch.equal(value, tensors[name]) for name, value in lw.load(folder).state_dict().items() if name in tensors)


def test_a_checkpoint_out_of_its_run_is_read_when_what_the_error_names_is_deleted(folder: Path) -> None:
    (folder / STATE).write_text("{}")  # copied out of a run: it needs its manifest
    flip(folder / "model.safetensors")
    with pytest.raises(Damaged, match=r"; delete manifest.json and state.json there to read the folder as it is$"):
        lw.load(folder)
    (folder / MANIFEST).unlink()
    with pytest.raises(Damaged, match=r"manifest.json: missing; delete state.json there to read the folder as it is$"):
        lw.load(folder)
    (folder / STATE).unlink()
    lw.load(folder)


def test_files_that_loading_does_not_read_may_come_go_and_change(folder: Path) -> None:
    before = lw.load(folder).state_dict()
    (folder / "README.md").write_text("mine")
    (folder / "optimizer.safetensors").write_bytes(b"mine too")
    (folder / "model-lora.safetensors").write_bytes(b"and this")
    (folder / "tokenizer.json").write_text("{}")  # of the tokenizer, not of the model
    again = lw.load(folder).state_dict()
    assert all(torch.equal(value, again[name]) for name, value in before.items())
    with pytest.raises(Damaged, match=r"tokenizer.json: \d+ bytes where the manifest says" + ".*" + AS_IT_IS):
        lw.tokenizer(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(Damaged, match=r"tokenizer.json: missing"):
        lw.tokenizer(folder)


def test_a_tokenizer_may_be_put_beside_a_model_later(tmp_path: Path) -> None:
    folder = lw.save(noisy("huginn-tiny"), tmp_path / "m")
    word_tokenizer().save_pretrained(folder)
    assert lw.tokenizer(folder)("the cat").input_ids and lw.load(folder).config.core_layers


def test_shards_are_checked_one_by_one(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    lw.export(source("llama"), folder, shard_bytes=20_000)
    shards = sorted(folder.glob("model-*.safetensors"))
    assert len(shards) > 1 and lw.load(folder) and AutoModelForCausalLM.from_pretrained(folder)
    flip(shards[1])
    with pytest.raises(Damaged, match=f"{shards[1].name}: its content changed"):
        lw.load(folder)


def test_a_download_of_links_is_read_and_checked(folder: Path, tmp_path: Path) -> None:
    """The hub's cache: a snapshot is a folder of links to blobs."""
    snapshot = tmp_path / "snapshots" / "x"
    snapshot.mkdir(parents=True)
    for path in folder.iterdir():
        (snapshot / path.name).symlink_to(path)
    assert lw.load(snapshot).config.core_layers and lw.tokenizer(snapshot)
    flip(folder / "model.safetensors")
    with pytest.raises(Damaged, match="its content changed"):
        lw.load(snapshot)


def test_a_folder_of_others_has_no_manifest_and_a_checkpoint_must(folder: Path, tmp_path: Path) -> None:
    (folder / MANIFEST).unlink()
    assert CheckedFolder.of(folder, in_run=False).manifest is None
    checkpoint = save_checkpoint(tmp_path, 1, model=noisy("huginn-tiny"), tensors={}, state={})
    (checkpoint / MANIFEST).unlink()
    with pytest.raises(Damaged, match=r"manifest.json: missing"):  # it is one, wherever it was copied to
        CheckedFolder.of(checkpoint, in_run=False)


def test_each_file_is_read_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[str] = []
    headers: list[Path] = []
    check, read_files = Manifest.check, checked_module.read_files
    monkeypatch.setattr(Manifest, "check", lambda self, name: (hashed.append(name), check(self, name))[1])
    monkeypatch.setattr(checked_module, "read_files", lambda place: (headers.append(place), read_files(place))[1])
    opened = Source(folder)
    assert opened.config is opened.config
    assert hashed == ["config.json", "generation_config.json"]  # the weights are not read for a config
    opened.model()
    assert hashed == ["config.json", "generation_config.json", "model.safetensors"] and headers == [folder]
