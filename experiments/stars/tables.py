"""The study's tables and figures, from its results alone.

python -m experiments.stars.tables experiments/results/stars/runs.jsonl experiments/results/stars
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from experiments.stars.plan import GROUPS
from loopwright.analysis.figures import Curve, accuracy_by_depth, length_by_depth_heatmap, radius_bars
from loopwright.analysis.figures import Radius as Bar
from loopwright.metrics.score import holds_from_to, wilson_interval
from loopwright.settings import build_kind
from loopwright.train.depth import RULES

SHOWN = (1, 2, 4, 8, 16, 32, 64, 100, 1000)
SOLVED = 0.99
MOST_LINES = 6  # of a figure; more are a grid

Runs = list[dict[str, Any]]


def read(paths: Iterable[str]) -> dict[str, dict[str, Runs]]:
    """Returns the results by group and label, in the order of the plan."""
    runs = [json.loads(line) for path in paths for line in Path(path).read_text().splitlines()]
    place = {run.name: number for number, run in enumerate(run for group in GROUPS.values() for run in group())}
    found: dict[str, dict[str, Runs]] = {}
    for run in sorted(runs, key=lambda run: place[run["name"]]):
        found.setdefault(run["group"], {}).setdefault(run["label"], []).append(run)
    for labels in found.values():
        for runs in labels.values():
            runs.sort(key=lambda run: run["seed"])
    return found


def accuracy(run: dict[str, Any]) -> dict[int, float]:
    """Returns exact match at each depth measured."""
    found = {depth: value for part in ("far", "near") for depth, value in zip(run[part]["depth"], run[part]["exact"], strict=True)}
    return {depth: value for depth, value in found.items() if value is not None}


def solved(run: dict[str, Any]) -> int | None:
    """Returns the update at which the median training depth was first right on 99 % of the validation rows."""
    median = str(build_kind(run["recipe"]["depth"], RULES).median)
    return next((update + 1 for update, seen in run["looks"] if (seen.get(median) or 0) >= SOLVED), None)


def row(label: str, runs: Runs) -> list[str]:
    """Returns one line of a table: every seed at each depth, and what the states do."""
    exact = [accuracy(run) for run in runs]
    held = [holds_from_to(values, 8, SOLVED) for values in exact]
    radius = [run["radius"]["100"] for run in runs]
    return [
        label,
        ", ".join(str(run["seed"]) for run in runs),
        ", ".join(str(solved(run) or "never") for run in runs),
        *[" / ".join(f"{100 * values[depth]:.4g}" for values in exact) for depth in SHOWN],
        ", ".join("no" if h is None else f"{h}{'+' if h == 1000 else ''}" for h in held),
        f"{sum(r['radius_mean'] for r in radius) / len(radius):.2f} (to {max(r['radius_largest'] for r in radius):.2f})",
        f"{sum(r['reading'] for r in radius) / len(radius):.3f}",
        f"{max(run['near']['change_largest'][-1] or float('nan') for run in runs):.0e}",
    ]


def table(group: dict[str, Runs]) -> str:
    """Returns a group as a Markdown table."""
    head = [
        "run",
        "seeds",
        "99 % at update",
        *map(str, SHOWN),
        "≥ 99 % from 8 to",
        "ρ at 100: mean (largest)",
        "K = 1 reading",
        "largest change at 100",
    ]
    lines = [head, ["---"] * len(head), *[row(label, runs) for label, runs in group.items()]]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n"


def curve(runs: Runs) -> Curve:
    """Returns exact match over depth, all seeds together, with Wilson's interval over their rows (not over seeds)."""
    depths = sorted(set.intersection(*[set(accuracy(run)) for run in runs]))
    means = [sum(accuracy(run)[depth] for run in runs) / len(runs) for depth in depths]
    rows = [sum(run["near" if depth <= 100 else "far"]["rows"] for run in runs) for depth in depths]
    ends = [wilson_interval(round(mean * count), count) for mean, count in zip(means, rows, strict=True)]
    return Curve(depths, means, [low for low, _ in ends], [high for _, high in ends])


def main() -> None:
    """Writes table.md and the figures."""
    *sources, target = sys.argv[1:]
    found, folder = read(sources), Path(target)
    folder.mkdir(parents=True, exist_ok=True)
    parts = [f"## {group}\n\n{table(labels)}" for group, labels in found.items()]
    (folder / "table.md").write_text(
        "# The STARS study: exact match (%) by depth, seeds side by side\n\n"
        "5,000 held-out sums to depth 100; beyond it the first 1,000 of them (all 5,000 in `target`). "
        "`python -m experiments.stars.tables` made this page.\n\n" + "\n".join(parts)
    )
    for group, labels in found.items():
        path = folder / f"{group}-by-depth.svg"
        if len(labels) <= MOST_LINES:
            accuracy_by_depth({label: curve(runs) for label, runs in labels.items()}, path=path)
        else:
            means = [[sum(accuracy(run)[depth] for run in runs) / len(runs) for depth in SHOWN] for runs in labels.values()]
            length_by_depth_heatmap(means, rows=list(labels), columns=SHOWN, path=path)
    bars = {}
    for group in ("target", "main"):
        for label, runs in found.get(group, {}).items():
            radii = [run["radius"]["100"] for run in runs]
            mean = sum(r["radius_mean"] for r in radii) / len(radii)
            bars[label] = Bar(mean, min(r["radius_least"] for r in radii), max(r["radius_largest"] for r in radii))
    radius_bars(bars, path=folder / "radius.svg")


if __name__ == "__main__":
    main()
