"""The tables of the study, from its rows: each rule at equal mean depth, learned rules against thresholds, steps by need."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from experiments.halting.reading import SIMPLE
from experiments.halting.shown import SHOWN, Shown, number
from experiments.seeds import over_seeds
from loopwright.metrics.intervals import mean_interval

# arm and stage: how the model was trained, and how its gate
MODELS = {
    ("plain", "gate"): "every-step, gate after",
    ("ouro", "joint"): "Ouro, first stage",
    ("ouro", "gate"): "Ouro, both stages",
    ("act", "joint"): "ACT",
    ("halter", "joint"): "ACT, Ouroboros halter",
}

Row = Mapping[str, Any]
Models = Mapping[str, Sequence[Mapping[str, Any]]]


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Returns the rows of a file of JSON lines; none where there is no file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def models_of(rows: Sequence[Row], task: str) -> dict[str, list[dict[str, Any]]]:
    """Returns what was measured of each model of a task, seed by seed."""
    found: dict[str, list[dict[str, Any]]] = {}
    for (arm, stage), name in MODELS.items():
        mine = sorted((row for row in rows if row["task"] == task and row["arm"] == arm), key=lambda row: row["seed"])
        if mine:
            found[name] = [{"seed": row["seed"], **row["stages"][stage]} for row in mine]
    return found


def table(rows: Sequence[Row]) -> str:
    """Returns all tables as markdown."""
    tasks = [(task, models_of(rows, task)) for task in SHOWN]
    return "\n".join(part for task, models in tasks if models for part in (f"## {task}\n", *tables_of(task, models)))


def tables_of(task: str, models: Models) -> tuple[str, ...]:
    """Returns the tables of one task."""
    shown = SHOWN[task]
    return at_target(models, shown), against(models, shown), along(models, shown), by_mean_depth(models, shown)


def learned_of(seed: Mapping[str, Any]) -> str:
    """Returns the learned rule of a model."""
    return next(name for name in seed["rules"] if name not in SIMPLE)


def curve_of(seed: Mapping[str, Any], rule: str) -> Mapping[str, Any]:
    """Returns what was measured of a rule, of fixed depths, or of the oracle, whose mean depth is the target."""
    if rule == "oracle":
        return {"at_target": seed["oracle"]["loss"]}
    return seed["fixed"] if rule == "fixed" else seed["rules"][rule]


def rules_of(seed: Mapping[str, Any]) -> list[str]:
    """Returns the rules of a model, the learned one first."""
    return [learned_of(seed), *SIMPLE]


def at_target(models: Models, shown: Shown) -> str:
    """Returns, for each model, what it gives at full depth and under each rule where the mean depth is the oracle's; and r."""
    heads = ["model", "seeds", "full depth", "oracle's mean depth", "learned", *shown.others, *shown.beside]
    title = (
        f"{shown.title.capitalize()} at the oracle's mean depth, in brackets r of steps taken and {shown.wants}; means over seeds."
    )
    lines = [f"{title}\n", *head(heads)]
    for name, seeds in models.items():
        cells = [name, str(len(seeds)), shown.write([seed["fixed"][shown.gives][-1] for seed in seeds])]
        cells.append(number([seed["target"] for seed in seeds]))
        for rule in (learned_of(seeds[0]), *shown.others, *shown.beside):
            given = shown.write([curve_of(seed, rule).get(shown.at_target) for seed in seeds])
            r = number([curve_of(seed, rule).get("r") for seed in seeds])
            cells.append(f"{given} ({r})")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def against(models: Models, shown: Shown) -> str:
    """Returns the learned rule less each other on the same model at the oracle's mean depth: loss, both intervals, verdict."""
    heads = ["model", "learned less", "loss, nats", "each seed", f"over {shown.over}", "over seeds", "decided"]
    lines = ["Loss of the learned rule less that of a threshold on the same model, at the oracle's mean depth.\n", *head(heads)]
    for name, seeds in models.items():
        for rule in shown.others:
            found = difference(seeds, rule)
            if found is None:
                lines.append(f"| {name} | {rule} | – | – | – | – | not reached |")
                continue
            each = ", ".join(f"{value:+.4f}" for value in found["each"])
            spans = [f"{low:+.4f} to {high:+.4f}" for low, high in (found["rows"], found["seeds"])]
            lines.append(f"| {name} | {rule} | {fmean(found['each']):+.4f} | {each} | {' | '.join(spans)} | {found['verdict']} |")
    return "\n".join(lines) + "\n"


