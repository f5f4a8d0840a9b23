"""Tables of rules that leave the loop early, and of easy, middle and hard documents, for any looped model with seeds."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise

from experiments.halting.reading import SIMPLE
from experiments.leaving.reading import FIXED, MEANS, leaving
from experiments.pages import Result, by_seed, number, signed, spread, table
from experiments.seeds import Pooled, averaged, mean_loss, of_documents, pooled, reports
from loopwright.evaluation.text import HeldOut
from loopwright.metrics.intervals import by_unit

THIRDS = ("easy", "middle", "hard")


def against_fixed(runs: Sequence[Result], rule: str, text: str, mean: int) -> Pooled | None:
    """Returns an exit rule against a fixed depth of as many steps; None where the rule has no limit with that mean in every run."""
    both = ([leaving(run, name) for run in runs] for name in (rule, FIXED))
    return pooled(*both, text, mean)


def exit_table(runs: Sequence[Result], text: str) -> str:
    """Returns what exit rules give at equal mean depth, against that fixed depth."""
    lines = []
    for rule in SIMPLE if runs else ():
        for mean in MEANS:
            found = against_fixed(runs, rule, text, mean)
            if found is None:
                lines.append([rule, str(mean), *["–"] * 5])
                continue
            fixed = mean_loss(reports([leaving(run, FIXED) for run in runs], text), mean)
            verdict = found.verdict if len(found.seeds) > 1 else "one seed"
            told = [signed(found.difference, found.low, found.high), by_seed(found.of_seeds), verdict]
            lines.append([rule, str(mean), number(fixed), number(fixed + found.difference), *told])
    head = ["rule", "mean steps", "fixed depth", "the rule", "difference (95 %, documents)", "by seed", "the rule's loss is"]
    return table(head, lines)


def own_limits(runs: Sequence[Result], text: str) -> str:
    """Returns mean steps and loss of each rule at the limit that it has unasked."""
    lines = []
    for rule in SIMPLE if runs else ():
        steps, losses = zip(*(run["exits"][text][rule]["own"] for run in runs), strict=True)
        lines.append([rule, spread(steps, 2), spread(losses)])
    return table(["rule", "mean steps", "loss"], lines)


def in_thirds(found: Sequence[HeldOut], depth: int) -> dict[str, frozenset[int]]:
    """Returns the documents of a text in three parts, by the loss per token that a model has on each at a depth (the mean of its
    seeds)."""
    losses, targets, units = averaged(found, depth).at()
    order = (by_unit(losses, units) / by_unit(targets.double(), units)).argsort()
    documents = sorted(set(found[0].document_of))
    ends = [len(order) * part // len(THIRDS) for part in range(len(THIRDS) + 1)]
    return {
        name: frozenset(documents[i] for i in order[low:high]) for name, (low, high) in zip(THIRDS, pairwise(ends), strict=True)
    }


def in_part(runs: Sequence[Result], text: str, documents: Collection[int]) -> list[Result]:
    """Returns runs, each on some documents alone."""
    return [of_documents(run, text, documents) for run in runs]
