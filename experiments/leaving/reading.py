"""What exit rules give on held-out text at equal mean depth: losses of documents where tokens take so many steps on average.

All from one pass: `loopwright.evaluation.exits` reads every step out. Between two limits of a rule a token draws one of the two,
as in `experiments.halting`, so that every rule can be read at the same mean depths as a fixed depth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from experiments.halting.reading import LIMITS, SIMPLE, between, limits
from experiments.pages import Result
from experiments.thin import rounded
from loopwright.evaluation.exits import StepTable, by_row, exit_depths, of_text, read_steps
from loopwright.evaluation.text import Passages
from loopwright.generation.exit_rules import build_exit
from loopwright.model.causal_lm import LoopedForCausalLM

MOST = 8  # steps of a token: twice the trained depth of the wide core, and more than the mean one of the Huginn-like model
MEANS = (2, 3, 4, 6)  # mean depths at which rules stand beside a fixed depth
FIXED, DIGITS = "fixed", 5


def exits(model: LoopedForCausalLM, passages: Passages, *, batch: int, most: int = MOST) -> dict[str, Any]:
    """Returns the summed losses of each document, in the order of `folded`, by rule and mean depth (none where a rule has no limit
    with that mean), and the mean steps and the loss of each rule at the limit that it has unasked."""
    part = of_text(model, passages, None, batch)
    with torch.no_grad():
        table = read_steps(model, part.pairs(), {name: build_exit(name, model) for name in SIMPLE}, most)
    numbers = {document: place for place, document in enumerate(sorted({row.document for row in passages.rows}))}
    document = torch.tensor([numbers[row.document] for row in passages.rows])[table.row]

    def summed(losses: Tensor) -> list[float]:
        return rounded(by_row(losses.double(), document, len(numbers)).tolist(), DIGITS)

    found: dict[str, Any] = {FIXED: {"losses": [summed(table.losses[mean - 1]) for mean in MEANS]}}
    for family in SIMPLE:
        taken, losses = depths_of(model, table, family), table.read(family)[0]
        steps = taken(None)
        own = [float(steps.double().mean()), float(after(losses, steps).double().mean())]
        found[family] = {"own": own, "losses": [summed(each) if len(each) else [] for each in at_means(family, table, taken)]}
    return found


def depths_of(model: LoopedForCausalLM, table: StepTable, family: str) -> Callable[[float | None], Tensor]:
    """Returns what tells the steps of each token [N] by a rule with a limit, or with the one that it has unasked."""
    measured = table.measured[family].to(model.device)  # hundreds of limits are tried on it

    def taken(limit: float | None) -> Tensor:
        rule = build_exit(family if limit is None else {"kind": family, LIMITS[family]: limit}, model)
        return exit_depths(model, rule, measured).cpu()

    return taken


def at_means(family: str, table: StepTable, taken: Callable[[float | None], Tensor]) -> list[Tensor]:
    """Returns the loss of each token [N] at every mean depth of MEANS; an empty one where the rule does not have it."""
    losses = table.read(family)[0]
    points = sorted((float(taken(limit).double().mean()), limit) for limit in limits(family, table.measured[family]))
    found = []
    for mean in MEANS:
        at = between([steps for steps, _ in points], mean)
        if at is None:
            found.append(losses.new_zeros(0))
            continue
        low, high, share = at
        ends = [after(losses, taken(points[place][1])).double() for place in (low, high)]
        found.append((1 - share) * ends[0] + share * ends[1])
    return found


def after(losses: Tensor, steps: Tensor) -> Tensor:
    """Returns the loss of each token [N] after its own steps, of losses [S, N]."""
    return losses.gather(0, steps[None] - 1)[0]


def leaving(run: Result, rule: str) -> Result:
    """Returns a run as if mean depths were depths: its texts have the losses of a rule, or of fixed depths, at MEANS."""
    texts = {}
    for name, each in run["exits"].items():
        held = run["texts"][name]
        texts[name] = {**held, **report(held, each[rule]["losses"])}
    return {**run, "label": rule, "texts": texts}


def report(held: Mapping[str, Any], losses: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Returns what a report of held-out text says by depth, of losses of documents at MEANS."""
    whole = [sum(each) / held["targets"] if each else None for each in losses]
    nothing = [None] * len(MEANS)
    empty = dict.fromkeys(("loss_low", "loss_high", "perplexity", "bits_per_byte"), nothing)
    return {"depth": list(MEANS), "loss": whole, "losses": losses, **empty}
