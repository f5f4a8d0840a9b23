"""The table and the figure of the study from rows, and the page that quotes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from experiments.rl.figures import draw
from experiments.rl.run import RESULTS
from experiments.rl.tables import gains, table


def row(arm: str, seed: int, exact: list[float]) -> dict[str, Any]:
    valid = [[10, *exact], [20, *exact]]
    counts = {"updates": 20, "tokens": 1000, "targets": 300, "cpu_seconds": 12.4}
    return {"arm": arm, "seed": seed, "depth": [1, 2, 4, 8], "exact": exact, "valid": valid, **counts}


def test_means_spreads_and_gains() -> None:
    rows = [row("start", 0, [0.1, 0.2, 0.3, 0.4]), row("start", 1, [0.3] * 4), row("grpo", 0, [0.5] * 4), row("grpo", 1, [0.6] * 4)]
    lines = table(rows).splitlines()
    assert lines[2].startswith("| supervised, stopped half-way | 20.0 (10.0–30.0) | 25.0 (20.0–30.0) |")
    assert lines[3].endswith("| 55.0 (50.0–60.0) | 20 | 1,000 | 300 | 12 |") and len(lines) == 4
    assert [round(x) for x in gains(rows, "grpo")[1]] == [40, 30]
    assert "GRPO, last step, depth 8" in draw(rows)


def test_the_page_quotes_the_rows() -> None:
    rows = [json.loads(line) for line in (RESULTS / "rows.jsonl").read_text().splitlines()]
    page = (Path(__file__).parents[3] / "docs" / "objectives.md").read_text()
    assert table(rows) in page and table(rows) == (RESULTS / "table.md").read_text()
    assert sorted(r["name"] for r in rows) == sorted(
        f"{arm}-{seed}" for arm in ("start", "grpo", "rltt", "sft") for seed in range(3)
    )
    assert min(min(gains(rows, "grpo")[depth]) for depth in (4, 8)) >= 10
