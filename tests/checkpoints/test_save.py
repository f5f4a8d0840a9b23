"""Saving: model folders that are whole, and their cards."""

from __future__ import annotations

import multiprocessing
import os
import re
import resource
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

import loopwright as lw
from loopwright.checkpoints.save import check_replaceable, command_line, is_edited, model_card, put_card, without_folders
from loopwright.storage.files import read_json
from loopwright.storage.manifest import CARD, Manifest, verify
from loopwright.training.checkpoint import save_checkpoint
from tests.cases import noisy
from tests.generation.tiny import word_tokenizer


@pytest.fixture
def model() -> lw.LoopedForCausalLM:
    torch.manual_seed(0)
    return lw.build("ouro-1.4b-tiny")


def test_parents_are_made_and_nothing_is_left_beside(model: lw.LoopedForCausalLM, tmp_path: Path) -> None:
    assert lw.save(model, tmp_path / "deep" / "er") == tmp_path / "deep" / "er"
    assert {path.name for path in (tmp_path / "deep").iterdir()} == {"er"}
    assert {"config.json", "model.safetensors"} <= {path.name for path in (tmp_path / "deep" / "er").iterdir()}
    mask = os.umask(0)
    os.umask(mask)
    assert (tmp_path / "deep" / "er").stat().st_mode & 0o777 == 0o777 & ~mask
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "deep" / "er").iterdir()} == {0o666 & ~mask}


