"""The tables of the page say what the rows say, and the plan names the data it is given."""

from __future__ import annotations

import json
from pathlib import Path

from experiments.exits.plan import MODELS, overrides
from experiments.exits.tables import table
from loopwright.evaluation.exits import ExitPoint, ExitReport


def point(rule: str, steps: float, excess: float) -> ExitPoint:
    return ExitPoint(rule, steps, (1.0,), 2 + excess, excess, excess, excess, 2.5)


def test_the_fewest_steps_at_equal_loss_are_told(tmp_path: Path) -> None:
    fixed = (point("depth:1", 1, 0.5), point("depth:2", 2, 0.0))
    points = (point("change:0.5", 1.2, 0.4), point("change:0.1", 1.7, 0.005), point("entropy:1", 1.1, 0.5))
    ExitReport("text", 3, 9, "row", (1, 2), fixed, points, (point("oracle:0", 1.3, -0.4),)).save(tmp_path / "text.json")
    row = {
        "benchmark": "P18 drafts", "model": "text", "depth": 8, "draft_depth": 1, "acceptance": 0.9, "cost": 1.0, "ratio": 1.61,
        "ratio_q1": 1.58, "ratio_q3": 1.65, "formula": 1.88, "of_formula": 0.86, "equal_tokens": True,
    }  # fmt: skip
    (tmp_path / "text-speed.jsonl").write_text(json.dumps(row) + "\n")
    lines = table(tmp_path).splitlines()
    assert "| text | 2 | 2.000 | 2.00 | – | 1.70 | – | – | – | – | – | 1.30 |" in lines
    assert "| text | – | 0.4950 at 1.70 | – | 0.0000 at 1.10 | – | – | – |" in lines
    assert "| text, 8 | 1 | 0.90 | 1.00 | 1.61 (1.58–1.65) | 1.88 | 0.86 | yes |" in lines
    for device, said in (("CPU aarch64, one thread", "text, 8 |"), ("NVIDIA H200", "text, 8, GPU |")):
        (tmp_path / "text-speed.jsonl").write_text(json.dumps(row | {"device": device}) + "\n")
        assert f"| {said} 1 | 0.90 |" in table(tmp_path)


def test_paths_reach_the_recipes(tmp_path: Path) -> None:
    words = overrides("gate", tmp_path / "data", tmp_path / "runs")
    assert f"model={{kind: load, source: {tmp_path / 'runs' / 'gated'}}}" in words
    assert any("corpus/train-00" in word for word in overrides("text", tmp_path, tmp_path))
    assert overrides("addition", tmp_path, tmp_path) == []
    assert set(MODELS) == {"addition", "text", "retrofit", "gated", "gate", "chats", "wide"}