def difference(seeds: Sequence[Mapping[str, Any]], rule: str) -> dict[str, Any] | None:
    """Returns the learned rule's loss less another's, seed by seed, with intervals over rows and over seeds; None where one of them
    cannot have that mean depth."""
    pairs = [(curve_of(seed, learned_of(seed)).get("blocks"), curve_of(seed, rule).get("blocks")) for seed in seeds]
    if any(one is None or other is None for one, other in pairs):
        return None
    gaps = torch.tensor([one for one, _ in pairs]).double() - torch.tensor([other for _, other in pairs]).double()
    rows = tuple(float(x) for x in mean_interval(gaps.mean(0), torch.ones(gaps.shape[1])))
    span = over_seeds(gaps.mean(1).tolist())
    verdict = "no"
    if len(seeds) > 1 and max(rows[1], span[1]) < 0:
        verdict = "learned is better"
    elif len(seeds) > 1 and min(rows[0], span[0]) > 0:
        verdict = f"{rule} is better"
    return {"each": gaps.mean(1).tolist(), "rows": rows, "seeds": span, "verdict": verdict}


def along(models: Models, shown: Shown) -> str:
    """Returns the learned rule less each other on the same model, at equal mean depths, with the interval over seeds."""
    lines = [
        "Loss of the learned rule less that of a threshold on the same model, by mean depth; interval over seeds, bold where it "
        "leaves 0 out.\n",
        *head(["model", "learned less", *(f"{m:g}" for m in shown.along)]),
    ]
    for name, seeds in models.items():
        for rule in shown.others:
            lines.append(f"| {name} | {rule} | {' | '.join(gap_at(seeds, rule, m) for m in shown.along)} |")
    return "\n".join(lines) + "\n"


def gap_at(seeds: Sequence[Mapping[str, Any]], rule: str, m: float) -> str:
    """Returns the learned rule's loss less another's at a mean depth, in words; a dash where a seed cannot have it."""
    pairs = [(at_depth(seed, learned_of(seed), m, "loss"), at_depth(seed, rule, m, "loss")) for seed in seeds]
    gaps = [one - other for one, other in pairs if one is not None and other is not None]
    if len(gaps) < len(seeds):
        return "–"
    low, high = over_seeds(gaps)
    text = f"{fmean(gaps):+.4f}"
    return f"{text} ({low:+.4f} to {high:+.4f})" if low <= 0 <= high else f"**{text}** ({low:+.4f} to {high:+.4f})"


def at_depth(seed: Mapping[str, Any], rule: str, m: float, gives: str) -> float | None:
    """Returns what a rule gives at a mean depth of the grid; None where it cannot have it. Between two fixed depths each token
    draws one of the two."""
    if rule != "fixed":
        return seed["rules"][rule][gives][seed["grid"].index(m)]
    low = math.floor(m)
    given = seed["fixed"][gives]
    return given[low - 1] if m == low else (low + 1 - m) * given[low - 1] + (m - low) * given[low]


def by_mean_depth(models: Models, shown: Shown) -> str:
    """Returns what each model and rule gives at some mean depths, beside the fixed depth."""
    lines = [
        f"{shown.title.capitalize()} at equal mean depth, means over seeds.\n",
        *head(["model", "rule", *(f"{m:g}" for m in shown.depths)]),
    ]
    for name, seeds in models.items():
        for rule in ("fixed", *rules_of(seeds[0])):
            cells = [shown.write([at_depth(seed, rule, m, shown.gives) for seed in seeds]) for m in shown.depths]
            lines.append(f"| {name} | {rule} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def head(names: Sequence[str]) -> list[str]:
    """Returns the first two lines of a markdown table."""
    return [f"| {' | '.join(names)} |", "|" + "---|" * len(names)]
