"""What a run is made of: it goes on with the same or not at all, and all processes of a run are made of the same."""

from __future__ import annotations

import json
import linecache
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import loopwright as lw
from loopwright import registry as imports
from loopwright.data.text import HubRows
from loopwright.model.parts.injection import INJECTIONS
from loopwright.storage.files import read_json
from loopwright.storage.manifest import MANIFEST
from loopwright.training import checkpoint as resume
from loopwright.training.checkpoint import digest_of_files, digest_of_model
from loopwright.training.grpo import Grpo
from loopwright.training.loop import train
from loopwright.training.report import Objects, Silent
from tests.cases import noisy
from tests.data.words import TEMPLATE, save_words
from tests.training.runs import Act, Turn, interrupt, rows_of, small
from tests.training.test_world_size import processes

QUICK: dict[str, Any] = {"updates": 2, "validate": {"every": 0}, "save": {"best": False}}
# a setting that the last process was started with, and what the line says of it
DIFFERENT: dict[str, tuple[dict[str, Any], str]] = {
    "rate": ({"optim": {"lr": 0.1}}, "optim.lr is 0.003 in rank 0, 0.1 in rank 1"),
    "seed": ({"seed": 3}, "seed is 0 in rank 0, 3 in rank 1"),
    "depth": ({"depth": {"most": 3}}, "depth.most is 4 in rank 0, 3 in rank 1"),
    "batch": ({"batch": 4}, "batch is 8 in rank 0, 4 in rank 1"),
    "clip": ({"clip": None}, "clip is 1.0 in rank 0, not there in rank 1"),
    "validation": ({"validate": {"every": 1}}, "validate.every is 0 in rank 0, 1 in rank 1"),
    "saves": ({"save": {"every": 1}}, "save.every is 0 in rank 0, 1 in rank 1"),
    "updates": ({"updates": 3}, "updates is 2 in rank 0, 3 in rank 1"),
    "precision": ({"precision": "bf16"}, "precision is 'fp32' in rank 0, 'bf16' in rank 1"),
    "objective": ({"objective": {"kind": "every-step"}}, "objective.kind is 'final' in rank 0, 'every-step' in rank 1"),
    "model": ({"model": {"changes": {"dropout": 0.1}}}, "model.changes.dropout is not there in rank 0, 0.1 in rank 1"),
    "two": ({"seed": 3, "batch": 4}, "batch is 8 in rank 0, 4 in rank 1; seed is 0 in rank 0, 3 in rank 1"),
}  # fmt: skip


def other(*given: Any) -> str:
    return "other"


def other_manifest(paths: Iterable[Path]) -> str:
    """Another digest of a checkpoint's manifest; that of all other files is what it is."""
    held = list(paths)
    return "other" if any(path.name == MANIFEST for path in held) else digest_of_files(held)


@pytest.mark.long
def test_processes_that_differ_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    """All in one pair of processes, since starting them is what costs; at the end, one run in which they do not."""
    for rank in range(2):
        (tmp_path / f"rank-{rank}").mkdir()
        text = "\n\n".join(f"one two three {rank * n}" * 9 for n in range(40))
        (tmp_path / f"rank-{rank}" / "text.txt").write_text(text)
    save_words(tmp_path / "words")
    data = {
        "kind": "text",
        "files": "text.txt",
        "separator": "\n\n",
        "tokenizer": str(tmp_path / "words"),
        "length": 16,
        "valid": 2,
    }
    of_text = small(QUICK, {"data": data, "model": {"changes": {"vocab_size": 270}}})
    plain, module = small(QUICK), "loopwright.training.checkpoint"
    turns = [Turn(name, plain, other=small(QUICK, change), fails=words) for name, (change, words) in DIFFERENT.items()]
    turns += [
        Turn("version", plain, attributes={f"{module}.VERSION": "9.9"}, fails="version of.loopwright is '0."),
        Turn("code", plain, attributes={f"{module}._code": other}, fails="the code of loopwright is "),
        Turn("shards", plain, shards=True, other=small(QUICK, {"seed": 1}), fails="seed is 0 in rank 0, 1 in rank 1"),
        Turn("data", of_text, fails="train.source is "),
        Turn("alike", plain),
        Turn("alike", plain, resume=True, attributes={f"{module}.digest_of_files": other_manifest}, fails="the checkpoint is "),
        Turn("alike", plain, resume=True),
    ]
    assert processes(tmp_path, turns, 2) == [0, 0]
    assert len(rows_of(tmp_path / "alike")) == 2
    assert not [turn.name for turn in turns[:-4] if (tmp_path / turn.name).exists()]
    assert not (tmp_path / "data" / "checkpoints").exists() and not (tmp_path / "data" / "recipe.yaml").exists()


