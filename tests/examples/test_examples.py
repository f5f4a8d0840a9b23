"""The examples run, at test size."""

from __future__ import annotations

import ast
import json
import runpy
import sys
from pathlib import Path

import pytest

import loopwright as lw
from loopwright.training.loop import train
from tests.data.words import save_words
from tests.own_kinds import own_kinds
from tests.training.runs import small

FOLDER = Path(__file__).parents[2] / "examples"


def run_example(name: str, *arguments: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
    runpy.run_path(str(FOLDER / name), run_name="__main__")


@pytest.mark.long
def test_train_own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run_example("train_own_data.py", 2, tmp_path / "run", monkeypatch=monkeypatch)
    assert "exact match" in capsys.readouterr().out and (tmp_path / "run" / "by-depth.svg").exists()


def test_look_inside(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run_example("look_inside.py", monkeypatch=monkeypatch)
    said = capsys.readouterr().out
    assert "step 11" in said and "of the predictions stay as they were" in said


def test_compare_depths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run = train(small({"updates": 2}), tmp_path / "run")
    run_example("compare_depths.py", run.folder.path, tmp_path / "figure.svg", monkeypatch=monkeypatch)
    said = capsys.readouterr().out
    assert "paired; 95 % intervals over" in said and (tmp_path / "figure.svg").exists()


@pytest.mark.slow
def test_retrofit_and_heal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 272}
    dense = lw.LoopedForCausalLM(lw.LoopedConfig(prelude_layers=6, core_layers=0, **sizes))
    lw.save(dense, tmp_path / "dense")
    save_words(tmp_path / "dense")
    (tmp_path / "text.jsonl").write_text('{"text": "the thing at the end of a line, there and there"}\n' * 40)
    arguments = (tmp_path / "dense", tmp_path / "text.jsonl", 2, tmp_path / "run")
    run_example("retrofit_and_heal.py", *arguments, monkeypatch=monkeypatch)
    said = capsys.readouterr().out
    assert said.count("bits per byte") == 2 and "paired; 95 % intervals over" in said


NOTEBOOKS = runpy.run_path(str(FOLDER / "notebooks.py"))


@pytest.mark.parametrize("name", NOTEBOOKS["ENDINGS"])
def test_a_notebook_is_made_from_its_script(name: str) -> None:
    assert (FOLDER / f"{name}.ipynb").read_text() == NOTEBOOKS["notebook"](name), "run python examples/notebooks.py"


@pytest.mark.parametrize("name", NOTEBOOKS["ENDINGS"])
def test_a_notebook_begins_with_how_to_install_it(name: str) -> None:
    first = next(cell for cell in json.loads((FOLDER / f"{name}.ipynb").read_text())["cells"] if cell["cell_type"] == "code")
    assert all(line.startswith("#") for line in first["source"].splitlines()) and "# %pip install" in first["source"]


@pytest.mark.slow  # as long as the examples take at their own size
@pytest.mark.parametrize("name", NOTEBOOKS["ENDINGS"])
def test_the_cells_of_a_notebook_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # an empty folder: a notebook is read by itself
    cells = [cell["source"] for cell in json.loads((FOLDER / f"{name}.ipynb").read_text())["cells"] if cell["cell_type"] == "code"]
    space: dict[str, object] = {"__name__": "__main__"}
    with own_kinds():
        for cell in cells[:-1]:
            exec(cell.replace("UPDATES = 600", "UPDATES = 20"), space)
        *body, last = ast.parse(cells[-1]).body
        exec(compile(ast.Module(body, []), name, "exec"), space)
        shown = eval(compile(ast.Expression(last.value), name, "eval"), space)  # type: ignore[attr-defined]
    assert (tmp_path / "runs" / ("reverse" if name == "train_own_data" else "own-parts") / "log.jsonl").is_file()
    assert name == "train_own_data" or shown.startswith("abcd"), shown
