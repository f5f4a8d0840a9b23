"""`recipes` as a verb: a list at once, and a recipe that reads back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from loopwright.cli.runs import recipes
from loopwright.recipes import names
from loopwright.training.recipe import read_recipe

ROOT = Path(__file__).parents[2]


def test_the_list_names_every_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    recipes()
    printed = capsys.readouterr().out
    assert all(f" {name} " in printed for name in names())


def test_a_recipe_is_printed_so_that_it_reads_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipes("demo-stable")
    (tmp_path / "mine.yaml").write_text(capsys.readouterr().out)
    assert read_recipe(tmp_path / "mine.yaml").objective == {"kind": "every-step"}


def test_the_list_does_not_wait_for_torch() -> None:
    listed = "from loopwright.cli.runs import recipes; recipes()"
    code = f"import sys; {listed}; print('torch' in sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "demo-stable" in done.stdout and done.stderr.strip() == "False"