def test_a_model_folder_is_replaced_and_other_files_stay(model: lw.LoopedForCausalLM, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    model.save_pretrained(folder, max_shard_size="20KB")
    assert (folder / "model.safetensors.index.json").exists()
    (folder / "tokenizer.json").write_text("{}")
    (folder / "notes").mkdir()
    (folder / "notes" / "a.txt").write_text("kept")
    with torch.no_grad():
        model.lm_head.weight.mul_(2)
    lw.save(model, folder)
    assert sorted(path.name for path in folder.iterdir() if path.name.startswith("model")) == ["model.safetensors"]
    assert (folder / "tokenizer.json").exists() and (folder / "notes" / "a.txt").read_text() == "kept"
    assert torch.equal(lw.load(folder).lm_head.weight, model.lm_head.weight)
    assert {path.name for path in tmp_path.iterdir()} == {"model"}


def test_other_folders_and_files_are_left_alone(model: lw.LoopedForCausalLM, tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("years of work")
    with pytest.raises(ValueError, match=r"holds files but no model .*; allowed: a new folder, an empty one, or a model folder"):
        lw.save(model, tmp_path / "thesis")
    (tmp_path / "thesis" / "config.json").write_text('{"editor": "vi"}')
    with pytest.raises(ValueError, match="holds files but no model"):
        lw.save(model, tmp_path / "thesis")
    assert (tmp_path / "thesis" / "chapter.tex").read_text() == "years of work"
    with pytest.raises(ValueError, match="is a file"):
        lw.save(model, tmp_path / "thesis" / "chapter.tex")
    (tmp_path / "empty").mkdir()
    lw.save(model, tmp_path / "empty")
    assert (tmp_path / "empty" / "model.safetensors").exists()


def test_an_interrupted_save_changes_nothing(model: lw.LoopedForCausalLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lw.save(model, tmp_path / "model")
    before = (tmp_path / "model" / "model.safetensors").read_bytes()

    def half(place: Path) -> None:
        (place / "config.json").write_text("{")
        raise OSError("disk full")

    monkeypatch.setattr(model, "save_pretrained", half)
    for name in ("model", "new"):
        with pytest.raises(OSError, match="disk full"):
            lw.save(model, tmp_path / name)
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"model"}


def test_a_manifest_is_written_and_what_stays_keeps_its_entry(model: lw.LoopedForCausalLM, tmp_path: Path) -> None:
    folder = lw.save(model, tmp_path / "model", word_tokenizer())
    first = Manifest.of(folder)
    assert first is not None and {"config.json", "model.safetensors", "tokenizer.json"} <= set(first.entries)
    assert verify(folder) == []
    lw.save(model, folder)
    assert verify(folder) == [] and set(read_json(folder / "manifest.json")["files"]) == set(first.entries)
    (folder / "tokenizer.json").write_text("{}")
    lw.save(model, folder)  # does not make good what was damaged
    assert verify(folder) != []
    lw.save(model, folder, word_tokenizer())
    assert verify(folder) == []


def test_weights_of_another_kind_do_not_stay(tmp_path: Path) -> None:
    model = noisy("relaxed-tiny")
    lw.save_adapters(model, tmp_path / "m")
    lw.save(model, tmp_path / "m")
    assert not list((tmp_path / "m").glob("adapters.*"))
    lw.save_adapters(model, tmp_path / "m")
    assert not (tmp_path / "m" / "model.safetensors").exists()


def test_a_checkpoint_is_not_replaced(model: lw.LoopedForCausalLM, tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, 1, model=model, tensors={}, state={})
    with pytest.raises(ValueError, match=r"save: .*00000001 is a checkpoint of a run; allowed: a new folder"):
        lw.save(model, folder)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_place_that_cannot_be_written_to_is_told_before_the_work(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ValueError, match="cannot be written to"):
        check_replaceable(tmp_path / "m")


def save_within(limit: int, model: lw.LoopedForCausalLM, folder: Path, said: Any) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        lw.save(model, folder)
    except OSError as error:
        said.send(f"{type(error).__name__} {error}")


def test_a_limit_on_the_size_of_files_is_one_line(tmp_path: Path) -> None:
    """`ulimit -f`: safetensors reports it in words of its own."""
    model, forks = lw.build("huginn-tiny", vocab_size=4000), multiprocessing.get_context("fork")
    here, there = forks.Pipe()
    child = forks.Process(target=save_within, args=(200_000, model, tmp_path / "m", there))
    child.start()
    child.join()
    assert here.poll()
    assert re.fullmatch(
        r"DiskFull \S+/m: a file would be larger than this process may write \(ulimit -f\) \(.* kB were to be written\); "
        r"what stood there is unharmed",
        here.recv(),
    )
    assert list(tmp_path.iterdir()) == []


def test_saving_into_the_folder_a_model_came_from(model: lw.LoopedForCausalLM, tmp_path: Path) -> None:
    lw.save(model, tmp_path / "model")
    loaded = lw.load(tmp_path / "model")
    lw.save(loaded, tmp_path / "model")
    again = lw.load(tmp_path / "model")
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_frozen_bases_come_back_frozen(tmp_path):
    model = lw.build("ouroboros-qwen2.5-3b-tiny")
    lw.save(model, tmp_path / "m")
    frozen = {name for name, p in model.named_parameters() if not p.requires_grad}
    for back in (AutoModelForCausalLM.from_pretrained(tmp_path / "m"), lw.load(tmp_path / "m")):
        assert {name for name, p in back.named_parameters() if not p.requires_grad} == frozen
    back, info = AutoModelForCausalLM.from_pretrained(tmp_path / "m", output_loading_info=True)
    assert not info["missing_keys"] and not back.adapters[0].bases.a["q_proj"].requires_grad


TEXT = model_card(lw.preset("ouro-1.4b-tiny"), sections={"A": "…"})


@pytest.mark.parametrize("name", ["ouro-1.4b-tiny", "huginn-tiny"])
def test_a_saved_model_says_what_it_is_and_chooses_no_licence(name: str, tmp_path: Path) -> None:
    model = noisy(name)
    lw.save(model, tmp_path / "m", about={"Data": "two digits"})
    text = (tmp_path / "m" / CARD).read_text()
    assert f"core × {model.config.depth}" in text and f"It runs {model.config.depth} unless told" in text
    assert "## Data\n\ntwo digits\n" in text and lw.__version__ in text
    head = yaml.safe_load(text.split("---")[1])
    assert "license" not in head and head["library_name"] == "transformers" and not is_edited(text.encode())


def test_an_edited_card_stays_and_ours_is_written_anew(tmp_path: Path) -> None:
    model, card = noisy("ouro-1.4b-tiny"), tmp_path / "m" / CARD
    lw.save(model, tmp_path / "m", about={"First": "one"})
    lw.save(model, tmp_path / "m", about={"Second": "two"})
    assert "Second" in card.read_text() and "First" not in card.read_text()
    mine = card.read_text().replace("# A looped", "# My looped")
    card.write_text(mine)
    assert verify(tmp_path / "m") == [], "a card is no part of the manifest"
    lw.save(model, tmp_path / "m", about={"Third": "three"})
    assert card.read_text() == mine and verify(tmp_path / "m") == []


@given(at=st.integers(0, 10_000), letter=st.characters(codec="utf-8"))
def test_any_changed_letter_makes_a_card_the_persons_own(at: int, letter: str) -> None:
    at = at % len(TEXT)
    changed = TEXT[:at] + letter + TEXT[at + 1 :]
    assert is_edited(changed.encode()) == (changed != TEXT)


def test_a_card_of_others_stays_also_where_it_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / CARD).write_bytes(b"\xff\xfe mine")
    (tmp_path / "new").mkdir()
    put_card(tmp_path / "new", "ours", before=tmp_path / "old")
    assert (tmp_path / "new" / CARD).read_bytes() == b"\xff\xfe mine"


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("/srv/me/my data/x.txt", "x.txt"),
        ("/srv/me/corpus/", "corpus"),
        ("/data", "data"),
        ("/", "/"),
        ("data.files=/srv/me/train-*.gz", "data.files=train-*.gz"),
        ("data.files=[/srv/me/a.gz,/srv/me/b.gz]", "data.files=[a.gz,b.gz]"),
        ("in=/srv/me/a", "in=a"),
        ('{"source": "/srv/me/a", "rank": 8}', '{"source": "a", "rank": 8}'),
        ("file:///srv/me/a", "file:a"),
        ("https://host/a/b", "https://host/a/b"),
        ("owner/name", "owner/name"),
        ("../a/b", "../a/b"),
        ("./a", "./a"),
        ("~/a/b", "~/a/b"),
        ("gate.*", "gate.*"),
    ],
)
def test_of_an_absolute_path_the_last_component_is_shown(given: str, shown: str) -> None:
    assert without_folders({"a": [given, 1, None]}) == {"a": [shown, 1, None]}
    assert command_line(["/env/bin/loopwright", given]) == shlex.join(["loopwright", shown])


def test_a_module_that_runs_is_named_as_its_package() -> None:
    assert command_line(["/env/site-packages/loopwright/__main__.py", "train"]) == "loopwright train"
