"""Does a model that starts from noise answer alike from every start? Five small models on two-digit addition, all side by side.

    python -m experiments.noise_start experiments/results/noise_start/rows.jsonl --workers 5 --seconds 540
    python -m experiments.noise_start experiments/results/noise_start/rows.jsonl --table

Each is trained at depth 4 and measured on the test rows: the loss from the starts of state seeds 0 to 3 at depth 4, and from seed 0 at
depths 2 to 32. Z₀ is drawn anew for every row of every update; the group `frozen` begins each at the start of seed 0 instead, as
the package did before. --updates 20 shows in a minute that the program runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from experiments.side_by_side import arguments, asked_for, grouped, made_by, run_all
from experiments.trained import train_once

DEPTH = 4
SEEDS = (0, 1, 2, 3)  # of the first state, when measured
DEPTHS = (2, 4, 8, 16, 32)
SPREAD = 0.02  # the largest loss above the least, relative, that counts as alike
SHAPE: dict[str, Any] = {
    "vocab_size": 15, "hidden_size": 64, "intermediate_size": 192, "num_attention_heads": 4, "max_position_embeddings": 32,
    "injection": {"kind": "concat"}, "depth": DEPTH,
}  # fmt: skip
POST = {"norm_placement": ["input", "residual"], "state": {"kind": "noise", "std": 1.0}}
MODELS: dict[str, dict[str, Any]] = {
    "(0, 2⊗4, 0)": {"core_layers": 2, **POST},
    "(0, 4⊗4, 0) pre-norm": {"core_layers": 4, "norm_placement": ["input"], "state": {"kind": "noise"}},
    "(1, 2⊗4, 1)": {"prelude_layers": 1, "core_layers": 2, "coda_layers": 1, **POST},
}
TRAINING: dict[str, Any] = {
    "about": "a start drawn anew", "updates": 1000, "batch": 128, "depth": {"kind": "fixed", "depth": DEPTH},
    "data": {"kind": "addition", "digits": 2, "train": 5600, "valid": 300, "test": 1000, "padding": "plain"},
    "objective": {"kind": "final"}, "optim": {"kind": "adamw", "lr": 1e-3, "weight_decay": 0.01},
    "schedule": {"kind": "cosine", "warmup": 50, "floor": 0.1}, "validate": {"every": 0}, "save": {"every": 0, "best": False},
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One model with one seed of its run."""

    model: str
    seed: int
    frozen: bool = False

    @property
    def name(self) -> str:
        """The row's own name."""
        return f"{'frozen' if self.frozen else 'anew'}/{self.model}/{self.seed}"

    @property
    def kind(self) -> str:
        """What decides how long it takes."""
        return self.model

    def recipe(self, updates: int) -> dict[str, Any]:
        """Returns how it is trained, as plain data."""
        return {**TRAINING, "updates": updates, "seed": self.seed, "model": {"kind": "given", "what": self.model}}


def rows(*, frozen: bool = False) -> Iterator[Row]:
    """The five models: one of them with three seeds."""
    first, *others = MODELS
    for seed in range(3):
        yield Row(first, seed, frozen)
    for model in others:
        yield Row(model, 0, frozen)


def carry_out(row: Row, *, updates: int, extra: tuple[str, ...]) -> dict[str, Any]:
    """Trains one model, measures it from every start and at every depth, and returns the numbers."""
    import torch

    import loopwright as lw
    from loopwright.settings import parse_overrides
    from loopwright.train.models import FromPreset
    from loopwright.train.recipe import make_recipe
    from loopwright.train.state import Objects

    model = FromPreset(changes={**SHAPE, **MODELS[row.model]}).build(row.seed)
    if row.frozen:
        object.__setattr__(model, "start_anew", lambda e, p, seeds: model.state(e, p.span.positions, 0))
    chosen = make_recipe(row.recipe(updates), changes=parse_overrides(extra))
    trained = train_once(chosen, given=Objects(model=model))
    torch.set_float32_matmul_precision("highest")
    data = trained.outcome.splits
    from_starts = lw.evaluate(model, state_seeds=len(SEEDS), data=data, depths=DEPTH)["test"]
    by_depth = lw.evaluate(model, data=data, depths=DEPTHS)["test"]
    return {
        "name": row.name, "model": row.model, "seed": row.seed, "frozen": row.frozen, "updates": chosen.updates,
        "laid_over": list(extra), "parameters": sum(p.numel() for p in model.parameters()), "rows": by_depth.rows,
        "loss": trained.losses(50), "train_seconds": trained.seconds,
        "by_seed": {str(seed): losses[0] for seed, losses in zip(SEEDS, from_starts.losses, strict=True)},
        "exact_by_seed": {str(seed): exacts[0] for seed, exacts in zip(SEEDS, from_starts.exacts, strict=True)},
        "by_depth": {str(depth): loss for depth, loss in zip(by_depth.depth, by_depth.loss, strict=True)},
        "origin": made_by(),
    }  # fmt: skip


def spread(by_seed: dict[str, float]) -> float:
    """Returns by how much of the least loss the largest lies above it."""
    return max(by_seed.values()) / min(by_seed.values()) - 1


def table(path: Path) -> str:
    """Returns the rows of a file as a table in markdown, and how many are alike from every start."""
    found = [json.loads(line) for line in path.read_text().splitlines()]
    lines = [
        "| model | run seed | Z₀ in training | state_seed 0, 1, 2, 3 | spread | depths 2, 4, 8, 16, 32 |",
        "|---|---|---|---|---|---|",
    ]
    for row in sorted(found, key=lambda row: row["name"]):
        seeds, depths = (", ".join(f"{value:.3f}" for value in row[name].values()) for name in ("by_seed", "by_depth"))
        how = "one start" if row["frozen"] else "drawn anew"
        lines.append(f"| {row['model']} | {row['seed']} | {how} | {seeds} | {100 * spread(row['by_seed']):.1f} % | {depths} |")
    for frozen, how in ((False, "drawn anew"), (True, "one start")):
        some = [row for row in found if row["frozen"] is frozen]
        alike = sum(spread(row["by_seed"]) <= SPREAD for row in some)
        lines += [f"{how}: {alike} of {len(some)} within {SPREAD:.0%} from every start"] if some else []
    return "\n".join(lines)


def main() -> None:
    """Reads the command line, and trains what is asked for, or shows what there is."""
    parser = arguments(__doc__ or "")
    parser.add_argument(
        "--updates", type=int, default=TRAINING["updates"], help=f"of each training (default: {TRAINING['updates']})"
    )
    parser.add_argument("--table", action="store_true", help="print the rows that are there; nothing is trained")
    options = parser.parse_args()
    if options.table:
        print(table(Path(options.out)))
        return
    options.groups = options.groups or "anew"
    planned = grouped(options, {"anew": rows, "frozen": partial(rows, frozen=True)})
    work = partial(carry_out, updates=options.updates, extra=tuple(options.change))
    run_all(asked_for(options, planned), work, options.out, workers=options.workers, seconds=options.seconds)


if __name__ == "__main__":
    main()
