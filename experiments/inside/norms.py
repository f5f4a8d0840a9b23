"""Norms or loop: what Huginn's norms are worth with a loop and without, and what the loop is worth with these norms.

Two models are compared over the seeds they share, each at its own depth, by the rule of `experiments.seeds`. The control's rows
keep no losses of single passages, so that beside it there is no interval over documents, and nothing is called decided.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from experiments.inside.train_plan import CONTROL, CONTROL_LAYERS, STEPS, Row, written
from experiments.pages import by_seed, signed, table
from experiments.seeds import averaged, over_seeds, shared, verdict
from loopwright.evaluation.paired import compare
from loopwright.evaluation.text import HeldOut
from loopwright.model.config import LoopedConfig
from loopwright.model.cost import pass_flops

Run = Mapping[str, Any]
LOOP, PRE = Row("huginn", 4, injected=True), Row("sandwich", 4, injected=True)
DENSE = {layers: Row("huginn", dense=layers) for layers in (8, CONTROL_LAYERS, 20)}
# what is compared: the first differs from the second by its norms, or by its loop alone
PAIRS = (*((LOOP, row) for row in DENSE.values()), (LOOP, PRE), (DENSE[CONTROL_LAYERS], Row(CONTROL)))
CONTEXT = 256
HEAD = (
    "first", "second", "parameters, second / first", "FLOPs, second / first", "seed by seed", "over seeds", "over documents",
    "loss of the first",
)  # fmt: skip


@dataclass(frozen=True)
class Apart:
    """The loss of one model less that of another: the mean, seed by seed, and its intervals at 95 %."""

    of_seeds: tuple[float, ...]
    documents: tuple[float, float] | None  # none where a row keeps no losses of single passages

    @property
    def mean(self) -> float:
        """The mean over the seeds."""
        return fmean(self.of_seeds)

    @property
    def seeds(self) -> tuple[float, float]:
        """The interval over seeds."""
        return over_seeds(self.of_seeds)

    @property
    def verdict(self) -> str:
        """What is decided about the loss of the first: "lower", "higher", "not resolved", or what cannot be said."""
        if self.documents is None:
            return "documents not compared"
        return verdict(self.seeds, self.documents)


def apart(runs: Sequence[Run], first: Row, second: Row) -> Apart | None:
    """Returns how the first model does against the second; none where they share no seed."""
    ordered = sorted(map(dict, runs), key=lambda run: int(run["seed"]))
    both = shared(*([run for run in ordered if run["label"] == row.label] for row in (first, second)))
    if not both:
        return None
    depths = [STEPS if row.layers["core_layers"] else 1 for row in (first, second)]
    of_seeds = tuple(loss(a, depths[0]) - loss(b, depths[1]) for a, b in both)
    if not all("losses" in run["held_out"] for pair in both for run in pair):
        return Apart(of_seeds, None)
    reports = ([HeldOut.of(run["held_out"]) for run in side] for side in zip(*both, strict=True))
    found = compare(*(averaged(side, depth) for side, depth in zip(reports, depths, strict=True)))
    return Apart(of_seeds, (found.difference_low, found.difference_high))


def loss(run: Run, depth: int) -> float:
    """Returns a run's held-out loss at a depth."""
    return float(run["held_out"]["loss"][run["held_out"]["depth"].index(depth)])


def size(runs: Sequence[Run], row: Row) -> int:
    """Returns how many parameters a model has."""
    (count,) = {run["parameters"] for run in runs if run["label"] == row.label}
    return int(count)


def flops(row: Row) -> int:
    """Returns the FLOPs of a forward pass over one context."""
    return pass_flops(LoopedConfig(**row.recipe("", "", CONTEXT)["model"]["changes"]), length=CONTEXT)["total"]


def norms_table(runs: Sequence[Run]) -> str:
    """Returns every pair: how much of the first model's parameters and FLOPs the second has, and how far their losses are apart."""
    lines = []
    for first, second in PAIRS:
        found = apart(runs, first, second)
        if found is None:
            continue
        sizes = [size(runs, second) / size(runs, first), flops(second) / flops(first)]
        documents = "–" if found.documents is None else signed(found.mean, *found.documents)
        lines.append([written(first.label), written(second.label), *(f"{each:.2f}" for each in sizes),
                      by_seed(found.of_seeds), signed(found.mean, *found.seeds), documents, found.verdict])  # fmt: skip
    return table(HEAD, lines)
