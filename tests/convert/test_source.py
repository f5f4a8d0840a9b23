"""Folders, hub ids and tokenizers."""

from __future__ import annotations

from pathlib import Path

import huggingface_hub
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

import loopwright as lw
from loopwright.convert.source import find_folder
from tests.cases import golden_folders
from tests.convert.parity import folder_copy

GOLDEN = golden_folders("ouro-gqa")[0]


def test_a_folder_is_itself(tmp_path: Path) -> None:
    assert find_folder(tmp_path) == tmp_path and find_folder(str(tmp_path)) == tmp_path


@pytest.mark.parametrize("source", ["./nowhere", "/no/such/folder", "a/b/c", "name with spaces", "", Path("owner/name")])
def test_what_cannot_be_a_hub_id(source: str | Path) -> None:
    with pytest.raises((FileNotFoundError, ValueError), match=r"no such folder, and it is not a hub id|there is no config"):
        lw.load(source)


def test_a_hub_id_is_downloaded_by_the_hubs_own_client(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {}

    def download(name: str, allow_patterns: list[str]) -> str:
        asked[name] = allow_patterns
        return str(GOLDEN)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert lw.load("owner/name-1.4B").config.core_layers == 3
    assert "config.json" in asked["owner/name-1.4B"] and not any(".py" in p or ".bin" in p for p in asked["owner/name-1.4B"])


def test_an_unreachable_hub_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def download(name: str, allow_patterns: list[str]) -> str:
        raise ConnectionError("no route\nand much more")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(FileNotFoundError, match=r"owner/name: there is no such folder, and the hub did not give it") as caught:
        lw.load("owner/name")
    assert "no route" in str(caught.value) and "\n" not in str(caught.value)


def write_tokenizer(folder: Path) -> None:
    words = Tokenizer(models.WordLevel({"<unk>": 0, "loop": 1, "again": 2}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.save(str(folder / "tokenizer.json"))


def test_a_tokenizer_beside_a_looped_model(tmp_path: Path) -> None:
    """transformers knows no class for an Ouro folder that does not name one, needs none, and runs none of its code."""
    folder = folder_copy(GOLDEN, tmp_path / "a")
    write_tokenizer(folder)
    assert lw.tokenizer(folder)("loop again loop").input_ids == [1, 2, 1]
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "loop"}')
    assert lw.tokenizer(folder).bos_token == "loop"


def test_a_folder_without_a_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"there is no tokenizer \(tokenizer.json"):
        lw.tokenizer(GOLDEN)
    folder = folder_copy(GOLDEN, tmp_path / "a")
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match="the tokenizer cannot be read") as caught:
        lw.tokenizer(folder)
    assert "\n" not in str(caught.value)


def test_a_run_folder_stands_for_its_last_checkpoint(tmp_path: Path) -> None:
    for update in ("00000002", "00000010"):
        (tmp_path / "checkpoints" / update).mkdir(parents=True)
        (tmp_path / "checkpoints" / update / "config.json").write_text("{}")
    (tmp_path / "checkpoints" / ".00000012.tmp").mkdir()
    assert find_folder(tmp_path) == tmp_path / "checkpoints" / "00000010"
    (tmp_path / "config.json").write_text("{}")
    assert find_folder(tmp_path) == tmp_path
