"""What tables tell of rules that leave the loop early, and of easy, middle and hard documents, for any looped model with seeds."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import pairwise

from experiments.leaving.reading import FIXED, leaving
from experiments.pages import Result
from experiments.seeds import Pooled, averaged, of_documents, pooled
from loopwright.evaluation.text import HeldOut
from loopwright.metrics.intervals import by_unit

THIRDS = ("easy", "middle", "hard")


def against_fixed(runs: Sequence[Result], rule: str, text: str, mean: int) -> Pooled | None:
    """Returns an exit rule against a fixed depth of as many steps; None where the rule has no limit with that mean in every run."""
    both = ([leaving(run, name) for run in runs] for name in (rule, FIXED))
    return pooled(*both, text, mean)


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
