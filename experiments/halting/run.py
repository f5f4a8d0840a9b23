"""Trains and measures one run of the study."""

from __future__ import annotations

import time
from argparse import Namespace
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from experiments.corpus import prepare
from experiments.halting.plan import GATED, TASKS, Run
from experiments.side_by_side import made_by
from experiments.thin import rounded
from experiments.trained import train_once


def tokenise(asked: Namespace, left: Iterable[Run]) -> None:
    """Makes the token shards of the text before runs share them."""
    from loopwright.recipes import recipe

    Path(asked.shards).mkdir(parents=True, exist_ok=True)
    first = next((run for run in left if run.task == "text"), None)
    if first is not None:
        prepare(recipe(TASKS["text"].recipe, [*first.changes(asked.data), *asked.change]).data, asked.shards)


def carry_out(run: Run, *, data: str, shards: str, extra: tuple[str, ...] = ()) -> dict[str, Any]:
    """Trains one run, its gate too where it has one, and returns what the exit rules do with each of the models."""
    import torch

    from experiments.halting.reading import measure
    from experiments.halting.tokens import TOKENS
    from loopwright.recipes import recipe
    from loopwright.training.report import Objects

    task, learned, stages = TASKS[run.task], "gate" if run.arm in GATED else "act", {}
    began = time.perf_counter()
    outcome = train_once(recipe(task.recipe, [*run.changes(data), *extra]), shards).outcome
    tokens = TOKENS[run.task](outcome.splits.tests["test"])
    torch.set_float32_matmul_precision("highest")
    outcome.model.config.read_out = "last"  # each step by its own state, as this study compares rules; ACT's own is `learned`
    if run.arm != "plain":  # whose gate is not trained yet
        stages["joint"] = measure(outcome.model, tokens, task.depth, learned)
    if run.arm in GATED:
        chosen = recipe(task.recipe, [*run.gate_changes(data), *extra])
        outcome = train_once(chosen, shards, given=Objects(model=outcome.model)).outcome
        stages["gate"] = measure(outcome.model, tokens, task.depth, learned)
    made = made_by()
    return {
        "name": run.name, "task": run.task, "arm": run.arm, "seed": run.seed, "seconds": time.perf_counter() - began,
        "changes": [*run.changes(data), *extra], "stages": rounded(stages, 6), "origin": made,
    }  # fmt: skip
