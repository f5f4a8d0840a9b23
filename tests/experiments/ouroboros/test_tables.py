"""The retrofit study's page, from whatever rows there are."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from experiments.ouroboros import tables
from experiments.ouroboros.figures import BY_DEPTH
from experiments.ouroboros.plan import CONTROLLER, FULL, HEALED, SHIFTED, STATIC, TRUNCATED
from loopwright.plot.drawing import COLOURS
from tests.experiments.results import result

pytestmark = pytest.mark.usefixtures("unlaid")
DEPTHS = (1, 2, 4, 8, 16)
LEAKING = "controller, whole sequence (leaks)"


def rows() -> list[dict]:
    """A study in which the controller's loss is 0.02 lower than static modulation's at every depth."""
    ends = {"group": "references", "system": "plain-loop"}
    found = [
        result(FULL, {1: 0.0}, **ends),
        result(TRUNCATED, {depth: 1.0 - 0.01 * depth for depth in DEPTHS}, **ends),
        result(HEALED, {1: -0.5}, **ends),
    ]
    shares, sizes = {"steps": 0.5, "kinds": 0.2, "passages": 0.3}, {"a": [[3.5]], "b": [[0.0]], "a less b": [[3.5]]}
    spoken = {"shares": shares, "size": 1.0, "sizes": sizes}
    for seed in range(2):
        found.append(result(STATIC, {depth: 0.4 + 0.01 * depth for depth in DEPTHS}, seed))
        found.append(result(CONTROLLER, {depth: 0.38 + 0.01 * depth for depth in DEPTHS}, seed, diagonals=spoken))
    leaking = result(LEAKING, dict.fromkeys(DEPTHS, 0.3))
    ends = dict.fromkeys(("loss_low", "loss_high", "gain_low", "gain_high"), [None] * 5)
    honest = {"positions": 9, "loss": [5.0] * 5, "forced": [4.0] * 5, "gain": [1.0] * 5, **ends}
    for text in leaking["texts"].values():
        text |= {"likelihood": False, "honest": honest}
    return [*found, leaking, result(SHIFTED[0], dict.fromkeys(DEPTHS, 1.5), group="others")]


def page(tmp_path: Path, found: list[dict], monkeypatch: pytest.MonkeyPatch) -> str:
    source = tmp_path / "runs.jsonl"
    source.write_text("".join(json.dumps(run) + "\n" for run in found))
    monkeypatch.setattr(sys, "argv", ["tables", str(source), str(tmp_path / "out")])
    tables.PAGE.main("about", "experiments.ouroboros.tables")
    return (tmp_path / "out" / "table.md").read_text()


def lines(text: str, *cells: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("| " + " | ".join(cells))]


def test_the_page_of_a_study_with_a_known_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = page(tmp_path, rows(), monkeypatch)
    for both in ("test", "ood"):
        told = ("−0.0200 (−0.0200 to −0.0200)", "−0.0200 to −0.0200", "−0.0200 / −0.0200", "100 %", "lower")
        assert lines(text, CONTROLLER, STATIC, both, "4", *told)
        # truncated is told at depth 1, though it happens to be better when looped
        assert lines(text, TRUNCATED, "", both, "1", "0.0 % (0.0 % to 0.0 %)")
        assert lines(text, CONTROLLER, "", both, "1", "60.6 % (60.6 % to 60.6 %)", "60.6 % / 60.6 %")  # 0.6 of 0.99
        assert lines(text, CONTROLLER, "healed", both, "1", "40.3 %")  # and of 1.49
        assert lines(text, SHIFTED[0], "", both, "1", "−51.5 %")
    assert lines(text, LEAKING, "0", "4", "5", "1", "–", "–"), "one pass, prefix by prefix, and the gain with its interval"
    assert "| 1 | 0.5 | 0.2 | 0.3 |" in lines(text, CONTROLLER, "0, 1", "5")[0], "what the diagonals vary with"
    assert "- main/gate only: seeds 0, 1, 2" in text and "- main/controller, prefix: seed 2" in text
    made = {path.name for path in (tmp_path / "out").glob("*.svg")}
    assert made == {"recovered.svg", "recovered-others.svg", "by-depth.svg", "question.svg", "diagonals.svg"}


@pytest.mark.parametrize("kept", [[], [FULL], [TRUNCATED, SHIFTED[0]], [FULL, TRUNCATED, LEAKING], [STATIC, CONTROLLER]])
def test_any_rows_make_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: list[str]) -> None:
    text = page(tmp_path, [run for run in rows() if run["label"] in kept], monkeypatch)
    assert (f"| {CONTROLLER} | {STATIC} |" in text) == (STATIC in kept)
    assert f"- references/{FULL}: seed 0" in text or FULL in kept


def test_pairs_are_of_rows_that_are_planned() -> None:
    """A name that no row has would leave its pair out of the page without a word."""
    labels = {row.label for row in tables.planned()}
    assert {label for pair in tables.PAIRS for label in pair} <= labels and set(BY_DEPTH) <= labels


def test_no_two_lines_over_depth_look_alike() -> None:
    assert len(BY_DEPTH) <= len(COLOURS)
