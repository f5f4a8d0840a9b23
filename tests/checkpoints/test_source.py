"""What opens: folders, runs and their checkpoints, hub ids, presets, tokenizers; and what is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import huggingface_hub
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

import loopwright as lw
from loopwright.checkpoints.source import Source
from loopwright.storage.manifest import Damaged
from loopwright.training.checkpoint import save_checkpoint
from tests.cases import golden_folders, noisy
from tests.checkpoints.parity import folder_copy

GOLDEN = golden_folders("ouro-gqa")[0]


def test_a_folder_is_itself(tmp_path: Path) -> None:
    folder = folder_copy(GOLDEN, tmp_path / "a")
    assert Source(folder).folder == folder == Source(str(folder)).folder and not Source(folder).has_manifest


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


def test_a_folder_wins_over_a_preset_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Source("huginn").is_preset and Source("huginn-tiny").is_preset
    (tmp_path / "huginn").mkdir()
    assert not Source("huginn").is_preset
    assert not Source("owner/name").is_preset
    with pytest.raises(ValueError, match="did you mean 'asura-tiny'"):
        _ = Source("asure-tiny").is_preset


def test_where_weights_are_needed_presets_are_neither_taken_nor_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    where = r"; allowed: the folder of a model or a run, or a hub id \(owner/name\)$"
    for name in ("huginn", "huginn-tiny"):
        with pytest.raises(ValueError, match=f"^verb: {name!r} is a preset, which has no trained weights{where}"):
            Source(name).need_weights("verb")
    with pytest.raises(ValueError, match=f"^verb: 'nothere' is no folder{where}"):
        Source("nothere").need_weights("verb")
    (tmp_path / "huginn").mkdir()
    for name in ("huginn", "owner/name", "./nothere"):  # what stands there, or does not, is told when it is opened
        Source(name).need_weights("verb")


# runs and their checkpoints


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Three checkpoints, each with a head of its own, the second the best."""
    model = noisy("stars-addition-tiny")
    for update in (20, 40, 60):
        with torch.no_grad():
            model.lm_head.weight.fill_(update)
        folder = tmp_path / "run" / "checkpoints"
        save_checkpoint(folder, update, model=model, tensors={}, state={}, best=None if update == 20 else 40)
    return tmp_path / "run"


def opened(source: Source | Path) -> int:
    """Which update a model is of; what is passed over must be told."""
    source = source if isinstance(source, Source) else Source(source)
    return int(source.model().lm_head.weight[0, 0])


def test_a_run_opens_at_its_newest_checkpoint_its_best_or_one_by_number(run: Path) -> None:
    assert opened(run) == 60 and Source(run).folder == run / "checkpoints" / "00000060" and Source(run).notes == []
    assert opened(Source(run, checkpoint="best")) == opened(Source(run, checkpoint="40")) == 40
    assert opened(run / "checkpoints" / "00000020") == 20
    with pytest.raises(FileNotFoundError, match="there is no checkpoint of update 4"):
        opened(Source(run, checkpoint="4"))
    with pytest.raises(ValueError, match="'first'; allowed: last, best, or the number of an update"):
        Source(run, checkpoint="first")
    shutil.rmtree(run / "checkpoints" / "00000040")
    shutil.rmtree(run / "checkpoints" / "00000060")
    with pytest.raises(ValueError, match="no validation has chosen a best checkpoint; allowed: last"):
        opened(Source(run, checkpoint="best"))
    with pytest.raises(ValueError, match=r"checkpoint: best is asked for, and .* is no run"):
        Source(lw.save(lw.build("huginn-tiny"), run.parent / "m"), checkpoint="best")
    shutil.rmtree(run / "checkpoints" / "00000020")
    with pytest.raises(FileNotFoundError, match="checkpoints: there is no checkpoint"):
        lw.load(run)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "manifest.json"])
@pytest.mark.parametrize("how", ["missing", "flipped", "short"])
def test_a_damaged_checkpoint_is_passed_over_with_a_warning_and_refused_where_it_is_named(run: Path, name: str, how: str) -> None:
    newest = run / "checkpoints" / "00000060"
    content = bytearray((newest / name).read_bytes())
    (newest / name).unlink()
    content[80 if name == "manifest.json" else -20] ^= 1  # of a manifest: the sum of config.json
    if how != "missing":
        (newest / name).write_bytes(content if how == "flipped" else content[:-30])
    named = "config.json" if (name, how) == ("manifest.json", "flipped") else name  # whichever of the two is wrong
    with pytest.warns(UserWarning, match=f"00000060/{named}: .*; .*/00000040 is used instead") as caught:
        model = lw.load(run)
    assert int(model.lm_head.weight[0, 0]) == 40 and len(caught) == 1
    for source in (Source(newest), Source(run, checkpoint="60")):
        with pytest.raises(Damaged, match=f"00000060/{named}: .*; the checkpoint is damaged: take another one of "):
            source.model()


