"""What does a relaxed recursive transformer lose where only its low-rank updates train? Both ways from the same start.

    python -m experiments.relaxed_all experiments/results/relaxed_all/rows.jsonl --workers 6 --seconds 180
    python -m experiments.relaxed_all experiments/results/relaxed_all/rows.jsonl --table

A dense model of 6 layers learns two-digit addition, becomes 3 tied layers run twice with updates of rank 4 (system `relaxed`), and
is healed on the same task: with all weights, as the paper trains it, and with the low-rank updates alone, as the package did once.
--updates 20 --healing 10 shows in a minute that the program runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from experiments.side_by_side import made_by
from experiments.study import Named, Study
from experiments.trained import Trained, train_given

SHAPE: dict[str, Any] = {
    "vocab_size": 15, "hidden_size": 64, "intermediate_size": 192, "num_attention_heads": 4, "max_position_embeddings": 32,
    "prelude_layers": 6, "core_layers": 0, "depth": 1,
}  # fmt: skip
RELAXED: dict[str, Any] = {"layout": {"kind": "relaxed", "tied": 3}, "adapters": {"rank": 4}}
UPDATES, HEALING = 400, 150
TRAINING: dict[str, Any] = {
    "batch": 128, "data": {"kind": "addition", "digits": 2, "train": 5600, "valid": 300, "test": 1000, "padding": "plain"},
    "objective": {"kind": "final"}, "optim": {"kind": "adamw", "lr": 2e-3, "weight_decay": 0.01},
    "schedule": {"kind": "cosine", "warmup": 20, "floor": 0.1}, "validate": {"every": 0}, "save": {"every": 0, "best": False},
}  # fmt: skip


@dataclass(frozen=True)
class Row(Named):
    """One healing with one seed; the dense source hangs on the seed alone."""

    named_by = ("trains", "seed")
    alike_by = ("trains",)

    trains: str
    seed: int

    def recipe(self, updates: int, depth: int) -> dict[str, Any]:
        """Returns a training as plain data: of the dense source at depth 1, of the healing at 2."""
        fixed = {"kind": "fixed", "depth": depth}
        return {**TRAINING, "about": self.name, "updates": updates, "seed": self.seed, "depth": fixed}


def rows(trains: str) -> Iterator[Row]:
    """Three seeds of one way to heal."""
    yield from (Row(trains, seed) for seed in range(3))


def carry_out(row: Row, *, updates: int, healing: int, extra: tuple[str, ...]) -> dict[str, Any]:
    """Trains a dense model, ties it, heals it, and returns the numbers."""
    import loopwright as lw
    from loopwright.retrofitting.surgery import freeze_base
    from loopwright.training.model import FromPreset

    def trained(model: Any, count: int, depth: int) -> Trained:
        return train_given(model, row.recipe(count, depth), extra)

    def measured(model: Any, depth: int) -> dict[str, Any]:
        report: Any = lw.evaluate(model, data=dense.outcome.splits, depths=depth)["test"]
        return {"loss": report.loss[0], "exact": report.exact[0]}

    dense = trained(FromPreset(changes=SHAPE).build(row.seed), updates, 1)
    source = dense.outcome.model
    tied = lw.retrofit(source, "relaxed", seed=row.seed, **RELAXED)
    if row.trains == "parts":
        freeze_base(tied)
    before = measured(tied, 2)
    healed = trained(tied, healing, 2)
    return {
        "name": row.name, "trains": row.trains, "seed": row.seed, "updates": updates, "healing": healing, "laid_over": list(extra),
        "parameters": sum(p.numel() for p in tied.parameters()),
        "trained": sum(p.numel() for p in tied.parameters() if p.requires_grad),
        "dense": measured(source, 1), "tied": before, "healed": measured(healed.outcome.model, 2),
        "losses": healed.losses(50), "train_seconds": dense.seconds + healed.seconds, "origin": made_by(),
    }  # fmt: skip


def table(found: Sequence[dict[str, Any]]) -> str:
    """Returns the rows as a table in Markdown."""
    from experiments.pages import table as markdown

    lines = []
    for row in sorted(found, key=lambda row: row["name"]):
        cells = [f"{row[what]['loss']:.4f} ({100 * row[what]['exact']:.1f} %)" for what in ("dense", "tied", "healed")]
        lines.append([row["trains"], f"{row['trained']:,} of {row['parameters']:,}", str(row["seed"]), *cells])
    return markdown(["trained", "parameters", "seed", "dense", "tied, not healed", "healed"], lines)


STUDY = Study(
    __doc__, carry_out, {"all": partial(rows, "all"), "parts": partial(rows, "parts")}, table=table,
    options={
        "--updates": {"type": int, "default": UPDATES, "help": "of the dense model (default: %(default)s)"},
        "--healing": {"type": int, "default": HEALING, "help": "updates of the tied model (default: %(default)s)"},
    },
)  # fmt: skip


if __name__ == "__main__":
    STUDY.main()
