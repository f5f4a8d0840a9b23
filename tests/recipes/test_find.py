"""Finding a recipe."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import loopwright as lw
from loopwright.checkpoints.adapters import RECORD
from loopwright.cli.results import evaluate
from loopwright.cli.runs import recipes as show_recipes
from loopwright.data.chat import PackedChats
from loopwright.recipes import FOLDER, find, names, recipe
from loopwright.training.loop import train
from tests.data.words import TEMPLATE, save_words
from tests.generation.tiny import DENSE, WORDS, save_model
from tests.training.runs import end_of, rows_of


def test_a_path_names_a_file_and_a_word_a_shipped_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert {"demo-plain", "demo-stable", "stars-addition", "stars-ouro"} <= set(names())
    assert find("demo-plain") == FOLDER / "demo-plain.yaml" == find("recipes/demo-plain.yaml")
    (tmp_path / "demo-plain.yaml").write_text((FOLDER / "demo-plain.yaml").read_text().replace("updates: 1200", "updates: 7"))
    assert recipe("demo-plain.yaml").updates == 7 and recipe("demo-plain").updates == 1200


def test_an_unknown_word_is_refused_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'stars-addition'"):
        find("stars-additon")


@pytest.mark.parametrize("name", names())
def test_every_shipped_recipe_is_sound_in_full(name: str) -> None:
    chosen = recipe(name)
    assert chosen.about and chosen.toy and len(chosen.about) <= 132


# a retrofit healed: source, training, parts, held-out loss


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dense model with a tokenizer, and text to heal it on."""
    folder = tmp_path_factory.mktemp("healing")
    save_model(folder / "source", "ouroboros-qwen2.5-3b-tiny", **DENSE)
    for name, count in (("train", 60), ("valid", 40)):
        lines = [" ".join(WORDS[(i * 7 + j * j) % len(WORDS)] for j in range(20)) for i in range(count)]
        (folder / f"{name}.jsonl").write_text("".join(f'{{"text": "{line}"}}\n' for line in lines))
    return folder


def words(place: Path, *more: str) -> list[str]:
    """What a user says to heal a model that lies elsewhere."""
    source = place / "source"
    paths = [f"model.source={source}", f"objective.teacher={source}", f"data.tokenizer={source}"]
    paths += [f"data.files={place / 'train.jsonl'}", f"data.valid_files={place / 'valid.jsonl'}"]
    sizes = ["data.length=16", "batch=8", "validate.rows=8", "precision=fp32", "updates=4", "validate.every=2"]
    return [*paths, *sizes, *more]


