"""Trains and measures the runs of the study, several side by side on one GPU, each result one line of a JSON-lines file.

python -m experiments.hops.run OUT.jsonl --groups trial --workers 6 --seconds 300
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.hops.plan import ARMS, GROUPS, Run
from experiments.side_by_side import made_by
from experiments.study import Study
from experiments.trained import train_once

if TYPE_CHECKING:
    from loopwright.data.batch import Splits
    from loopwright.training.recipe import Recipe

RECIPES = {"hops": str(Path(__file__).with_name("recipe.yaml")), "chain": str(Path(__file__).with_name("chain.yaml"))}


def carry_out(run: Run, *, extra: tuple[str, ...] = (), tables: str | None = None) -> dict[str, Any]:
    """Trains one run, measures it at every number of hops or swaps and every depth, and returns all numbers."""
    import torch

    from experiments.hops.measure import DEPTHS, measure
    from loopwright.model.cost import pass_flops
    from loopwright.training.report import Objects

    chosen = recipe_of(run, extra)
    trained = train_once(chosen, given=Objects(data=None if tables is None else shared(chosen.data, Path(tables))))
    torch.set_float32_matmul_precision("highest")
    outcome, rows = trained.outcome, trained.log
    model, length = outcome.model, outcome.splits.train.batch([0]).input_ids.shape[1] - 2
    most = max(depth for row in rows for depth in row["depth"])  # the deepest that was trained
    limits = (most, DEPTHS[run.task][-1]) if ARMS[run.arm][1] > 1 else ()
    return {
        "name": run.name, "group": run.group, "arm": run.arm, "label": run.label, "seed": run.seed, "changes": list(run.changes),
        "laid_over": list(extra), "parameters": sum(p.numel() for p in model.parameters()),
        "flops": pass_flops(model.config, batch=1, length=length)["total"] / length,
        "updates": chosen.updates, "batch": chosen.batch, "train_seconds": trained.seconds, "skipped": outcome.progress.skipped,
        "loss": [[row["update"], round(row["loss"], 4)] for row in rows[:: max(len(rows) // 40, 1)]],
        "valid": [[row["update"], next(iter(row["valid"].values()))["loss"]] for row in trained.looks],
        **measure(model, outcome.splits, run.task, limits), "origin": made_by(),
    }  # fmt: skip


def recipe_of(run: Run, extra: tuple[str, ...] = ()) -> Recipe:
    """Returns the recipe of a run, with as many rows as it reads: each is trained on once."""
    from loopwright.recipes import recipe

    given = [*run.shape, *run.changes, f"seed={run.seed}", *extra]
    chosen = recipe(RECIPES[run.task], given)
    return recipe(RECIPES[run.task], [*given, f"data.train={chosen.updates * chosen.batch}"])


def shared(spec: Mapping[str, Any], folder: Path) -> Splits:
    """Returns data that the first process in need of it makes, the others wait for, and all read from the folder.
    What another commit made is not taken: its tasks may draw other rows."""
    from loopwright.data.build import build_data

    folder.mkdir(parents=True, exist_ok=True)
    place = folder / hashlib.sha256(json.dumps([dict(spec), made_by()["commit"]], sort_keys=True).encode()).hexdigest()[:16]
    with open(f"{place}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.is_file():
            written = place.with_suffix(".part")
            written.write_bytes(pickle.dumps(build_data(spec), protocol=5))
            written.rename(place)
    splits: Splits = pickle.loads(place.read_bytes())
    return splits


STUDY = Study(
    __doc__, carry_out, GROUPS,
    options={"--tables": {"help": "a folder for tables of rows, which runs then share: made once, not by each run"}},
)  # fmt: skip


if __name__ == "__main__":
    STUDY.main()
