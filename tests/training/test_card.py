"""The card of a checkpoint: recipe, results by depth, command; kept where it was edited."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

import loopwright as lw
from loopwright.checkpoints.save import command_line
from loopwright.storage.files import read_json, write_json
from loopwright.storage.manifest import CARD
from loopwright.storage.run import RunFolder
from loopwright.training.checkpoint import by_depth, latest_good, versions_section
from tests.training.runs import small, train


def test_a_checkpoint_says_what_was_trained_and_what_was_measured(tmp_path: Path) -> None:
    run = train(small({"updates": 5}), tmp_path)
    text = (run.checkpoint / CARD).read_text()
    assert "# a test\n" in text and "5 of 5 updates" in text and "digits: 2" in text and "kind: uniform" in text
    valid = next(row for row in reversed(run.log()) if "valid" in row)["valid"]
    for depth, found in valid.items():
        assert f"| {depth} | {found['loss']:.4f} | {found['exact']:.4f} |" in text
    assert f"- command: `{command_line(shlex.split(read_json(run.folder.origin)['command']))}`" in text


def test_a_card_names_no_folder_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = lw.save(lw.build("stars-addition-tiny"), tmp_path / "base")
    monkeypatch.setattr(sys, "argv", ["/opt/env/bin/loopwright", "train", f"model.source={model}", "--out", str(tmp_path / "run")])
    run = train(small({"updates": 1, "model": {"kind": "load", "source": str(model)}}), tmp_path / "run")
    text = (run.checkpoint / CARD).read_text()
    assert "- command: `loopwright train model.source=base --out run`" in text and "source: base\n" in text
    assert str(tmp_path) not in text and "/opt" not in text


@pytest.mark.parametrize("command", ["", "loopwright 'torn", None, 5])
def test_an_edited_origin_ends_no_run(command: object, tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    write_json(run.origin, {"command": command, "loopwright": "1"})
    assert versions_section(run)["Made with"].startswith("- loopwright: `1`")


def test_an_edited_card_survives_a_resumption_and_damages_nothing(tmp_path: Path) -> None:
    run = train(small({"updates": 3}), tmp_path)
    (run.checkpoint / CARD).write_text("mine")
    assert latest_good(run.folder.checkpoints)[1] == []
    again = train(small({"updates": 3}), tmp_path, resume=True)  # saves the same update once more
    assert again.checkpoint == run.checkpoint and (run.checkpoint / CARD).read_text() == "mine"


def test_without_validation_or_origin_there_are_no_such_sections(tmp_path: Path) -> None:
    run = train(small({"updates": 1, "validate": {"every": 0}}), tmp_path)
    assert "Results by depth" not in (run.checkpoint / CARD).read_text() and versions_section(RunFolder(tmp_path / "none")) == {}


def test_depths_come_in_order_and_what_was_not_measured_is_a_dash() -> None:
    row = {"update": 9, "valid": {"16": {"loss": None, "exact": None}, "2": {"loss": 1.5, "exact": None}}}
    assert by_depth(row).splitlines()[2:] == ["| depth | loss |", "|---|---|", "| 2 | 1.5000 |", "| 16 | – |"]
