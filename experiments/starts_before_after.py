"""Small trainings from the start that a system had here before and from that of its original, with three seeds, all side by side.

    python -m experiments.starts_before_after experiments/results/starts_before_after/rows.jsonl --workers 16 --seconds 170
    python -m experiments.starts_before_after experiments/results/starts_before_after/rows.jsonl --table

`huginn` and `retrofit` answer two-digit addition, `universal` follows trails (recipe universal-act). "before" is N(0, 0.02) for all
that is new. At a small width that is no start that is too large, as it is at full width: "as at full width" has every such map as
many times larger than the original's as N(0, 0.02) is there. --updates 5 shows in a minute that the program runs.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.side_by_side import arguments, asked_for, grouped, made_by, run_all
from experiments.trained import train_once

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
class Row:
    """One training: of which system, from which start, with which seed."""

    system: str
    start: str
    seed: int

    @property
    def name(self) -> str:
        """The row's own name."""
        return f"{self.system}/{self.start}/{self.seed}"

    @property
    def kind(self) -> str:
        """What decides how long it takes."""
        return self.system


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
    trained(dense, chosen, row)
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


def trained(model: LoopedForCausalLM, plan: Mapping[str, Any], row: Row, extra: tuple[str, ...] = ()) -> Any:
    """Trains a model in place by a recipe as plain data."""
    from loopwright.schema import parse_overrides
    from loopwright.training.recipe import make_recipe
    from loopwright.training.report import Objects

    data = {**plan, "seed": row.seed, "model": {"kind": "given", "what": row.name}}
    return train_once(make_recipe(data, changes=parse_overrides(extra)), given=Objects(model=model))


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
    done = trained(model, {**plan, "updates": updates}, row, extra)
    return {
        "name": row.name, "system": row.system, "start": row.start, "seed": row.seed, "updates": updates, "laid_over": list(extra),
        "init": model.config.init["kind"], "initializer_range": model.config.initializer_range,
        "width": model.config.hidden_size, "parameters": sum(p.numel() for p in model.parameters()),
        "loss": done.losses(LAST), "train_seconds": done.seconds, "origin": made_by(),
    }  # fmt: skip


STARTS: dict[str, tuple[str, ...]] = {
    "huginn": (BEFORE, FULL, AFTER), "retrofit": (BEFORE, FULL, AFTER), "universal": (BEFORE, AFTER),
}  # fmt: skip


def table(path: Path) -> str:
    """Returns the training losses of a file as a table in markdown, means of some updates half-way and at the end."""
    found = [json.loads(line) for line in path.read_text().splitlines()]
    lines = [
        "| system | start | loss half-way, seeds 0, 1, 2 | at the end, seeds 0, 1, 2 | mean at the end |",
        "|---|---|---|---|---|",
    ]
    for system, starts in STARTS.items():
        for start in starts:
            some = sorted((row for row in found if (row["system"], row["start"]) == (system, start)), key=lambda row: row["seed"])
            if not some:
                continue
            half, end = ([row["loss"][at] for row in some] for at in (len(some[0]["loss"]) // 2, -1))
            seeds = [", ".join(f"{loss:.3f}" for loss in losses) for losses in (half, end)]
            lines.append(f"| {system} | {start} | {seeds[0]} | {seeds[1]} | {statistics.mean(end):.3f} |")
    return "\n".join(lines)


def main() -> None:
    """Reads the command line, and trains what is asked for, or shows what there is."""
    parser = arguments(__doc__ or "")
    parser.add_argument("--updates", type=int, default=600, help="of each training (default: 600)")
    parser.add_argument("--table", action="store_true", help="print the rows that are there; nothing is trained")
    options = parser.parse_args()
    if options.table:
        print(table(Path(options.out)))
        return
    groups: dict[str, Callable[[], Iterator[Row]]] = {system: partial(rows, system) for system in STARTS}
    work = partial(carry_out, updates=options.updates, extra=tuple(options.change))
    run_all(asked_for(options, grouped(options, groups)), work, options.out, workers=options.workers, seconds=options.seconds)


if __name__ == "__main__":
    main()
