"""What of an orbit is kept of a page that `loopwright analyze` made: who swings, how fast, and whether stages swing with it.

    python -m experiments.inside.orbits PAGE … --out experiments/results/inside/orbits.jsonl

Adds one row per page (a folder with metrics/analysis.json), in the place of an earlier one of its name.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments import kept
from experiments.inside.train_plan import likenesses, rows, written
from experiments.pages import last_of_each, percent, table
from loopwright.analysis.summary import grid

STAGES = ("colsum", "mixing", "entropy")  # sinks into the first token have no curve here: there are none
HEAD = (
    "model", "seed", "questions with an orbit", "tokens in an orbit", "turns per step (median)", "largest amplitude",
    "leading eigenvalue at 1 / 4 / 128 steps", *(f"{name} moves by at most" for name in STAGES),
)  # fmt: skip


def row_of(page: Path) -> dict[str, Any]:
    """Returns what is kept of a page."""
    metrics = json.loads((page / "metrics/analysis.json").read_text())
    limits, spectrum = metrics["limits"], metrics["spectrum"]
    row: dict[str, Any] = {
        "name": page.name, "examples": metrics["examples"], "all_tokens": metrics["tokens"], "steps": metrics["places"]["steps"],
        "labels": limits["labels"], "tokens": limits["tokens"], "in_examples": limits["examples"],
        "spectrum": {key: spectrum[key] for key in ("depths", "radius", "frequency")},
    }  # fmt: skip
    if "orbit" not in limits:
        return row
    largest = limits["orbit"]
    where = {key: largest[key] for key in ("example", "token", "layer")}
    return row | {"orbits": limits["orbits"], "largest": where, "stages": moved_stages(metrics["places"], largest)}


def moved_stages(places: Mapping[str, int], orbit: Mapping[str, Any]) -> dict[str, Any]:
    """Returns, of the question with the largest orbit, how far each layer's stages swing over the later half of the steps, and the
    range of the curve over the block there."""
    moved = {}
    for name in STAGES:
        values = orbit["by_place"][name]["mean"]
        core = grid({"places": places, "by_place": orbit["by_place"]}, name)
        late = core[len(core) // 2 :]
        after = len(values) - places["coda"]
        block = [*values[: places["prelude"]], *(value for step in late for value in step), *values[after:]]
        apart = [max(layer) - min(layer) for layer in zip(*late, strict=True)]
        moved[name] = {"apart": apart, "range": max(block) - min(block)}
    return moved


def share(row: Mapping[str, Any], name: str) -> float:
    """Returns by how much of its range a stage curve moves, at the layer where it moves most."""
    stage = row["stages"][name]
    return float(max(stage["apart"]) / stage["range"])


def named(name: str) -> tuple[str, str]:
    """Returns the model and the seed that a folder's name stands for."""
    (row,) = [row for row in (*rows(), *likenesses()) if row.folder == name]
    return written(row.label), str(row.seed)


def tables(pages: Sequence[Mapping[str, Any]]) -> str:
    """Returns one line per page."""
    lines = []
    for row in pages:
        rates = [f"{radius:.2f}" for radius in row["spectrum"]["radius"]]
        cells = [*named(row["name"]), percent(row["in_examples"][1]), percent(row["tokens"][1])]
        if "orbits" in row:
            found = row["orbits"]
            cells += [f"{found['median_frequency']:.3f}", f"{found['largest_amplitude']:.2f}", " / ".join(rates)]
            cells += [percent(share(row, name)) for name in STAGES]
        else:
            cells += ["–", "–", " / ".join(rates), *["–"] * len(STAGES)]
        lines.append(cells)
    first = pages[0]
    about = (
        f"Of the pages of `loopwright analyze`: {first['examples']} GSM8K questions, {first['all_tokens']:,} tokens, "
        f"{first['steps']} steps. The eigenvalue is the largest, by size, of the derivative of one step at the state reached, "
        "first question. The last columns are of the question with the largest orbit: how far the curve of a layer swings over "
        "the later half of the steps, at the layer where it swings most, as a share of the curve's range over the block."
    )
    return "\n\n".join(["## The largest orbits", about, table(HEAD, lines)])


def main(words: Iterable[str] | None = None) -> None:
    """Reads the command line and adds the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path, nargs="+", help="folders of loopwright analyze")
    parser.add_argument("--out", type=Path, required=True, help="JSON lines")
    options = parser.parse_args(None if words is None else [*words])
    there = last_of_each(options.out) if options.out.is_file() else {}
    made = {row["name"]: row for row in map(row_of, options.page)}
    kept.write(options.out, {**there, **made}.values())


if __name__ == "__main__":
    main()
