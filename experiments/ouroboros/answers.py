"""What the retrofit study's numbers say, by rules that are written down.

Rows differ at a depth where the difference is decided (see experiments/seeds.py) with the same sign on every text: "yes" where the
first row's loss is lower, "no" where it is higher, else "not resolved". One seed decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from experiments.pages import Result
from experiments.seeds import Pooled

TRAINED = (1, 2, 4, 8)  # depths that training draws from; the answer is about these
NOT_TRUNCATED = ("refiner", "repeat")  # systems that keep every layer: they have no gap to recover
DIVERGED = 1.0  # nats: how far above its least a training loss has to end; drawn depths move it by half of that


def named(label: str, runs: Sequence[Result]) -> str:
    """Returns a row's name with its marks: † where its losses are no likelihood, ‡ where a run of it diverged."""
    leaks = not all(held["likelihood"] for run in runs for held in run["texts"].values())
    return label + " †" * leaks + " ‡" * any(map(diverged, runs))


def diverged(run: Result) -> bool:
    """Returns whether a run's training loss ended far above its least."""
    return bool(run["losses"]) and run["losses"][-1] > min(run["losses"]) + DIVERGED


def decided(found: Mapping[str, Pooled]) -> str:
    """Returns "yes", "no" or "not resolved" for one pair on all texts."""
    verdicts = {each.verdict if len(each.seeds) > 1 else "not resolved" for each in found.values()}
    return {frozenset({"lower"}): "yes", frozenset({"higher"}): "no"}.get(frozenset(verdicts), "not resolved")
