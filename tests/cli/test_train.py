"""`train` as a verb."""

from __future__ import annotations

from pathlib import Path

import pytest

import loopwright as lw
from loopwright.cli.runs import train
from loopwright.training.recipe import read_recipe
from loopwright.training.report import read_log


def test_a_toy_run_goes_where_it_says_and_says_what_is_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    train("demo-plain", ["seed=3"], toy=True)
    folder = Path("runs/demo-plain-toy")
    assert [row["update"] for row in read_log(folder / "log.jsonl") if "loss" in row] == [0, 1]
    assert lw.load(folder / "checkpoints" / "00000002").config.hidden_size == 64
    assert read_recipe(folder / "recipe.yaml").seed == 3
    printed = capsys.readouterr()
    assert f"loopwright evaluate {folder}" in printed.out and "saved in" in printed.err
    with pytest.raises(ValueError, match="--resume continues it"):
        train("demo-plain", ["seed=3"], toy=True)
    with pytest.raises(ValueError, match=r"differs in seed \(3 there, 4 here\)"):
        train("demo-plain", ["seed=4"], toy=True, resume=True)
    train("demo-plain", ["seed=3"], toy=True, resume=True)  # nothing left to do
