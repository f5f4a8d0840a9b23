"""The tables of the study, from its rows: each rule at equal mean depth, learned rules against thresholds, steps by need."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from experiments.halting.plan import TASKS
from experiments.halting.reading import SIMPLE
from experiments.seeds import over_seeds
from loopwright.metrics.score import percentile_interval, resampled_means

# arm and stage: how the model was trained, and how its gate
MODELS = {
    ("plain", "gate"): "every-step, gate after",
    ("ouro", "joint"): "Ouro, first stage",
    ("ouro", "gate"): "Ouro, both stages",
    ("act", "joint"): "ACT",
    ("halter", "joint"): "ACT, Ouroboros halter",
}
SHOWN_DEPTHS = (2.0, 3.0, 4.0, 6.0)
ALONG = (2.0, 3.0, 4.0)

Row = Mapping[str, Any]


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
    parts = []
    for task in TASKS:
        models = models_of(rows, task)
        if models:
            parts += [f"## {task}\n", at_target(models), against(models), along(models), by_mean_depth(models)]
    return "\n".join(parts)


def learned_of(seed: Mapping[str, Any]) -> str:
    """Returns the learned rule of a model."""
    return next(name for name in seed["rules"] if name not in SIMPLE)


def rules_of(seed: Mapping[str, Any]) -> list[str]:
    """Returns the rules of a model, the learned one first."""
    return [learned_of(seed), *SIMPLE]


def at_target(models: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Returns, for each model, exact match at full depth and under each rule where the mean depth is the oracle's; and r."""
    heads = ["model", "seeds", "exact, full depth", "oracle's mean depth", "learned", *SIMPLE]
    lines = [
        "Exact match (%) at the oracle's mean depth, and in brackets r of steps taken and needed; means over seeds.\n",
        *head(heads),
    ]
    for name, seeds in models.items():
        full = mean([seed["fixed"]["exact"][-1] for seed in seeds])
        cells = [name, str(len(seeds)), f"{100 * full:.1f}", f"{mean([seed['target'] for seed in seeds]):.2f}"]
        for rule in rules_of(seeds[0]):
            exact = [seed["rules"][rule].get("exact_at_target") for seed in seeds]
            r = [seed["rules"][rule]["r"] for seed in seeds]
            cells.append(f"{percent(exact)} ({number(r)})")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def against(models: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Returns the learned rule less each threshold on the same model at the oracle's mean depth: loss, both intervals, verdict."""
    heads = ["model", "learned less", "loss, nats", "each seed", "over rows", "over seeds", "decided"]
    lines = ["Loss of the learned rule less that of a threshold on the same model, at the oracle's mean depth.\n", *head(heads)]
    for name, seeds in models.items():
        for rule in SIMPLE:
            found = difference(seeds, rule)
            if found is None:
                lines.append(f"| {name} | {rule} | – | – | – | – | not reached |")
                continue
            each = ", ".join(f"{value:+.4f}" for value in found["each"])
            spans = [f"{low:+.4f} to {high:+.4f}" for low, high in (found["rows"], found["seeds"])]
            lines.append(f"| {name} | {rule} | {mean(found['each']):+.4f} | {each} | {' | '.join(spans)} | {found['verdict']} |")
    return "\n".join(lines) + "\n"


def difference(seeds: Sequence[Mapping[str, Any]], rule: str) -> dict[str, Any] | None:
    """Returns the learned rule's loss less another's, seed by seed, with intervals over rows and over seeds; None where one of them
    cannot have that mean depth."""
    pairs = [(seed["rules"][learned_of(seed)].get("blocks"), seed["rules"][rule].get("blocks")) for seed in seeds]
    if any(one is None or other is None for one, other in pairs):
        return None
    gaps = torch.tensor([one for one, _ in pairs]).double() - torch.tensor([other for _, other in pairs]).double()
    draws = resampled_means(gaps.mean(0), torch.ones(gaps.shape[1], dtype=torch.float64))
    rows = tuple(float(x) for x in percentile_interval(draws))
    span = over_seeds(gaps.mean(1).tolist())
    verdict = "no"
    if len(seeds) > 1 and max(rows[1], span[1]) < 0:
        verdict = "learned is better"
    elif len(seeds) > 1 and min(rows[0], span[0]) > 0:
        verdict = f"{rule} is better"
    return {"each": gaps.mean(1).tolist(), "rows": rows, "seeds": span, "verdict": verdict}


def along(models: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Returns the learned rule less each threshold on the same model, at equal mean depths, with the interval over seeds."""
    lines = [
        "Loss of the learned rule less that of a threshold on the same model, by mean depth; interval over seeds, bold where it "
        "leaves 0 out.\n",
        *head(["model", "learned less", *(f"{m:g}" for m in ALONG)]),
    ]
    for name, seeds in models.items():
        for rule in SIMPLE:
            lines.append(f"| {name} | {rule} | {' | '.join(gap_at(seeds, rule, m) for m in ALONG)} |")
    return "\n".join(lines) + "\n"


def gap_at(seeds: Sequence[Mapping[str, Any]], rule: str, m: float) -> str:
    """Returns the learned rule's loss less another's at a mean depth, in words; a dash where a seed cannot have it."""
    pairs = [(loss_at(seed, learned_of(seed), m), loss_at(seed, rule, m)) for seed in seeds]
    gaps = [one - other for one, other in pairs if one is not None and other is not None]
    if len(gaps) < len(seeds):
        return "–"
    low, high = over_seeds(gaps)
    text = f"{mean(gaps):+.4f}"
    return f"{text} ({low:+.4f} to {high:+.4f})" if low <= 0 <= high else f"**{text}** ({low:+.4f} to {high:+.4f})"


def loss_at(seed: Mapping[str, Any], rule: str, m: float) -> float | None:
    """Returns the loss of a rule at a mean depth of the grid; None where it cannot have it."""
    return seed["rules"][rule]["loss"][seed["grid"].index(m)]


def by_mean_depth(models: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Returns exact match of each model and rule at some mean depths, beside the fixed depth."""
    lines = [
        "Exact match (%) at equal mean depth, means over seeds.\n",
        *head(["model", "rule", *(f"{m:g}" for m in SHOWN_DEPTHS)]),
    ]
    for name, seeds in models.items():
        fixed = [percent([seed["fixed"]["exact"][int(m) - 1] for seed in seeds]) for m in SHOWN_DEPTHS]
        lines.append(f"| {name} | fixed | {' | '.join(fixed)} |")
        for rule in rules_of(seeds[0]):
            cells = [percent([seed["rules"][rule]["exact"][seed["grid"].index(m)] for seed in seeds]) for m in SHOWN_DEPTHS]
            lines.append(f"| {name} | {rule} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def head(names: Sequence[str]) -> list[str]:
    """Returns the first two lines of a markdown table."""
    return [f"| {' | '.join(names)} |", "|" + "---|" * len(names)]


def mean(values: Sequence[float]) -> float:
    """Returns the mean."""
    return sum(values) / len(values)


def percent(values: Sequence[float | None]) -> str:
    """Returns the mean in per cent; a dash where a value is missing."""
    known = [value for value in values if value is not None]
    return f"{100 * mean(known):.1f}" if len(known) == len(values) else "–"


def number(values: Sequence[float | None]) -> str:
    """Returns the mean with two digits; a dash where a value is missing."""
    known = [value for value in values if value is not None]
    return f"{mean(known):.2f}" if len(known) == len(values) else "–"
