"""Does a model that starts from noise answer alike from every start? Five small models on two-digit addition, all side by side.

    python -m experiments.noise_start experiments/results/noise_start/lengths.jsonl --workers 10 --seconds 540
    python -m experiments.noise_start experiments/results/noise_start/lengths.jsonl --table

Each is trained at depth 4, for 300, 600 and 1,000 updates, each a training of its own with its schedule to the end, and measured on
the test rows: the loss from the starts of state seeds 0 to 3 at depth 4, and from seed 0 at depths 2 to 32. Z₀ is drawn anew for
every row of every update; the group `frozen` begins each at the start of seed 0 instead, as the package did before. The answer is
that after 600 updates, which was settled before any of these rows were made; the others show how it moves with the loss.

The worst start is given relative to the best, with an interval that holds for all six pairs of starts at once: all starts read the
same rows, so their differences are paired. --change updates=5 shows in a minute that the program runs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from experiments.side_by_side import made_by
from experiments.study import Study
from experiments.trained import train_given

if TYPE_CHECKING:
    from torch import Tensor

    from loopwright.model.causal_lm import LoopedForCausalLM

DEPTH = 4
LENGTHS, ANSWER = (300, 600, 1000), 600
SEEDS = (0, 1, 2, 3)  # of the first state, when measured
DEPTHS = (2, 4, 8, 16, 32)
SPREAD = 0.02  # the largest loss above the least, relative, that counts as alike
WIDTH = 2.638  # standard errors of an interval of 95 % for all pairs of four starts at once: the normal quantile of 0.05 / 6
BATCH = 500
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
    "about": "a start drawn anew", "updates": ANSWER, "batch": 128, "depth": {"kind": "fixed", "depth": DEPTH},
    "data": {"kind": "addition", "digits": 2, "train": 4000, "valid": 300, "test": 2000, "padding": "plain"},
    "objective": {"kind": "final"}, "optim": {"kind": "adamw", "lr": 1e-3, "weight_decay": 0.01},
    "schedule": {"kind": "cosine", "warmup": 50, "floor": 0.1}, "validate": {"every": 0}, "save": {"every": 0, "best": False},
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One model with one seed of its run, trained for so many updates."""

    model: str
    seed: int
    updates: int
    frozen: bool = False

    @property
    def name(self) -> str:
        """The row's own name."""
        return f"{'frozen' if self.frozen else 'anew'}/{self.updates}/{self.model}/{self.seed}"

    @property
    def kind(self) -> str:
        """What decides how long it takes."""
        return f"{self.model}/{self.updates}"

    def recipe(self) -> dict[str, Any]:
        """Returns how it is trained, as plain data."""
        return {**TRAINING, "updates": self.updates, "seed": self.seed}


def rows(*, frozen: bool = False) -> Iterator[Row]:
    """The five models, one of them with three seeds, at every length; the longest first."""
    first, *others = MODELS
    for updates in sorted(LENGTHS, reverse=True):
        for model, seeds in ((first, 3), *((model, 1) for model in others)):
            yield from (Row(model, seed, updates, frozen) for seed in range(seeds))


def carry_out(row: Row, *, extra: tuple[str, ...]) -> dict[str, Any]:
    """Trains one model, measures it from every start and at every depth, and returns the numbers."""
    import torch

    import loopwright as lw
    from loopwright.training.model import FromPreset

    model = FromPreset(changes={**SHAPE, **MODELS[row.model]}).build(row.seed)
    if row.frozen:
        object.__setattr__(model, "start_anew", lambda e, p, seeds: model.state(e, p.span.positions, 0))
    trained = train_given(model, row.recipe(), extra)
    torch.set_float32_matmul_precision("highest")
    data = trained.outcome.splits
    means, covariance = from_starts(model, data.tests["test"])
    by_depth: Any = lw.evaluate(model, data=data, depths=DEPTHS)["test"]
    return {
        "name": row.name, "model": row.model, "seed": row.seed, "frozen": row.frozen, "updates": trained.outcome.progress.update,
        "laid_over": list(extra), "parameters": sum(p.numel() for p in model.parameters()), "rows": by_depth.rows,
        "loss": trained.losses(50), "train_seconds": trained.seconds,
        "by_seed": dict(zip(map(str, SEEDS), means, strict=True)), "covariance": covariance,
        "by_depth": {str(depth): loss for depth, loss in zip(by_depth.depth, by_depth.loss, strict=True)},
        "exact": by_depth.exact[by_depth.depth.index(DEPTH)], "origin": made_by(),
    }  # fmt: skip


