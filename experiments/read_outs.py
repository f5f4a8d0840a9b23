"""By which read-out is a model that halts validated, and its best kept? Small runs, judged the old way and the new, side by side.

    python -m experiments.read_outs experiments/results/read_outs/rows.jsonl --workers 12
    python -m experiments.read_outs experiments/results/read_outs/rows.jsonl --table

`ponder` trains the mean of the states, under three kinds of ACT; each validation is read by the last state, as the package did
before, and by the mean. `exit-gate` trains a gate on a model that stays as it is; each validation has the model's loss, which was
judged before, and the gate's own. A row says which update either way calls the best, and what that update is worth by the number
that is trained. --updates 20 shows in a minute that the program runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from experiments.side_by_side import arguments, asked_for, grouped, made_by, run_all

DEPTH = 6
GATE = "exit-gate"
HALTING: dict[str, dict[str, Any]] = {
    "act": {"kind": "act", "bias": -1.0},
    "halter": {"kind": "halter", "width": 64, "bias": -1.0},
    "universal-act": {"kind": "universal-act", "bias": -1.0},
    GATE: {"kind": "exit"},
}
SHAPE: dict[str, Any] = {
    "vocab_size": 15, "hidden_size": 64, "intermediate_size": 192, "num_attention_heads": 4, "max_position_embeddings": 32,
    "core_layers": 1, "norm_placement": ["input", "residual"], "depth": DEPTH,
}  # fmt: skip
TRAINING: dict[str, Any] = {
    "about": "the read-out that is trained", "updates": 600, "batch": 128, "depth": {"kind": "fixed", "depth": DEPTH},
    "data": {"kind": "addition", "digits": 2, "train": 5600, "valid": 300, "test": 1000, "padding": "plain"},
    "objective": {"kind": "ponder", "weight": 0.01}, "optim": {"kind": "adamw", "lr": 1e-3, "weight_decay": 0.01},
    "schedule": {"kind": "cosine", "warmup": 50, "floor": 0.1}, "save": {"every": 0, "best": False},
}  # fmt: skip
FROZEN = {"*": {"freeze": True}, "halting.*": {"freeze": False}}


@dataclass(frozen=True)
class Row:
    """One kind of halting with one seed."""

    halting: str
    seed: int

    @property
    def name(self) -> str:
        """The row's own name."""
        return f"{self.halting}/{self.seed}"

    @property
    def kind(self) -> str:
        """What decides how long it takes."""
        return self.halting

    def recipe(self, updates: int, **changes: Any) -> dict[str, Any]:
        """Returns how it is trained, as plain data; validated six times."""
        validate = {"every": max(updates // 6, 1), "depths": [DEPTH], "rows": 300}
        model = {"kind": "given", "what": self.halting}
        return {**TRAINING, "updates": updates, "seed": self.seed, "model": model, "validate": validate, **changes}


def rows() -> Iterator[Row]:
    """Every kind with three seeds."""
    for halting in HALTING:
        for seed in range(3):
            yield Row(halting, seed)


def carry_out(row: Row, *, updates: int, extra: tuple[str, ...]) -> dict[str, Any]:
    """Trains one model, reads each validation both ways, and returns the numbers."""
    from experiments.trained import train_once
    from loopwright.schema import parse_overrides
    from loopwright.training.model import FromPreset
    from loopwright.training.recipe import make_recipe
    from loopwright.training.report import Objects

    model, laid_over = FromPreset(changes={**SHAPE, "halting": HALTING[row.halting]}).build(row.seed), parse_overrides(extra)
    if row.halting == GATE:
        stage = row.recipe(updates, objective={"kind": "expected-exit"}, validate={"every": 0})
        train_once(make_recipe(stage, changes=laid_over), given=Objects(model=model))
        optim = {**TRAINING["optim"], "lr": 1e-2, "weight_decay": 0.0, "parts": FROZEN}
        chosen = make_recipe(row.recipe(updates, objective={"kind": GATE}, optim=optim), changes=laid_over)
        trained = train_once(chosen, given=Objects(model=model))
        found = [look["valid"][str(DEPTH)] for look in trained.looks]
        old, new, exact = [x["loss"] for x in found], [x["objective"] for x in found], [[x["exact"]] * 2 for x in found]
    else:
        chosen = make_recipe(row.recipe(updates), changes=laid_over)
        last, trained = beside(chosen, model)
        found = [look["valid"][str(DEPTH)] for look in trained.looks]
        old, new = [loss for loss, _ in last], [x["loss"] for x in found]
        exact = [[rate, x["exact"]] for (_, rate), x in zip(last, found, strict=True)]
    places = [old.index(min(old)), new.index(min(new))]
    return {
        "name": row.name, "halting": row.halting, "seed": row.seed, "updates": chosen.updates, "laid_over": list(extra),
        "looks": [look["update"] + 1 for look in trained.looks], "old": old, "new": new, "exact": exact,
        "best": [trained.looks[place]["update"] + 1 for place in places], "worth": [new[place] for place in places],
        "kept": trained.outcome.progress.best_update, "train_seconds": trained.seconds, "origin": made_by(),
    }  # fmt: skip


def beside(chosen: Any, model: Any) -> tuple[list[tuple[float, float]], Any]:
    """Trains a model, and returns loss and exact match of its last state at each validation, with the training."""
    from unittest.mock import patch

    from experiments.trained import train_once
    from loopwright.training import validation
    from loopwright.training.report import Objects

    last, plain = list[tuple[float, float]](), validation.validate

    def both(job: Any, count: int) -> Any:
        trained, job.model.config.read_out = job.model.config.read_out, "last"
        found = plain(job, count)[DEPTH]
        last.append((found["loss"] or 0.0, found["exact"] or 0.0))
        job.model.config.read_out = trained
        return plain(job, count)

    with patch.object(validation, "validate", both):
        return last, train_once(chosen, given=Objects(model=model))


def table(path: Path) -> str:
    """Returns the rows of a file as a table in markdown."""
    head = "| halting | seed | judged before, by validation | judged now | best before, now | worth, by what is trained |"
    lines = [head, "|---|---|---|---|---|---|"]
    for row in sorted((json.loads(line) for line in path.read_text().splitlines()), key=lambda row: row["name"]):
        old, new = (" ".join(f"{value:.3f}" for value in row[name]) for name in ("old", "new"))
        if row["halting"] != GATE:
            old, new = (f"{losses} ({100 * row['exact'][-1][i]:.0f} %)" for i, losses in enumerate((old, new)))
        best, worth = ", ".join(map(str, row["best"])), ", ".join(f"{value:.4f}" for value in row["worth"])
        lines.append(f"| {row['halting']} | {row['seed']} | {old} | {new} | {best} | {worth} |")
    return "\n".join(lines)


def main() -> None:
    """Reads the command line, and trains what is asked for, or shows what there is."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--updates", type=int, default=TRAINING["updates"], help="of each training (default: %(default)s)")
    parser.add_argument("--table", action="store_true", help="print the rows that are there; nothing is trained")
    options = parser.parse_args()
    if options.table:
        print(table(Path(options.out)))
        return
    options.groups = options.groups or "all"
    planned = grouped(options, {"all": rows})
    work = partial(carry_out, updates=options.updates, extra=tuple(options.change))
    run_all(asked_for(options, planned), work, options.out, workers=options.workers, seconds=options.seconds)


if __name__ == "__main__":
    main()
