"""The table by depth, from the rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

WORDS = {
    "heal": "healed, no chats", "fixed": "chats at depth 4", "random": "chats, random depth",
    "stars": "chats, random depth, Jacobian penalty",
}  # fmt: skip


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns the loss of the held-out answers by depth as a markdown table, with the spectral radius and the cost."""
    depths = rows[0]["depth"]
    lines = [f"| answer loss at depth | {' | '.join(map(str, depths))} | ρ | updates | s |", "|" + "---|" * (len(depths) + 4)]
    for row in rows:
        radius = "–" if row["radius"] is None else f"{row['radius']:.2f}"
        cells = [*(f"{loss:.3f}" for loss in row["loss"]), radius, str(row["updates"]), f"{row['seconds']:.0f}"]
        lines.append(f"| {WORDS[row['name']]} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
