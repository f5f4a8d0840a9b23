"""Where a verb must not write it writes nothing: the root, above the working directory, among files of others. From Python too."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import loopwright as lw
from loopwright.storage.files import write_json
from loopwright.storage.run import RunFolder
from tests.cases import noisy
from tests.checkpoints.dense import source
from tests.cli.exit_codes import run
from tests.generation.tiny import save_model, word_tokenizer
from tests.training.runs import small


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A looped and a dense model."""
    folder = tmp_path_factory.mktemp("models")
    save_model(folder / "looped", "huginn-tiny", std=0.3)
    lw.save(source(), folder / "dense", word_tokenizer())
    return folder


def raised(work: Callable[[], object]) -> str:
    with pytest.raises(ValueError) as error:
        work()
    return str(error.value)


COMMANDS: dict[str, list[str]] = {
    "train": ["train", "demo-stable", "--toy", "--out", "OUT"],
    "retrofit": ["retrofit", "MODELS/dense", "OUT", "adapters.rank=4", "adapters.style=8"],
    "evaluate": ["evaluate", "MODELS/looped", "--data", "demo-stable", "--out", "OUT"],
    "evaluate a text": ["evaluate", "MODELS/looped", "--text", "MODELS/text.txt", "--out", "OUT"],
    "analyze": ["analyze", "MODELS/looped", "--prompts", "the cat sat", "--depth", "2", "--out", "OUT"],
    "bench": ["bench", "ouro-1.4b-tiny", "--depths", "1", "--out", "OUT"],
    "demo": ["demo", "--toy", "--out", "OUT"],
}
CALLS: dict[str, Callable[[str], object]] = {
    "lw.train": lambda out: lw.train(small().data_of(), out=out, progress=False),
    "lw.save": lambda out: lw.save(noisy("huginn-tiny"), out),
    "lw.save_adapters": lambda out: lw.save_adapters(noisy("asura-tiny"), out),
    "lw.export": lambda out: lw.export(noisy("ouro-1.4b-tiny"), out, family="ouro"),
    "lw.trace_prompts": lambda out: lw.trace_prompts(noisy("huginn-tiny"), [[1, 2, 3]], out, depth=2),
}
FORBIDDEN = {
    "root": ("/", "is the root of the file system"),
    "above": ("..", "is above the working directory"),
    "whole path above": ("ABOVE", "is above the working directory"),
    "link to the root": ("link", "is the root of the file system"),
    "others": ("others", "others holds "),
    "file": ("others/notes.txt", "is a file"),
}


@pytest.mark.parametrize("verb", [*COMMANDS, *CALLS])
def test_nothing_is_written_where_a_verb_must_not(
    verb: str, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    work = tmp_path / "work"
    (work / "others" / "data").mkdir(parents=True)
    (work / "others" / "notes.txt").write_text("mine")
    (work / "link").symlink_to("/")
    (models / "text.txt").write_text("the cat sat and then " * 40)
    monkeypatch.chdir(work)

    def everything() -> list[str]:
        there = sorted(f"{path} {path.lstat().st_mtime_ns}" for path in (tmp_path, *tmp_path.rglob("*")))
        return [*there, *sorted(os.listdir("/"))]

    before = everything()
    for name, (out, told) in FORBIDDEN.items():
        out = out.replace("ABOVE", str(tmp_path))
        if verb in COMMANDS:
            words = [word.replace("MODELS", str(models)).replace("OUT", out) for word in COMMANDS[verb]]
            capsys.readouterr()
            assert run(*words) == 2, name
            line = capsys.readouterr().err.strip().splitlines()[-1]
        else:
            line = raised(lambda out=out: CALLS[verb](out))  # type: ignore[misc]
        assert told in line and "allowed: a new folder, an empty one, or" in line and out in line, (name, line)
        assert everything() == before, name


def test_what_a_verb_wrote_and_what_the_owner_of_a_run_put_beside_it_is_no_hindrance(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "out")
    folder.check_out("train")
    for name in ("eval", "figures", "metrics", "traces", "traces-dense", "data", "checkpoints", ".ipynb_checkpoints"):
        (folder.path / name).mkdir(parents=True)
    for name in ("report.html", "bench.json", "bench.svg", ".gitignore"):
        (folder.path / name).touch()
    folder.check_out("evaluate")
    (folder.path / "notes.txt").touch()
    assert "evaluate: " in raised(lambda: folder.check_out("evaluate"))
    write_json(folder.origin, {"loopwright": "0.2.0"})
    folder.check_out("evaluate")
    write_json(folder.origin, {"somebody": "else"})
    assert "(notes.txt)" in raised(lambda: folder.check_out("evaluate"))


def test_a_run_goes_on_beside_notes_of_its_owner_and_none_is_begun_where_there_is_none(tmp_path: Path) -> None:
    recipe = small({"updates": 2, "validate": {"every": 0}}).data_of()
    lw.train(recipe, out=tmp_path / "run", on_update=lambda row: True, progress=False)
    (tmp_path / "run" / "notes.txt").touch()
    assert lw.train(recipe, out=tmp_path / "run", resume=True, progress=False).finished
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "notes.txt").touch()
    assert "holds no run" in raised(lambda: lw.train(recipe, out=tmp_path / "others", resume=True, progress=False))
    assert [path.name for path in (tmp_path / "others").iterdir()] == ["notes.txt"]
