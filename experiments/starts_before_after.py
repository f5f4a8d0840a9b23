"""Small trainings from the start that a system had here before and from that of its original, with three seeds, all side by side.

    python -m experiments.starts_before_after experiments/results/starts_before_after/rows.jsonl --workers 16 --seconds 170
    python -m experiments.starts_before_after experiments/results/starts_before_after/rows.jsonl --table

`huginn` and `retrofit` answer two-digit addition, `universal` follows trails (recipe universal-act). "before" is N(0, 0.02) for all
that is new. At a small width that is no start that is too large, as it is at full width: "as at full width" has every such map as
many times larger than the original's as N(0, 0.02) is there. --updates 5 shows in a minute that the program runs.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from experiments.side_by_side import made_by
from experiments.study import Named, Study
from experiments.trained import train_given

if TYPE_CHECKING:
    from loopwright.model.causal_lm import LoopedForCausalLM

BEFORE, AFTER, FULL = "before", "after", "as at full width"
NORMAL = {"kind": "normal"}
SMALL = {"vocab_size": 15, "hidden_size": 64, "intermediate_size": 176, "num_attention_heads": 4, "max_position_embeddings": 32}
HUGINN = {**SMALL, "prelude_layers": 1, "core_layers": 2, "coda_layers": 1, "depth": 8}
DENSE = {**SMALL, "prelude_layers": 6, "core_layers": 0, "norm": {"kind": "rms", "eps": 1e-5}}
WIDTH = {"huginn": 5280, "retrofit": 2048}
ADDITION: dict[str, Any] = {
    "data": {"kind": "addition", "digits": 2, "train": 5600, "valid": 300, "test": 1000, "padding": "plain"}, "batch": 64,
    "objective": {"kind": "final"}, "optim": {"kind": "adamw", "lr": 1e-3, "weight_decay": 0.01},
}  # fmt: skip
SHARED: dict[str, Any] = {
    "about": "a start before and after", "schedule": {"kind": "cosine", "warmup": 20, "floor": 0.1},
    "validate": {"every": 0}, "save": {"every": 0, "best": False},
}  # fmt: skip
LAST = 25  # updates whose mean loss is shown


@dataclass(frozen=True)
class Row(Named):
    """One training: of which system, from which start, with which seed."""

    named_by = ("system", "start", "seed")
    alike_by = ("system",)

    system: str
    start: str
    seed: int


def rows(system: str) -> Iterator[Row]:
    """The trainings of a system: every start with three seeds."""
    for start in STARTS[system]:
        for seed in range(3):
            yield Row(system, start, seed)


def huginn(row: Row) -> LoopedForCausalLM:
    """Returns a small Huginn; before, its maps were N(0, 0.02) at every width."""
    from loopwright.model.parts.state import huginn_std

    init: dict[str, Any] = {} if row.start == AFTER else {"init": NORMAL}
    if row.start == FULL:
        init["initializer_range"] = 0.02 * huginn_std(HUGINN["hidden_size"]) / huginn_std(WIDTH["huginn"])
    return fresh("huginn", {**HUGINN, **init}, row.seed)


def retrofit(row: Row, updates: int) -> LoopedForCausalLM:
    """Returns a dense model, trained here, made into a looped one whose projection is new."""
    import loopwright as lw

    dense = fresh(None, DENSE, row.seed)
    chosen = {**SHARED, **ADDITION, "updates": updates, "depth": {"kind": "fixed", "depth": 1}}
    train_given(dense, {**chosen, "seed": row.seed})
    dense.eval().cpu()
    if row.start == FULL:
        dense.config.initializer_range = 0.02 * (WIDTH["retrofit"] / DENSE["hidden_size"]) ** 0.5
    init = {} if row.start == AFTER else {"init": NORMAL}
    return lw.retrofit(dense, "retrofit", prelude=2, core=[3, 4], coda=1, depth=4, seed=row.seed, **init)


def universal(row: Row, changes: Mapping[str, Any]) -> LoopedForCausalLM:
    """Returns the Universal Transformer of the recipe; before, its embeddings were N(0, 0.02) and not scaled."""
    old: dict[str, Any] = {} if row.start == AFTER else {"init": NORMAL, "embedding_scale": 1.0}
    return fresh("universal", {**changes, **old}, row.seed)


def fresh(preset: str | None, changes: Mapping[str, Any], seed: int) -> LoopedForCausalLM:
    """Returns a fresh model of a preset, or of a plain config."""
    from loopwright.training.model import FromPreset

    return FromPreset(preset, dict(changes)).build(seed)


def carry_out(row: Row, *, updates: int, extra: tuple[str, ...]) -> dict[str, Any]:
    """Trains one row and returns its numbers."""
    from loopwright.recipes import recipe

    if row.system == "universal":
        found = recipe("universal-act", [])
        plan = {**SHARED, "data": {**found.data, "train": 20000, "length": 48}, "batch": 32, "depth": dict(found.depth)}
        plan |= {"objective": dict(found.objective), "optim": dict(found.optim)}
        model = universal(row, found.model["changes"])
    else:
        plan = {**SHARED, **ADDITION, "depth": {"kind": "fixed", "depth": 8 if row.system == "huginn" else 4}}
        model = huginn(row) if row.system == "huginn" else retrofit(row, updates)
    done = train_given(model, {**plan, "updates": updates, "seed": row.seed}, extra)
    return {
        "name": row.name, "system": row.system, "start": row.start, "seed": row.seed, "updates": updates, "laid_over": list(extra),
        "init": model.config.init["kind"], "initializer_range": model.config.initializer_range,
        "width": model.config.hidden_size, "parameters": sum(p.numel() for p in model.parameters()),
        "loss": done.losses(LAST), "train_seconds": done.seconds, "origin": made_by(),
    }  # fmt: skip


STARTS: dict[str, tuple[str, ...]] = {
    "huginn": (BEFORE, FULL, AFTER), "retrofit": (BEFORE, FULL, AFTER), "universal": (BEFORE, AFTER),
}  # fmt: skip


def table(found: Sequence[dict[str, Any]]) -> str:
    """Returns the training losses as a table in Markdown, means of some updates half-way and at the end."""
    from experiments.pages import table as markdown

    lines = []
    for system, starts in STARTS.items():
        for start in starts:
            some = sorted((row for row in found if (row["system"], row["start"]) == (system, start)), key=lambda row: row["seed"])
            if some:
                half, end = ([row["loss"][at] for row in some] for at in (len(some[0]["loss"]) // 2, -1))
                seeds = [", ".join(f"{loss:.3f}" for loss in losses) for losses in (half, end)]
                lines.append([system, start, *seeds, f"{statistics.mean(end):.3f}"])
    return markdown(["system", "start", "loss half-way, seeds 0, 1, 2", "at the end, seeds 0, 1, 2", "mean at the end"], lines)


STUDY = Study(
    __doc__, carry_out, {system: partial(rows, system) for system in STARTS}, table=table,
    options={"--updates": {"type": int, "default": 600, "help": "of each training (default: %(default)s)"}},
)  # fmt: skip


if __name__ == "__main__":
    STUDY.main()
