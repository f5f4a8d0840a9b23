"""What the retrofit study's numbers say, by rules that are written down: the question, and the target.

The question is decided at a depth where the difference is decided (see experiments/seeds.py) with the same sign on every text:
"yes" where the first row's loss is lower, "no" where it is higher, else "not resolved". One seed decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from experiments.pages import Result, difference, percent, words
from experiments.seeds import Pooled, Share

QUESTION = "Does conditioning on the input beat static modulation at equal parameters and depth?"
TRAINED = (1, 2, 4, 8)  # depths that training draws from; the answer is about these
TARGET = {"test": 0.70, "ood": 0.50}
MOST_TRAINED = 0.10  # of the kept parameters
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


def answer(by_depth: Mapping[int, Mapping[str, Pooled]], trained: Sequence[int] = TRAINED) -> str:
    """Returns the answer to the question, from the pair at each equal depth."""
    inside = {depth: decided(by_depth[depth]) for depth in trained if by_depth.get(depth)}
    if not inside:
        return "Not measured."
    kinds = set(inside.values())
    if len(kinds) == 1:
        first = f"{kinds.pop().capitalize()}, at every depth trained ({words(list(inside))})."
    else:
        parts = [
            f"{kind} at depth {words(depths)}"
            for kind in ("yes", "no", "not resolved")
            if (depths := [depth for depth, each in inside.items() if each == kind])
        ]
        first = f"It depends on the depth: {'; '.join(parts)}."
    beyond = {depth: decided(found) for depth, found in by_depth.items() if depth not in trained and found}
    if beyond:
        first += " Beyond them: " + "; ".join(f"{kind} at depth {depth}" for depth, kind in beyond.items()) + "."
    every = [each.difference for depth in inside for each in by_depth[depth].values()]
    seeds = {len(each.seeds) for found in by_depth.values() for each in found.values()}
    count = "1 seed" if seeds == {1} else f"{words(sorted(seeds))} seeds"
    return f"{first} Differences of loss at equal depth go from {difference(min(every))} to {difference(max(every))} ({count})."


@dataclass(frozen=True)
class Candidate:
    """A row that the target is asked of: what it trains, and the share of the gap it recovers on each text."""

    label: str
    trained: float
    shares: Mapping[str, Share]


def candidates(runs: Mapping[str, Sequence[Result]], shares: Mapping[str, Mapping[str, Share]]) -> list[Candidate]:
    """Returns the trained rows of the truncated model that are likelihoods and stay within the parameters allowed."""
    found = []
    for label, of_label in runs.items():
        first = of_label[0]
        causal = all(held["likelihood"] for run in of_label for held in run["texts"].values())
        part = first["trainable"] / first["kept"]
        kept = first["group"] != "references" and first["system"] not in NOT_TRUNCATED
        if causal and kept and 0 < part <= MOST_TRAINED and set(shares.get(label, {})) == set(TARGET):
            found.append(Candidate(label, part, shares[label]))
    return found


def target_sentence(found: Sequence[Candidate], what: str) -> str:
    """Returns how the candidate that recovers the most of the gap on the first text does against the target."""
    if not found:
        return f"{what}: none was measured."
    first = next(iter(TARGET))
    best = max(found, key=lambda each: each.shares[first].share)
    parts = []
    for text, goal in TARGET.items():
        share = best.shares[text]
        word = "not met" if share.share < goal else "met" if share.low >= goal else "met by the mean, not by the interval's low end"
        told = f"{percent(share.share)} ({percent(share.low)} to {percent(share.high)}) on {text}"
        parts.append(f"{told}, target {percent(goal, 0)}: {word}")
    seeds = len(best.shares[first].of_seeds)
    return (
        f"{what}: {best.label} ({seeds} seed{'s' * (seeds > 1)}), {percent(best.trained)} of the kept parameters trained; "
        f"{'; '.join(parts)}."
    )