# going on


def text_run(folder: Path, **options: Any) -> Any:
    """The recipe of a run on text that lies in a folder, with a tokenizer that lies there too."""
    if not (folder / "text.txt").exists():
        (folder / "text.txt").write_text("\n\n".join(f"one two three {n}" * 9 for n in range(40)))
        (folder / "valid.txt").write_text("\n\n".join(f"four five {n}" * 9 for n in range(9)))
        save_words(folder / "words", template=TEMPLATE)
    plain = {"kind": "text", "separator": "\n\n", "length": 16}
    files = {"files": str(folder / "text.txt"), "valid_files": str(folder / "valid.txt"), "tokenizer": str(folder / "words")}
    changes = {"data": {**plain, **files, **options}, "model": {"changes": {"vocab_size": 270}}, "validate": {"every": 0}}
    return small(changes, {"save": {"best": False}})


def chat_run(folder: Path, **options: Any) -> Any:
    text_run(folder)
    rows = [{"question": f"what is {n}", "answer": f"it is {n}"} for n in range(40)]
    (folder / "rows.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    (folder / "template.jinja").write_text(TEMPLATE)
    data = {"kind": "chat", "files": str(folder / "rows.jsonl"), "tokenizer": str(folder / "words"), "length": 64, "valid": 4}
    changes = {"data": {**data, **options}, "model": {"changes": {"vocab_size": 270}}, "validate": {"every": 0}}
    return small(changes, {"save": {"best": False}})


def edited(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


MERGE = ',\n      [\n        "th",\n        "e"\n      ]'
TEMPLATES = r"train: the chat template \(data.template\)"
FILES = "train: what data.files or data.dataset hold"
CHANGES: dict[str, tuple[Any, dict[str, Any], str, str, str, str]] = {
    "text": (text_run, {}, "text.txt", "two", "six", FILES),
    "held-out text": (text_run, {}, "valid.txt", "four", "nine", "valid: what data.files or data.dataset hold"),
    "tokenizer": (text_run, {}, "words/tokenizer.json", MERGE, "", r"train: the tokenizer \(data.tokenizer\)"),
    "rows": (chat_run, {}, "rows.jsonl", "it is 7", "it is 9", FILES),
    "packed rows": (chat_run, {"packed": True}, "rows.jsonl", "it is 7", "it is 9", FILES),
    "own template": (chat_run, {}, "words/chat_template.jinja", "<|im_end|>", "", TEMPLATES),
    "template": (chat_run, {"template": "TEMPLATE"}, "template.jinja", "<|im_end|>", "", TEMPLATES),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*is tokenised anew")
@pytest.mark.parametrize("name", CHANGES)
def test_a_run_whose_files_changed_does_not_go_on(tmp_path: Path, name: str) -> None:
    make, options, file, old, new, told = CHANGES[name]
    chosen = make(tmp_path, **{key: str(tmp_path / "template.jinja") if key == "template" else x for key, x in options.items()})
    train(chosen, tmp_path / "run", reporter=Act(3, interrupt))
    log = (tmp_path / "run" / "log.jsonl").read_bytes()
    kept = (tmp_path / file).read_bytes()
    edited(tmp_path / file, old, new)
    with pytest.raises(ValueError, match=rf"^resume: {told} changed since .*00000003 was saved.*; put it back as it was, or"):
        train(chosen, tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "log.jsonl").read_bytes() == log
    (tmp_path / file).write_bytes(kept)
    assert train(chosen, tmp_path / "run", resume=True).finished


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*is tokenised anew")
def test_a_folder_of_records_that_changed_is_refused_and_kept_tokens_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a hub id stands what the hub has: a run reads it once, and goes on with the tokens that it kept."""
    text_run(tmp_path)
    data = {"kind": "hub", "dataset": str(tmp_path / "records"), "tokenizer": str(tmp_path / "words"), "length": 16, "valid": 2}
    chosen = small({"data": data, "model": {"changes": {"vocab_size": 270}}, "validate": {"every": 0}, "save": {"best": False}})
    there = [f"one two three {n}" * 9 for n in range(40)]

    monkeypatch.setattr(HubRows, "__iter__", lambda self: ((f"row {n}", {"text": text}) for n, text in enumerate(there)))
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "train.jsonl").write_text("1")
    train(chosen, tmp_path / "run", reporter=Act(3, interrupt))
    shutil.copytree(tmp_path / "run", tmp_path / "again")
    whole = train(chosen, tmp_path / "whole")

    (tmp_path / "records" / "train.jsonl").write_text("2")
    with pytest.raises(ValueError, match=rf"{FILES} changed"):
        train(chosen, tmp_path / "run", resume=True)

    (tmp_path / "records" / "train.jsonl").write_text("1")
    there[:] = [text.replace("two", "six") for text in there]  # another revision behind the same name
    assert rows_of(train(chosen, tmp_path / "again", resume=True)) == rows_of(whole)
    shutil.rmtree(tmp_path / "run" / "data")
    with pytest.raises(ValueError, match=r"resume: train: its rows changed since"):
        train(chosen, tmp_path / "run", resume=True)


PART = """
import loopwright as lw
from loopwright.model.parts.injection import Injection

@lw.register("injection", "{name}")
class Scaled(Injection):
    def __init__(self, config):
        super().__init__()

    def forward(self, s, e, step):
        return s + {scale} * e
"""


@pytest.mark.parametrize("script", [False, True])
def test_a_file_of_parts_that_changed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: bool) -> None:
    """Of a script that trains only what it registers: it must be edited to resume."""
    monkeypatch.setattr(imports, "_FILES", {})
    monkeypatch.setattr(imports, "_EXECUTED", set())
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    name = f"scaled-{script}"
    chosen = None

    def once(text: str) -> None:
        """As a process that imports it, or is it."""
        nonlocal chosen
        INJECTIONS.pop(name, None)
        imports._FILES.clear()
        imports._EXECUTED.clear()
        for module in [name for name in sys.modules if name.startswith(file.stem)]:
            del sys.modules[module]
        file.write_text(text)
        linecache.checkcache()
        if script:
            main = ModuleType("__main__")
            main.__file__ = str(file)
            monkeypatch.setitem(sys.modules, "__main__", main)
            exec(compile(text, str(file), "exec"), vars(main))
        else:
            imports.import_file(file)
        chosen = small({"model": {"changes": {"injection": {"kind": name}}}, "validate": {"every": 0}, "save": {"best": False}})

    file, text = tmp_path / f"its_own_{script}.py", PART.format(name=name, scale=0.5)
    once(text)
    assert chosen is not None
    train(chosen, tmp_path / "run", reporter=Act(3, interrupt))
    once(text.replace("0.5", "0.6"))
    with pytest.raises(ValueError, match=r"^resume: .*its_own_.*\.py, which parts came from, changed since .*put it back"):
        train(chosen, tmp_path / "run", resume=True)
    if script:
        once(text + "\nresume = True\n")
    else:
        once(text)
    file.write_text(text.replace("0.5", "0.6"))  # while it trains: the process has what it imported
    run = train(chosen, tmp_path / "run", resume=True, on_update=lambda row: row["update"] == 5)
    assert not run.finished
    once(text)
    assert train(chosen, tmp_path / "run", resume=True).finished
    INJECTIONS.pop(name)


def test_a_source_that_gives_another_model_is_refused_and_one_of_other_weights_is_gone_on_from(tmp_path: Path) -> None:
    """Weights come from the checkpoint; what the config says does not."""
    other = {"validate": {"every": 0}, "save": {"best": False}, "model": {"kind": "load", "source": str(tmp_path / "source")}}
    chosen = small(other)
    lw.save(noisy("stars-addition-tiny", injection={"kind": "add"}), tmp_path / "source")
    whole = train(chosen, tmp_path / "whole")
    train(chosen, tmp_path / "run", reporter=Act(3, interrupt))
    lw.save(noisy("stars-addition-tiny", injection={"kind": "add"}, dropout=0.5), tmp_path / "source")
    with pytest.raises(ValueError, match=r"^resume: dropout of the model's config \(0.0 then, 0.5 now\) changed since"):
        train(chosen, tmp_path / "run", resume=True)
    lw.save(noisy("stars-addition-tiny", injection={"kind": "add"}, seed=7), tmp_path / "source")
    assert rows_of(train(chosen, tmp_path / "run", resume=True)) == rows_of(whole)


def test_a_teacher_of_other_weights_is_refused(tmp_path: Path) -> None:
    chosen = small(QUICK, {"objective": {"kind": "distil", "teacher": str(tmp_path / "teacher")}, "updates": 4})
    lw.save(noisy("stars-addition-tiny"), tmp_path / "teacher")
    train(chosen, tmp_path / "run", reporter=Act(2, interrupt))
    lw.save(noisy("stars-addition-tiny", seed=7), tmp_path / "teacher")
    with pytest.raises(ValueError, match=r"^resume: the teacher of the objective changed since"):
        train(chosen, tmp_path / "run", resume=True)
    lw.save(noisy("stars-addition-tiny"), tmp_path / "teacher")
    assert train(chosen, tmp_path / "run", resume=True).finished


def test_the_model_of_the_start_that_grpo_holds_on_to_is_told() -> None:
    model, objective = lw.build("stars-addition-tiny"), Grpo("exact", beta=0.1)
    objective.prepare(model, "cpu")
    (name, kept), before = next(iter(objective.fixed_models().items())), digest_of_model(model)
    assert name == "model of the start" and digest_of_model(kept) == before
    with torch.no_grad():
        model.lm_head.weight[0, [0, 1]] = model.lm_head.weight[0, [1, 0]]  # the same numbers, elsewhere
    assert digest_of_model(model) != before == digest_of_model(kept)


class Rows:
    """Samples of somebody's own, without `made_of`."""

    def __init__(self, source: Any, places: list[int]) -> None:
        self.source, self.places = source, places

    def __len__(self) -> int:
        return len(self.places)

    def batch(self, indices: Any) -> Any:
        return self.source.batch([self.places[int(i)] for i in indices])


@pytest.mark.parametrize("own", [False, True])
def test_data_passed_from_python_that_changed_within_is_refused(tmp_path: Path, own: bool) -> None:
    rows = torch.randint(3, 12, (40, 6), generator=torch.Generator().manual_seed(0))
    chosen = small({"data": {"kind": "given"}}, {"validate": {"every": 0}, "save": {"best": False}})

    def given(rows: torch.Tensor) -> Objects:
        train: Any = Rows(lw.TokenRows(rows), list(range(40))) if own else rows
        return Objects(data=lw.splits(train, rows[:4]))

    train(chosen, tmp_path / "run", given=given(rows), reporter=Act(3, interrupt))
    changed = rows.clone()
    changed[17, 3] = 12
    with pytest.raises(ValueError, match=r"^resume: train: its rows changed since"):
        train(chosen, tmp_path / "run", given=given(changed), resume=True)
    assert train(chosen, tmp_path / "run", given=given(rows), resume=True).finished


def test_a_checkpoint_of_an_older_version_says_nothing_of_its_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen, reporter = small(QUICK, {"updates": 4}), Silent()
    train(chosen, tmp_path, reporter=Act(2, interrupt))
    monkeypatch.setattr(resume, "read_json", lambda path: {k: v for k, v in read_json(path).items() if k not in ("of", "parts")})
    assert train(chosen, tmp_path, resume=True, reporter=reporter).finished
    assert sum("that they are the same is not checked" in note for note in reporter.notes) == 1