def from_starts(model: LoopedForCausalLM, source: Any) -> tuple[list[float], list[list[float]]]:
    """Returns the mean loss from each start, and the covariance of these means over draws of the rows, which all starts read."""
    import torch

    from loopwright.metrics.score import row_losses

    sums, counts, device = [], [], next(model.parameters()).device
    for first in range(0, len(source), BATCH):
        batch = source.batch(range(first, min(first + BATCH, len(source)))).to(device)
        given = {"attention_mask": batch.attention_mask, "depth": DEPTH, "use_cache": False}
        with torch.no_grad():
            found = [row_losses(model(batch.input_ids, state_seed=seed, **given).logits, batch.labels) for seed in SEEDS]
        sums.append(torch.stack([loss for loss, _ in found]).cpu())
        counts.append(found[0][1].cpu())
    return means_of(torch.cat(sums, 1), torch.cat(counts))


def means_of(sums: Tensor, counts: Tensor) -> tuple[list[float], list[list[float]]]:
    """Returns the mean over targets for each start, of summed losses [starts, rows] and numbers of targets [rows], and the
    covariance of these means: that of the ratio of two sums over rows."""
    import torch

    means = sums.sum(1) / counts.sum()
    parts = (sums - means[:, None] * counts) / counts.double().mean()
    return means.tolist(), (torch.cov(parts) / len(counts)).tolist()


def spread(row: dict[str, Any]) -> tuple[float, float]:
    """Returns by how much of the least loss the largest lies above it, and half the width of its interval."""
    losses, covariance = list(row["by_seed"].values()), row["covariance"]
    low, high = losses.index(min(losses)), losses.index(max(losses))
    ratio = losses[high] / losses[low]
    variance = covariance[high][high] - 2 * ratio * covariance[high][low] + ratio**2 * covariance[low][low]
    return ratio - 1, WIDTH * math.sqrt(max(variance, 0)) / losses[low]


def verdict(row: dict[str, Any]) -> str:
    """Says whether all starts are alike: `alike`, `apart`, or `open` where the rows do not decide."""
    found, half = spread(row)
    return "alike" if found + half <= SPREAD else "apart" if found - half > SPREAD else "open"


def table(found: Sequence[dict[str, Any]]) -> str:
    """Returns the rows as a table in markdown, and how many are alike from every start."""
    heads = [
        "updates",
        "Z₀ in training",
        "model",
        "run seed",
        "state_seed 0, 1, 2, 3",
        "largest above least",
        "nats",
        f"{SPREAD:.0%}",
    ]
    lines = [f"| {' | '.join(heads)} | depths 2, 4, 8, 16, 32 |", "|" + "---|" * (len(heads) + 1)]
    for row in sorted(found, key=lambda row: (row["updates"], row["frozen"], row["model"], row["seed"])):
        seeds, depths = (", ".join(f"{value:.4g}" for value in row[name].values()) for name in ("by_seed", "by_depth"))
        (share, half), least = spread(row), min(row["by_seed"].values())
        told = f"{100 * share:.1f} ± {100 * half:.1f} % | {share * least:.4f} ± {half * least:.4f} | {verdict(row)}"
        how = "one start" if row["frozen"] else "drawn anew"
        lines.append(f"| {row['updates']} | {how} | {row['model']} | {row['seed']} | {seeds} | {told} | {depths} |")
    for updates, frozen in sorted({(row["updates"], row["frozen"]) for row in found}):
        some = [row for row in found if (row["updates"], row["frozen"]) == (updates, frozen)]
        count = Counter(map(verdict, some))
        said = ", ".join(f"{count[name]} {name}" for name in ("alike", "open", "apart"))
        point = sum(spread(row)[0] <= SPREAD for row in some)
        how = f"{updates} updates, {'one start' if frozen else 'drawn anew'}{' (the answer)' if updates == ANSWER else ''}"
        lines.append(f"{how}: {point} of {len(some)} models within {SPREAD:.0%} from every start; by the interval {said}")
    return "\n".join(lines)


STUDY = Study(__doc__, carry_out, {"anew": rows, "frozen": partial(rows, frozen=True)}, table=table)


if __name__ == "__main__":
    STUDY.main()
