"""Rows as they are kept: what the passages of a text are is said once, and every row has it again when it is read."""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from experiments.kept import PASSAGES, main, said_once, whole, write
from experiments.pages import last_of_each


def text(passages: int = 2, fingerprint: str = "one") -> dict[str, Any]:
    return {
        "fingerprint": fingerprint,
        "losses": [[1.5] * passages],
        "document_of": [*range(passages)],
        "targets_of": [3] * passages,
    }


def rows() -> list[dict[str, Any]]:
    without = {"fingerprint": "one", "loss": [2.0]}  # of no single passage: it has nothing to say of them, before and after
    return [
        {"name": "a", "texts": {"test": text(), "ood": text(3, "other")}},
        {"name": "b", "texts": {"test": text(4)}},  # the same text cut in another way keeps its own
        {"name": "c", "texts": {"test": without}},
        {"name": "d", "texts": {"test": text()}, "stopped": {"texts": {"test": text()}}},
        {"name": "e", "deep": {"by_place": [1.0]}},
        {"name": "f", "held_out": text(), "deep": {"texts": {"test": text()}, "exits": {}}},
    ]


def test_what_passages_are_is_said_once_and_read_for_all(tmp_path: Path) -> None:
    kept = [*said_once(rows())]
    told = [{place for place, held in row.get("texts", {}).items() if held.keys() >= {*PASSAGES}} for row in kept]
    assert told == [{"test", "ood"}, {"test"}, set(), set(), set(), set()]
    later = (kept[3]["stopped"]["texts"]["test"], kept[5]["held_out"], kept[5]["deep"]["texts"]["test"])
    assert not any("document_of" in held for held in later)
    assert [*whole(copy.deepcopy(kept))] == rows()
    write(tmp_path / "kept.jsonl", rows())
    assert [*last_of_each(tmp_path / "kept.jsonl").values()] == rows()


def test_a_later_row_takes_the_place_of_an_earlier_one_that_spoke_for_others(tmp_path: Path) -> None:
    out, new = tmp_path / "kept.jsonl", tmp_path / "new.jsonl"
    write(out, rows())
    new.write_text(json.dumps({"name": "a", "new": True}) + "\n")
    write(out, last_of_each(out, new).values())
    found = last_of_each(out)
    assert found["a"] == {"name": "a", "new": True} and found["d"] == rows()[3]


def test_a_file_whose_names_repeat_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trials = tmp_path / "trials.jsonl"
    trials.write_text('{"name": "a", "loss": 1}\n{"name": "a", "loss": 2}\n')
    monkeypatch.setattr(sys, "argv", ["kept", str(trials)])
    with pytest.raises(SystemExit, match="'a' names several rows"):
        main()
    assert len(trials.read_text().splitlines()) == 2