# what makes each recipe fit six layers of width 64
FITTED = {
    "heal-stories260k-cpu": ["data.limit=null", "model.changes.adapters.rank=4"],
    "heal-smollm2": [
        "model.dtype=float32", "model.changes.prelude=1", "model.changes.core=2", "model.changes.coda=2",
        "model.changes.adapters=[{kind: controller, rank: 4, style: 8}, {kind: low-rank, rank: 4, stack: prelude}, "
        "{kind: low-rank, rank: 4, stack: coda}]",
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", FITTED)
@pytest.mark.slow
def test_a_retrofit_is_healed_saved_as_parts_and_measured(name: str, place: Path, tmp_path: Path) -> None:
    found = train(recipe(name, words(place, *FITTED[name])), tmp_path / "run")
    assert found.finished and (found.checkpoint / RECORD).is_file() and not (found.checkpoint / "model.safetensors").exists()
    trained = {name.split(".")[0] for name, p in found.model.named_parameters() if p.requires_grad}
    assert trained == {"adapters", "gate"}
    ids = torch.arange(9)[None]
    again = lw.load_adapters(place / "source", found.checkpoint)
    assert torch.equal(again(ids).logits, found.model(ids).logits)
    reports = evaluate(str(tmp_path / "run"), texts=[str(place / "valid.jsonl")], context=16, depths="1,2,4", honest=5)
    assert reports["valid"].depth == (1, 2, 4) and reports["valid"].likelihood and reports["valid"].unit == "document"
    assert Path(reports["valid"].source) == found.checkpoint and reports["valid"].dtype == "float32"
    if name == "heal-smollm2":
        resumed = recipe(name, words(place, *FITTED[name]))
        train(resumed, tmp_path / "run", resume=True)
        assert rows_of(tmp_path / "run") == rows_of(found) and end_of(tmp_path / "run")["update"] == "00000004"


@pytest.mark.long
def test_the_phases_of_ouroboros_go_on_from_each_other(place: Path, tmp_path: Path) -> None:
    """Fixed depth, random depth, learned halting: each loads what the one before left, and moves its own parts alone."""
    data = [f"data={{kind: text, files: {place / 'train.jsonl'}, tokenizer: {place / 'source'}, length: 16, valid: 10}}"]
    small = [
        *data,
        "updates=2",
        "batch=4",
        "accumulate=1",
        "precision=fp32",
        "validate.every=0",
        "save.every=0",
        "schedule.warmup=0",
    ]
    changes = ["model.changes.adapters={rank: 4, style: 8}", "model.changes.max_steps=6", "depth.depth=2"]
    first = train(recipe("controller-fixed", [f"model.source={place / 'source'}", *small, *changes]), tmp_path / "fixed")
    second = train(recipe("controller-random", [f"model.source={first.folder.path}", *small]), tmp_path / "random")
    third = train(
        recipe("controller-halting", [f"model.source={second.folder.path}", *small, "depth.depth=6"]), tmp_path / "halting"
    )
    models = [first.model, second.model, third.model]
    moved = [
        {n.split(".")[0] for n, p in later.named_parameters() if not torch.equal(p, before.get_parameter(n))}
        for before, later in pairwise(models)
    ]
    assert moved[0] == {"adapters", "gate", "end_norm"} and moved[1] == {"adapters", "gate", "end_norm", "halting"}


def test_a_file_cannot_pass_for_a_shipped_recipe_and_showing_executes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("evil.py").write_text("raise SystemExit('executed')")
    text = (FOLDER / "demo-stable.yaml").read_text()
    Path("demo-stable").write_text("import: evil.py\n" + text)
    Path("mine.yaml").write_text("import: evil.py\n" + text)
    assert find("demo-stable") == FOLDER / "demo-stable.yaml"
    show_recipes("mine.yaml")
    shown = capsys.readouterr().out
    assert shown.startswith("import: evil.py\n") and "updates:" in shown


# The chat recipe on a tiny model: JSON lines of messages in, a model that is measured at depths 1 to 16 out


def test_chats_are_trained_on_packed_and_measured_by_depth(tmp_path: Path) -> None:
    words = save_words(tmp_path / "words", template=TEMPLATE)
    turns = [[("user", f"{i} and one"), ("assistant", str(i + 1)), ("user", "ok"), ("assistant", "bye")] for i in range(12)]
    rows = [{"messages": [{"role": role, "content": text} for role, text in chat]} for chat in turns]
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    chosen = recipe("chat-sft", [
        f"data.files={tmp_path / 'chats.jsonl'}", f"data.tokenizer={words}", "data.valid=2", "data.length=256",
        "updates=2", "batch=4", "precision=fp32", "save.every=0", "validate.every=2", "validate.rows=2", "schedule.warmup=1",
        "model={kind: preset, name: ouro-1.4b-tiny, changes: {vocab_size: 300, max_position_embeddings: 256}}",
        "depth={kind: log-normal, mu: 0.7, sigma: 0.4, least: 1, most: 4}",
    ])  # fmt: skip
    run = lw.train(chosen, out=tmp_path / "run", progress=False)
    assert isinstance(run.splits.train, PackedChats) and len(run.splits.train) < 10
    updates = [row for row in run.log() if "loss" in row]
    assert len(updates) == 2 and all(row["jacobian"] > 0 and row["targets"] < row["tokens"] for row in updates)
    measured: Any = lw.evaluate(tmp_path / "run", depths=[1, 4, 16], splits="valid")
    assert measured["valid"].decoded == (), "chats of several answers are not decoded"
    found = measured.to_dict()["valid"]
    assert [row["depth"] for row in found] == [1, 4, 16] and all(row["loss"] > 0 for row in found)
    rows[-1]["messages"] = rows[-1]["messages"][:1]
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(ValueError, match=r"chats.jsonl:12: no message of the assistant"):
        lw.train(chosen, out=tmp_path / "other", progress=False)
