"""Trains seeds of `addition-longer`, with the penalty and without, and measures exact match over operand length × depth.

    python -m experiments.longer.run OUT.jsonl --seeds 0,1,2 --change graph=true --change precision=tf32
    python -m experiments.longer.run OUT.jsonl --draw FOLDER

Each run is one line of OUT; what is already there is left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch

from experiments.side_by_side import made_by
from experiments.study import Named, Study
from experiments.trained import train_once
from loopwright.data.batch import BatchSource, FirstRows
from loopwright.data.tasks.addition import COLUMNS_ALPHABET, Columns
from loopwright.data.tasks.task import Matrix, Table, below, stream
from loopwright.evaluation.by_depth import sweep
from loopwright.plot.drawing import Drawing
from loopwright.plot.figures import length_by_depth_heatmap
from loopwright.recipes import recipe
from loopwright.training.validation import measure

ARMS = {"penalty": (), "plain": ("penalties=[]",)}
LENGTHS = (4, 8, 16, 24, 32, 48, 64)
DEPTHS = (1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256)
ROWS = 500
ROWS_OF_A_RADIUS = 8


def stretches(length: int, bits: np.random.PCG64, rows: int) -> Matrix:
    """Returns columns as the task draws them."""
    return Columns().draw(length, bits, rows)


def random_digits(length: int, bits: np.random.PCG64, rows: int) -> Matrix:
    """Returns columns of two random digits each: long carries are rare."""
    return below(bits, 10, rows, 2 * length)


def ripples(length: int, bits: np.random.PCG64, rows: int) -> Matrix:
    """Returns columns of which the first makes a carry and all others hand it on: a row needs as many steps as it has columns."""
    columns = below(bits, 10, rows, length, 2)
    columns[:, 1:, 1] = 9 - columns[:, 1:, 0]
    columns[:, 0, 0] = 1 + below(bits, 9, rows)
    columns[:, 0, 1] = 9 - below(bits, 9, rows) % columns[:, 0, 0]
    return columns.reshape(rows, 2 * length)


KINDS = {"stretches": stretches, "random": random_digits, "ripples": ripples}


def table(kind: str, length: int, rows: int) -> Table:
    """Returns new rows of a kind; short ones may be training rows, from 16 digits on none is."""
    bits = stream(1, length, list(KINDS).index(kind))
    return Columns().write(length, KINDS[kind](length, bits, rows), bits, length + 3).table(COLUMNS_ALPHABET, "plain")


@dataclass(frozen=True)
class Run(Named):
    """One arm with one seed."""

    named_by, alike_by, joined_by = ("arm", "seed"), ("arm",), "-"

    arm: str
    seed: int


def planned(arm: str) -> Iterable[Run]:
    """Returns the runs of an arm."""
    return [Run(arm, seed) for seed in range(3)]


def carry_out(run: Run, *, rows: int, extra: tuple[str, ...]) -> dict[str, Any]:
    """Trains one run, measures it, and returns all numbers."""
    chosen = recipe("addition-longer", [*ARMS[run.arm], f"seed={run.seed}", f"data.test={rows * 5}", *extra])
    trained = train_once(chosen)
    torch.set_float32_matmul_precision("highest")
    model, splits = trained.outcome.model, trained.outcome.splits
    names = [f"length-{length}" for length in LENGTHS]
    sources: dict[str, dict[str, BatchSource]] = {
        "test": {name: FirstRows(splits.tests[name], rows) for name in names if name in splits.tests}
    }
    sources |= {kind: {f"length-{n}": table(kind, n, rows) for n in LENGTHS} for kind in KINDS if kind != "stretches"}
    found = {
        kind: {name: asdict(sweep(model, source, depths=DEPTHS, batch_size=rows, exact=True)) for name, source in held.items()}
        for kind, held in sources.items()
    }
    batch = table("stretches", LENGTHS[-1], ROWS_OF_A_RADIUS).batch(range(ROWS_OF_A_RADIUS)).to(model.device)
    return {
        "name": run.name, "arm": run.arm, "seed": run.seed, "recipe": chosen.data_of(), "device": str(model.device),
        "train_seconds": trained.seconds, "solved_at": trained.outcome.progress.solved_at, "cost": cost(trained.log),
        "looks": trained.exact(),
        "found": found, "radius": measure(model, batch, 2 * LENGTHS[-1], rows=ROWS_OF_A_RADIUS),
        "origin": made_by(),
    }  # fmt: skip


def cost(log: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Returns what updates with the penalty take against those without, each depth's median against the same depth's.

    Wall time: it says something where the machine did nothing else. `cost.py` compares pairs."""
    seconds: dict[bool, dict[int, list[float]]] = {True: {}, False: {}}
    for row in log:
        seconds["jacobian" in row].setdefault(row["depth"][0], []).append(row["seconds"])
    both = sorted(set(seconds[True]) & set(seconds[False]))
    if not both:
        return None
    on, off = (sum(median(seconds[counted][depth]) for depth in both) for counted in (True, False))
    return {"ratio": on / off, "depths": both, "updates_on": sum(map(len, seconds[True].values()))}


def draw(runs: list[dict[str, Any]]) -> dict[str, Drawing]:
    """Returns exact match over length × depth, the worst seed in each cell, a figure for each arm and kind of rows."""
    drawings = {}
    for arm in sorted({run["arm"] for run in runs}):
        of_arm = [run for run in runs if run["arm"] == arm]
        trained = {f"length-{n}" for run in of_arm for n in run["recipe"]["data"]["lengths"]}
        for kind in of_arm[0]["found"]:
            names = list(of_arm[0]["found"][kind])
            values = [
                [min(cell) for cell in zip(*(run["found"][kind][name]["exact"] for run in of_arm), strict=True)] for name in names
            ]
            drawings[f"{arm}-{kind}"] = length_by_depth_heatmap(
                values, rows=[_digits(name) for name in names], columns=of_arm[0]["found"][kind][names[0]]["depth"],
                trained_rows=[_digits(name) for name in trained],
            )  # fmt: skip
    return drawings


def _digits(name: str) -> str:
    return f"{name.removeprefix('length-')} digits"


STUDY = Study(
    __doc__, carry_out, {arm: partial(planned, arm) for arm in ARMS},
    draw=draw, options={"--rows": {"type": int, "default": ROWS, "help": "rows of a test at each length"}},
)  # fmt: skip


if __name__ == "__main__":
    STUDY.main()
