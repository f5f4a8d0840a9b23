"""`python -m experiments.exits DATA`: trains the models that are missing, measures exits and drafts, writes rows and figures.

DATA holds `models/stories260K` and `corpus/`. The runs go to runs/exits, the rows and figures to experiments/results/exits.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch

import loopwright as lw
from benchmarks.early_exit import early_exit, speculation
from benchmarks.pairs import as_line, made_on
from experiments.exits.plan import MODELS, PASSAGES, TEXT, overrides
from experiments.exits.tables import table
from loopwright.checkpoints.source import Source
from loopwright.cli.runs import train
from loopwright.data.batch import IGNORED
from loopwright.data.build import build_data
from loopwright.data.tokenizer import Tokenizer
from loopwright.evaluation.exits import ExitReport
from loopwright.evaluation.text import read_passages
from loopwright.process import fitting_threads

RESULTS = Path(__file__).parents[1] / "results" / "exits"
PROMPT, NEW, PROMPTS, MANY = 16, 48, 2, 16
SMALL = [name for name in MODELS if name != "wide"]  # which a GPU trains, if it is asked for


def main() -> None:
    """Runs the stages asked for, for the models asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("--runs", type=Path, default=Path("runs/exits"))
    parser.add_argument("--models", nargs="*", default=SMALL, choices=list(MODELS))
    parser.add_argument("--stages", nargs="*", default=["train", "evaluate", "speed"], choices=["train", "evaluate", "speed"])
    parser.add_argument("--device", default="cpu", help="where it is measured")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"], help="of the weights that are timed")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    for name in asked.models:
        folder = asked.runs / name
        if "train" in asked.stages and not folder.exists() and (recipe := MODELS[name].recipe):
            train(recipe, overrides(name, asked.data, asked.runs), out=str(folder))
        if "evaluate" in asked.stages:
            measure(name, folder, asked.data, asked.device)
        if "speed" in asked.stages:
            time_model(name, folder, asked.data, asked.device, asked.dtype)
    (RESULTS / "table.md").write_text(table(RESULTS))


def measure(name: str, folder: Path, data: Path, device: str) -> None:
    """Writes the report and the figure of a model's exits, over mean steps and, on a CPU, over time."""
    model = MODELS[name]
    given: dict[str, Any] = {"text": {"test": data / TEXT}, "rows": PASSAGES, "context": 128} if model.text else {}
    rules = ["all", "lookahead:entropy", *(["lookahead:gate"] if name in ("gated", "gate") else [])]
    found: Any = lw.evaluate(folder, exit=rules, depths=model.depth, device=device, time=device == "cpu", **given)
    report = next(iter(found.reports.values()))
    plain = json.loads(report.save(folder / "exits.json").read_text()) | {"name": name, "source": name}
    RESULTS.mkdir(parents=True, exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(plain, separators=(",", ":")) + "\n")
    report.plot(RESULTS / f"{name}.svg")


def time_model(name: str, folder: Path, data: Path, device: str, dtype: str) -> None:
    """Writes the rows of P18 and P19 of a model."""
    depth, report = MODELS[name].depth, ExitReport.load(RESULTS / f"{name}.json")
    model = lw.load(folder).to(device, getattr(torch, dtype))
    prompts, new = text_prompts(data, folder) if MODELS[name].text else task_prompts(folder)
    few = prompts[:PROMPTS] if MODELS[name].text else prompts
    best = {family: point.rule for family, point in report.cheapest().items() if family in ("change", "entropy", "gate", "stable")}
    with fitting_threads(model):
        rows = speculation(name, model, few, depth=depth, new=new)
        rows += early_exit(name, model, few, list(best.values()), depth=depth, new=min(new, NEW // 2), many=prompts)
    lines = [as_line(row | made_on(device) | {"dtype": dtype}) for row in rows]
    (RESULTS / f"{name}-speed{'' if device == 'cpu' else '-gpu'}.jsonl").write_text("\n".join(lines) + "\n")
    print("\n".join(lines), file=sys.stderr)


def text_prompts(data: Path, folder: Path) -> tuple[list[tuple[int, ...]], int]:
    """Returns the beginnings of sixteen held-out passages, and how many tokens follow."""
    words = Tokenizer(folder if (folder / "tokenizer.json").exists() else data / "models" / "stories260K")
    passages = read_passages("test", data / TEXT, words, 128).drawn(MANY)
    return [row.ids[:PROMPT] for row in passages.rows], NEW


def task_prompts(folder: Path) -> tuple[list[tuple[int, ...]], int]:
    """Returns the questions of sixteen rows of a run's test split, and the length of the shortest answer."""
    recipe = Source(str(folder)).recipe
    assert recipe is not None
    batch = build_data(recipe["data"], folder / "data").tests["test"].batch(range(MANY))
    asked = batch.labels != IGNORED
    first = asked.int().argmax(1).tolist()
    prompts = [tuple(ids[:place].tolist()) for ids, place in zip(batch.input_ids, first, strict=True)]
    return prompts, int(asked.sum(1).min())


if __name__ == "__main__":
    main()
