"""Trains and measures the runs of the study, several side by side on one GPU, each result one line of a JSON-lines file.

python -m experiments.hops.run OUT.jsonl --groups trial --workers 6 --seconds 300
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.hops.plan import ARMS, GROUPS, Run
from experiments.side_by_side import arguments, asked_for, grouped, made_by, run_all
from experiments.trained import train_once

if TYPE_CHECKING:
    from loopwright.data.tasks.table import Table
    from loopwright.evaluate.sweep import SweepReport

RECIPE = str(Path(__file__).with_name("recipe.yaml"))
DEPTHS = (*range(1, 17), 20, 24, 28, 32)
ROWS = 500  # of each number of hops


def carry_out(run: Run, *, extra: tuple[str, ...] = ()) -> dict[str, Any]:
    """Trains one run, measures it at every number of hops and every depth, and returns all numbers."""
    import torch

    from loopwright.data.batch import FirstRows
    from loopwright.evaluate.sweep import sweep
    from loopwright.model.cost.cost import pass_flops
    from loopwright.recipes import recipe

    given = [*run.shape, *run.changes, f"seed={run.seed}", *extra]
    chosen = recipe(RECIPE, given)
    chosen = recipe(RECIPE, [*given, f"data.train={chosen.updates * chosen.batch}"])  # a row is trained on once
    trained = train_once(chosen)
    torch.set_float32_matmul_precision("highest")
    outcome, rows = trained.outcome, trained.log
    model, length = outcome.model, int(chosen.data["length"])
    depths = DEPTHS if ARMS[run.arm][1] > 1 else (1,)
    tests = {
        name.removeprefix("hops-"): measured(
            sweep(model, FirstRows(last_answers(source), ROWS), depths=depths, batch_size=ROWS, exact=True, split=name)
        )
        for name, source in outcome.splits.tests.items()
        if name != "test"
    }
    return {
        "name": run.name, "group": run.group, "arm": run.arm, "label": run.label, "seed": run.seed, "changes": list(run.changes),
        "laid_over": list(extra), "parameters": sum(p.numel() for p in model.parameters()),
        "flops": pass_flops(model.config, batch=1, length=length)["total"] / length,
        "updates": chosen.updates, "batch": chosen.batch, "train_seconds": trained.seconds, "skipped": outcome.progress.skipped,
        "loss": [[row["update"], round(row["loss"], 5)] for row in rows[:: max(len(rows) // 100, 1)]],
        "valid": [[row["update"], next(iter(row["valid"].values()))["loss"]] for row in trained.looks],
        "tests": tests, "origin": made_by(),
    }  # fmt: skip


def last_answers(source: Any) -> Table:
    """Returns the same rows, asked for the answer at their last letter alone: the one whose trail surely has all hops."""
    table: Table = source
    return replace(table, starts=table.lengths - 1)


def measured(report: SweepReport) -> dict[str, Any]:
    """Returns what is kept of a sweep: exact match by depth, and how many rows stay right from which depth on."""
    return {"rows": report.rows, "depth": report.depth, "exact": report.exact, "loss": report.loss, "settled": report.settled}


def main() -> None:
    """Reads the command line and runs what it asks for."""
    options = arguments(__doc__).parse_args()
    run_all(
        asked_for(options, grouped(options, GROUPS)), partial(carry_out, extra=tuple(options.change)), options.out,
        workers=options.workers, seconds=options.seconds,
    )  # fmt: skip


if __name__ == "__main__":
    main()
