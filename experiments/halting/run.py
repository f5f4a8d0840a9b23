"""Trains and measures one run of the study."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from experiments.halting.plan import DEPTH, GATED, STAGE, Run
from experiments.side_by_side import rounded


def carry_out(run: Run, *, extra: tuple[str, ...] = ()) -> dict[str, Any]:
    """Trains one run, its gate too where it has one, and returns what the exit rules do with each of the models."""
    import torch

    from experiments.halting.reading import measure
    from loopwright.recipes import recipe
    from loopwright.run import origin
    from loopwright.train.loop import train
    from loopwright.train.state import Objects

    learned, stages = "gate" if run.arm in GATED else "act", {}
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        outcome = train(recipe("addition-longer", [*run.changes, *extra]), Path(folder) / "run")
        model, rows = outcome.model, outcome.splits.tests["test"]
        torch.set_float32_matmul_precision("highest")
        if run.arm != "plain":  # whose gate is not trained yet
            stages["joint"] = measure(model, rows, DEPTH, learned)
        if run.arm in GATED:
            changes = [*run.changes, *STAGE, "model={kind: given, what: the model of the first stage}", *extra]
            outcome = train(recipe("addition-longer", changes), Path(folder) / "gate", given=Objects(model=model))
            stages["gate"] = measure(outcome.model, rows, DEPTH, learned)
    if not outcome.finished:
        raise RuntimeError(f"stopped after {outcome.progress.update} updates; nothing is measured")
    made = {key: value for key, value in origin().items() if key != "command"}  # which names the machine's folders
    return {
        "name": run.name, "task": run.task, "arm": run.arm, "seed": run.seed, "seconds": time.perf_counter() - began,
        "changes": [*run.changes, *extra], "stages": rounded(stages, 4), "origin": made,
    }  # fmt: skip
