"""Pages of results: order, what is missing, and numbers as they are told."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from experiments.pages import asked_tables, by_label, missing_part, not_run, number, percent, results, signed, table, words


@dataclass(frozen=True)
class Planned:
    name: str
    kind: str = ""


PLAN = [Planned(f"main/{label}/{seed}") for label in "ab" for seed in (0, 1)]


def write(path: Path, *names: str) -> str:
    lines = [json.dumps({"name": name, "label": name.split("/")[1], "seed": int(name[-1])}) for name in names]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def test_results_come_in_the_plans_order(tmp_path: Path) -> None:
    paths = [write(tmp_path / "1", "old/z/0", "main/b/1"), write(tmp_path / "2", "main/a/1", "main/a/0")]
    found = results(paths, PLAN)
    assert [run["name"] for run in found] == ["main/a/0", "main/a/1", "main/b/1", "old/z/0"]
    assert [run["seed"] for run in by_label(reversed(found))["a"]] == [0, 1]
    assert not_run(found, PLAN) == ["main/b: seed 0"] and not_run([], PLAN) == ["main/a: seeds 0, 1", "main/b: seeds 0, 1"]
    assert missing_part(found, PLAN)[1] == "- main/b: seed 0"
    assert missing_part(found, PLAN[:2])[1] == "All rows of the plan were run."


def test_a_run_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'main/a/0' is there 2 times; allowed: once"):
        results([write(tmp_path / "1", "main/a/0"), write(tmp_path / "2", "main/a/0")], PLAN)


def test_numbers_as_they_are_told() -> None:
    assert (number(1.23456), number(None), number(math.inf)) == ("1.235", "–", "–")
    assert signed(-0.01, -0.02, 0.005) == "−0.0100 (−0.0200 to +0.0050)"
    assert (percent(-0.068), percent(None), percent(0.5, 0)) == ("−6.8 %", "–", "50 %")
    assert (words([1]), words([1, 2]), words([1, 2, 4])) == ("1", "1 and 2", "1, 2 and 4")
    assert table(["a"], [["1"]]) == "| a |\n| --- |\n| 1 |" and table(["a"], []) == "No row of this table was run."


def test_tables_are_asked_for_by_files_of_rows_and_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, folder = write(tmp_path / "runs.jsonl", "main/a/0"), tmp_path / "page"
    monkeypatch.setattr(sys, "argv", ["tables", str(tmp_path / "none.jsonl"), str(folder)])
    with pytest.raises(SystemExit):
        asked_tables("about")
    assert "none.jsonl: there is no such file of rows" in capsys.readouterr().err and not folder.exists()
    monkeypatch.setattr(sys, "argv", ["tables", rows, str(folder)])
    assert asked_tables("about") == ([rows], folder) and folder.is_dir()
