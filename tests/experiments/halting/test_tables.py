"""Verdicts, tables and figures of rows that were made up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments.halting.figures import draw
from experiments.halting.tables import at_depth, difference, models_of, read_rows, table

GRID = [1 + 0.5 * i for i in range(23)]


def seed_of(seed: int, gap: float, spread: float = 0.0) -> dict[str, Any]:
    """A model whose learned rule has this loss above its thresholds, more or less by seed and block of rows."""

    def rule(loss: float) -> dict[str, Any]:
        blocks = [loss + 0.001 * (i % 3) for i in range(50)]
        return {
            "loss": [loss] * 23, "exact": [0.5] * 23, "blocks": blocks, "at_target": loss, "exact_at_target": 0.5, "limit": 0.1,
            "mean_steps": 2.0, "by_need": [None, 1.0, 2.0], "r": 0.5, "own": [2.0, loss, 0.5],
        }  # fmt: skip

    names = ("change", "divergence", "entropy", "stable")
    rules = {"gate": rule(1.0 + gap + spread * (seed - 1)), **{name: rule(1.0) for name in names}}
    return {
        "grid": GRID, "target": 2.0, "needs": [0, 30, 30],
        "fixed": {"loss": [1.0 + 0.1 * i for i in range(12)], "exact": [0.5] * 12, "blocks": [1.1] * 50, "at_target": 1.1},
        "oracle": {"mean_steps": 2.0, "loss": 0.75, "by_need": [None, 1.0, 2.0]}, "rules": rules,
    }  # fmt: skip


def rows_of(gap: float, spread: float, task: str = "columns") -> list[dict[str, Any]]:
    made = [
        {"task": task, "seed": seed, "stages": dict.fromkeys(("joint", "gate"), seed_of(seed, gap, spread))} for seed in range(3)
    ]
    return [{**row, "arm": arm} for row in made for arm in ("plain", "ouro")]


@pytest.mark.parametrize(
    ("gap", "spread", "verdict"),
    [(-0.1, 0.01, "learned is better"), (0.1, 0.01, "change is better"), (-0.1, 0.1, "no"), (0.0, 0.0, "no")],
)
def test_a_difference_is_decided_where_both_intervals_leave_zero_out(gap: float, spread: float, verdict: str) -> None:
    seeds = models_of(rows_of(gap, spread), "columns")["Ouro, first stage"]
    found = difference(seeds, "change")
    assert found is not None and found["verdict"] == verdict
    assert found["each"] == pytest.approx([gap - spread, gap, gap + spread])


def test_a_rule_that_cannot_have_the_mean_depth_is_not_compared() -> None:
    rows = rows_of(0.1, 0.0)
    del rows[0]["stages"]["gate"]["rules"]["stable"]["blocks"]
    assert difference(models_of(rows, "columns")["every-step, gate after"], "stable") is None
    assert "not reached" in table(rows)


def test_tables_and_figures_come_out(tmp_path: Path) -> None:
    rows = rows_of(-0.1, 0.01)
    text = table(rows)
    assert "learned is better" in text and "## columns" in text and "**-0.1000** (" in text
    assert all("<svg" in drawing for drawing in draw(rows).values()) and read_rows(tmp_path / "none.jsonl") == []


def test_text_is_told_by_its_loss_beside_fixed_depths_and_the_oracle() -> None:
    rows = rows_of(-0.1, 0.01, "text")
    text = table(rows)
    assert "## text" in text and "0.7500 (–)" in text and "| Ouro, first stage | fixed | 1.0500 | 1.1000 |" in text
    assert "| Ouro, first stage | fixed | **-0.2000** (" in text and set(draw(rows)) == {"text-needs", "text-depth"}


def test_between_two_fixed_depths_losses_lie_on_the_line() -> None:
    assert at_depth(seed_of(0, 0.0), "fixed", 2.5, "loss") == pytest.approx(1.15)
