"""The tables of the page, from the rows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.exits.plan import MODELS
from loopwright.evaluation.exits import ExitReport

FAMILIES = ("fixed", "gate", "change", "divergence", "entropy", "stable", "lookahead:entropy", "lookahead:gate")


def table(folder: Path) -> str:
    """Returns the markdown tables: mean steps at equal loss, what rules know, drafts (P18), exits that save time (P19)."""
    return "\n".join([exits(folder), leads(folder), drafts(folder), speeds(folder)])


def exits(folder: Path) -> str:
    """Returns, for each model and rule, the fewest mean steps within 0.01 nats of full depth."""
    lines = [f"| | full depth | loss | {' | '.join(FAMILIES)} | oracle |", "|" + "---|" * (len(FAMILIES) + 4)]
    for name in MODELS:
        path = folder / f"{name}.json"
        if not path.exists():
            continue
        report = ExitReport.load(path)
        best = report.cheapest()
        cells = [f"{best[family].mean_steps:.2f}" if family in best else "–" for family in FAMILIES]
        oracle = min((p for p in report.oracle if p.excess is not None and p.excess <= 0.01), key=lambda p: p.mean_steps)
        full = report.fixed[-1]
        lines.append(f"| {name} | {report.steps} | {full.loss:.3f} | {' | '.join(cells)} | {oracle.mean_steps:.2f} |")
    return "\n".join(lines) + "\n"


def leads(folder: Path) -> str:
    """Returns, for each model and rule, the largest lead over random depths of the same shares, in nats, at its mean steps."""
    names = [family for family in FAMILIES if family != "fixed"]
    lines = [f"| | {' | '.join(names)} |", "|" + "---|" * (len(names) + 1)]
    for name in MODELS:
        path = folder / f"{name}.json"
        if not path.exists():
            continue
        cells = []
        for points in (ExitReport.load(path).families().get(family, []) for family in names):
            found = [(p.random_loss - p.loss, p.mean_steps) for p in points if p.loss is not None and p.random_loss is not None]
            cells.append("{:.4f} at {:.2f}".format(*max(found)) if found else "–")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def drafts(folder: Path) -> str:
    """Returns the table of drafts."""
    lines = ["| model, depth | draft depth | acceptance | c | speed-up | formula | of it | equal tokens |", "|" + "---|" * 8]
    for row in _rows(folder, "P18"):
        ratio = f"{row['ratio']:.2f} ({row['ratio_q1']:.2f}–{row['ratio_q3']:.2f})"
        formula, share = (f"{row[key]:.2f}" if key in row else "–" for key in ("formula", "of_formula"))
        cells = [
            f"{row['model']}, {row['depth']}{_on(row)}",
            str(row["draft_depth"]),
            f"{row['acceptance']:.2f}",
            f"{row['cost']:.2f}",
        ]
        lines.append(f"| {' | '.join([*cells, ratio, formula, share, 'yes' if row['equal_tokens'] else 'NO'])} |")
    return "\n".join(lines) + "\n"


def speeds(folder: Path) -> str:
    """Returns the table of early exits that save time."""
    lines = ["| model, depth | rule | batch | mean steps | speed-up | depth / mean steps | of it |", "|" + "---|" * 7]
    for row in _rows(folder, "P19"):
        ratio = f"{row['ratio']:.2f} ({row['ratio_q1']:.2f}–{row['ratio_q3']:.2f})"
        cells = [
            f"{row['model']}, {row['depth']}{_on(row)}",
            row["rule"],
            str(row["batch"]),
            f"{row['mean_steps']:.2f}",
            ratio,
        ]
        cells += [f"{row['bound']:.2f}", f"{row['of_bound']:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _on(row: Mapping[str, Any]) -> str:
    return "" if row.get("device", "CPU").startswith("CPU") else ", GPU"


def _rows(folder: Path, benchmark: str) -> list[dict]:
    found = []
    for path in (folder / f"{name}-speed{on}.jsonl" for name in MODELS for on in ("", "-gpu")):
        if path.exists():
            found += [row for line in path.read_text().splitlines() if (row := json.loads(line))["benchmark"].startswith(benchmark)]
    return found
