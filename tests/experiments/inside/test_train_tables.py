"""The training study's page and figures: drawn from results alone, models of one kind side by side, small cores first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from experiments.inside.train_plan import CONTROL, Row
from experiments.inside.train_tables import draw, page, read
from tests.analysis.summaries import dense, looped, overflowing


def run(row: Row, near: dict[str, Any]) -> dict[str, Any]:
    depths = [1] if row.label == CONTROL else [1, 4, 32]
    losses = {name: [value] * len(depths) for name, value in (("loss", 2.0), ("loss_low", 1.9), ("loss_high", 2.1))}
    return {
        "name": row.name, "label": row.label, "seed": row.seed, "layers": row.layers, "injected": row.injected,
        "parameters": 10**6, "width": 8, "updates": 2, "tokens": 64, "prompts": 3, "prompt_tokens": 6,
        "held_out": {"depth": depths, **losses},
        "start": near, "near": near, **({} if row.label == CONTROL else {"deep": near}),
    }  # fmt: skip


def runs(tmp_path: Path, near: dict[str, Any]) -> list[Any]:
    rows = [Row(CONTROL), Row("sandwich", 8), Row("sandwich", 4), Row("sandwich", 4, True), Row("bare", 4)]
    found = [run(row, dense() if row.label == CONTROL else near) for row in rows]
    (tmp_path / "runs.jsonl").write_text("\n".join(map(json.dumps, found)) + "\n")
    return list(read([str(tmp_path / "runs.jsonl")]))


def test_models_of_one_kind_stand_side_by_side_the_smallest_core_first(tmp_path: Path) -> None:
    made = draw(runs(tmp_path, looped()), tmp_path, ["no such model"])
    together = {"colsum-sandwich", "colsum-sandwich-injected", "colsum-bare", "loss-sandwich", "loss-bare"}
    assert {path.stem for path in made} == together
    svg = (tmp_path / "colsum-sandwich.svg").read_text()
    assert 0 < svg.index(">(2, 4⊗4, 2)<") < svg.index(">(2, 8⊗4, 2)<") and ">dense model<" in svg and "I<" not in svg


def test_figures_of_a_model_and_the_page(tmp_path: Path) -> None:
    found = runs(tmp_path, looped())
    made = {path.stem for path in draw(found, tmp_path, ["bare"])}
    assert {"stages-bare-4", "beyond-by-step-bare-4", "beyond-by-layer-bare-4", "rest-bare-4"} <= made
    assert "stages-sandwich-4" not in made
    text = page(found)
    assert "(2, 8⊗4, 2)" in text and "## Claims" in text and "## Beyond the trained depth" in text


def test_a_run_that_overflowed_is_told_and_drawn(tmp_path: Path) -> None:
    found = runs(tmp_path, overflowing())
    assert draw(found, tmp_path) and "Not shown: 0 % of tokens at rest" in page(found)
