"""By which read-out is a model that halts validated, and its best kept? Small runs, judged the old way and the new, side by side.

    python -m experiments.read_outs experiments/results/read_outs/rows.jsonl --workers 12
    python -m experiments.read_outs experiments/results/read_outs/rows.jsonl --table

`ponder` trains the mean of the states, under three kinds of ACT; each validation is read by the last state, as the package did
before, and by the mean. `exit-gate` trains a gate on a model that stays as it is; each validation has the model's loss, which was
judged before, and the gate's own. A row says which update either way calls the best, and what that update is worth by the number
that is trained. --updates 20 shows in a minute that the program runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.side_by_side import made_by
from experiments.study import Named, Study
from experiments.trained import Trained, train_given

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
class Row(Named):
    """One kind of halting with one seed."""

    named_by = ("halting", "seed")
    alike_by = ("halting",)

    halting: str
    seed: int

    def recipe(self, updates: int, **changes: Any) -> dict[str, Any]:
        """Returns how it is trained, as plain data; validated six times."""
        validate = {"every": max(updates // 6, 1), "depths": [DEPTH], "rows": 300}
        return {**TRAINING, "updates": updates, "seed": self.seed, "validate": validate, **changes}


def rows() -> Iterator[Row]:
    """Every kind with three seeds."""
    for halting in HALTING:
        for seed in range(3):
            yield Row(halting, seed)


def carry_out(row: Row, *, updates: int, extra: tuple[str, ...]) -> dict[str, Any]:
    """Trains one model, reads each validation both ways, and returns the numbers."""
    from loopwright.training.model import FromPreset

    model = FromPreset(changes={**SHAPE, "halting": HALTING[row.halting]}).build(row.seed)
    if row.halting == GATE:
        train_given(model, row.recipe(updates, objective={"kind": "expected-exit"}, validate={"every": 0}), extra)
        optim = {**TRAINING["optim"], "lr": 1e-2, "weight_decay": 0.0, "parts": FROZEN}
        trained = train_given(model, row.recipe(updates, objective={"kind": GATE}, optim=optim), extra)
        found = [look["valid"][str(DEPTH)] for look in trained.looks]
        old, new, exact = [x["loss"] for x in found], [x["objective"] for x in found], [[x["exact"]] * 2 for x in found]
    else:
        last, trained = beside(model, row.recipe(updates), extra)
        found = [look["valid"][str(DEPTH)] for look in trained.looks]
        old, new = [loss for loss, _ in last], [x["loss"] for x in found]
        exact = [[rate, x["exact"]] for (_, rate), x in zip(last, found, strict=True)]
    places = [old.index(min(old)), new.index(min(new))]
    return {
        "name": row.name, "halting": row.halting, "seed": row.seed, "updates": trained.outcome.progress.update,
        "laid_over": list(extra), "looks": [look["update"] + 1 for look in trained.looks], "old": old, "new": new, "exact": exact,
        "best": [trained.looks[place]["update"] + 1 for place in places], "worth": [new[place] for place in places],
        "kept": trained.outcome.progress.best_update, "train_seconds": trained.seconds, "origin": made_by(),
    }  # fmt: skip


def beside(model: Any, plan: dict[str, Any], extra: Sequence[str]) -> tuple[list[tuple[float, float]], Trained]:
    """Trains a model, and returns loss and exact match of its last state at each validation, with the training."""
    from unittest.mock import patch

    from loopwright.training import validation

    last, plain = list[tuple[float, float]](), validation.validate

    def both(job: Any, count: int) -> Any:
        trained, job.model.config.read_out = job.model.config.read_out, "last"
        found = plain(job, count)[DEPTH]
        last.append((found["loss"] or 0.0, found["exact"] or 0.0))
        job.model.config.read_out = trained
        return plain(job, count)

    with patch.object(validation, "validate", both):
        return last, train_given(model, plan, extra)


def table(found: Sequence[dict[str, Any]]) -> str:
    """Returns the rows as a table in Markdown."""
    from experiments.pages import table as markdown

    lines = []
    for row in sorted(found, key=lambda row: row["name"]):
        old, new = (" ".join(f"{value:.3f}" for value in row[name]) for name in ("old", "new"))
        if row["halting"] != GATE:
            old, new = (f"{losses} ({100 * row['exact'][-1][i]:.0f} %)" for i, losses in enumerate((old, new)))
        best, worth = ", ".join(map(str, row["best"])), ", ".join(f"{value:.4f}" for value in row["worth"])
        lines.append([row["halting"], str(row["seed"]), old, new, best, worth])
    head = ["halting", "seed", "judged before, by validation", "judged now", "best before, now", "worth, by what is trained"]
    return markdown(head, lines)


STUDY = Study(
    __doc__, carry_out, {"all": rows}, table=table,
    options={"--updates": {"type": int, "default": TRAINING["updates"], "help": "of each training (default: %(default)s)"}},
)  # fmt: skip


if __name__ == "__main__":
    STUDY.main()