def test_where_every_checkpoint_is_damaged_each_is_named(run: Path) -> None:
    for folder in (run / "checkpoints").iterdir():
        (folder / "config.json").unlink()
    with pytest.raises(Damaged, match=r"none of the 3 checkpoints is whole: .*60/config.json: missing; .*40/.*; .*20/"):
        lw.load(run)


def test_a_model_does_not_wait_for_an_optimiser_that_it_does_not_read(run: Path) -> None:
    folder = save_checkpoint(
        run / "checkpoints", 80, model=noisy("stars-addition-tiny"), tensors={"optimizer": {"x": torch.ones(4)}}, state={}
    )
    (folder / "optimizer.safetensors").unlink()
    assert Source(run).folder == folder and Source(run).model() and Source(run).notes == []


def test_the_whole_one_of_two_that_stand_for_one_update_is_read(run: Path) -> None:
    newest = run / "checkpoints" / "00000060"
    shutil.copytree(run / "checkpoints" / "00000040", newest.with_name("00000060.replaced"))
    assert opened(run) == 60 and Source(run).notes == []
    (newest / "model.safetensors").unlink()
    source = Source(run)
    assert opened(source) == 40 and "00000060.replaced is used instead" in source.notes[0]
    shutil.rmtree(newest)  # killed between the two renames of a system that cannot exchange folders
    source = Source(run)
    assert opened(source) == 40 and source.folder.name == "00000060.replaced" and source.notes == []
    assert opened(newest) == 40


def test_a_run_folder_with_a_model_of_its_own_is_that_model(run: Path) -> None:
    for path in (run / "checkpoints" / "00000020").iterdir():
        if path.name != "state.json":
            shutil.copy(path, run / path.name)
    assert opened(run) == 20 and Source(run).run is None
    (run / "recipe.yaml").write_text("model: {kind: preset}")
    assert opened(run) == 60 and Source(run).recipe == {"model": {"kind": "preset"}}
    for wrong in ("[1, 2]", "data: 3"):
        (run / "recipe.yaml").write_text(wrong)
        with pytest.raises(ValueError, match="is no recipe of a run; put it back"):
            _ = Source(run).recipe


# what is local and what is on the hub


def test_a_missing_folder_beside_others_is_not_asked_of_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, allow_patterns: (asked.append(name), str(GOLDEN))[1])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sv").mkdir()
    line = r"^sv/m: there is no such folder; sv is a folder here, so the hub is not asked \(hf://sv/m asks it\)$"
    for opener in (lw.load, lw.tokenizer):
        with pytest.raises(FileNotFoundError, match=line):
            opener("sv/m")
    with pytest.raises(FileNotFoundError, match="gpt9: there is no such folder, and it is not a hub id"):
        lw.load("gpt9")
    assert asked == []
    assert lw.load("hf://sv/m").config.core_layers == 3 and asked == ["sv/m"]
    lw.load("other/m")
    assert asked == ["sv/m", "other/m"]


def test_a_folder_whose_replacement_was_killed_is_found_beside_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lw.save(noisy("huginn-tiny"), "sv/m")
    (tmp_path / "sv" / "m").rename(tmp_path / "sv" / "m.replaced")
    assert lw.load("sv/m").config.core_layers == noisy("huginn-tiny").config.core_layers
    lw.save(noisy("huginn-tiny"), "sv/m")
    assert [path.name for path in (tmp_path / "sv").iterdir()] == ["m"]


def test_a_preset_has_no_weights_and_a_user_without_a_home_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"huginn: is a preset, which has no trained weights \(lw.build makes one"):
        lw.load("huginn")
    assert Source("huginn-tiny").config.to_dict() == lw.preset("huginn-tiny").to_dict()
    with pytest.raises(FileNotFoundError, match="~nosuchuser/x: there is no such folder"):
        lw.load("~nosuchuser/x")
