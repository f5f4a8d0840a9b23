"""The table of the page, from the rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

WORDS = {
    "start": "supervised, stopped half-way",
    "grpo": "+ GRPO, last step",
    "rltt": "+ GRPO, all steps (RLTT)",
    "sft": "+ supervised",
}


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns the markdown table: exact match in per cent by depth, mean over seeds (least–largest), and the cost."""
    depths = rows[0]["depth"]
    head = f"| | {' | '.join(f'depth {depth}' for depth in depths)} | updates | tokens | of them predicted | s (CPU) |"
    lines = [head, "|" + "---|" * (len(depths) + 5)]
    for arm, words in WORDS.items():
        own = [row for row in rows if row["arm"] == arm]
        if own:
            cells = [_spread([100 * row["exact"][place] for row in own]) for place in range(len(depths))]
            known = [[row[key] for row in own if row[key] is not None] for key in ("updates", "tokens", "targets", "cpu_seconds")]
            cells += [f"{mean(values):,.0f}" if values else "–" for values in known]
            lines.append(f"| {words} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def gains(rows: Sequence[Mapping[str, Any]], arm: str) -> dict[int, list[float]]:
    """Returns, by depth, how many points each seed of an arm gained over its start."""
    start = {row["seed"]: row for row in rows if row["arm"] == "start"}
    own = [row for row in rows if row["arm"] == arm]
    return {
        depth: [100 * (row["exact"][place] - start[row["seed"]]["exact"][place]) for row in own]
        for place, depth in enumerate(rows[0]["depth"])
    }


def _spread(values: Sequence[float]) -> str:
    return f"{mean(values):.1f} ({min(values):.1f}–{max(values):.1f})"
