"""What docs/when-to-loop-retrofit.md says of easy, middle and hard documents in the wide-core retrofit."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from functools import cache

from experiments.halting.reading import SIMPLE
from experiments.pages import difference
from experiments.readme.retrofit.wide import ONCE, decided, interval, runs, side
from experiments.readme.rows import WORDS, line, of, when
from experiments.seeds import Pooled, mean_loss, over_seeds, pooled, reports
from experiments.sft.exits import leaving
from experiments.sft.plan import TRAINED
from experiments.sft.wide import DEPTHS, EQUAL, LOOPED, TEXTS
from experiments.sft.wide_tables import STEPS, THIRDS, fixed_runs, in_part, thirds

SHOWN = (3, 4, 6, 8)  # steps of the table
PARTS = [(text, third) for text in TEXTS for third in THIRDS]


@cache
def documents(text: str, third: str) -> frozenset[int]:
    """Returns the documents of a third."""
    return thirds(runs(), text)[third]


@cache
def beside(rival: str, text: str, third: str) -> Pooled:
    """Returns the loop less layers run once, on a third of the documents."""
    found = pooled(*(in_part(runs()[arm], text, documents(text, third)) for arm in (LOOPED, rival)), text)
    if found is None or found.depths != (TRAINED, 1):
        raise ValueError(f"{text}, {third}, {rival}: depths other than {TRAINED} and 1 are best, or no shared seed")
    return found


@cache
def by_step(text: str, third: str) -> list[dict[int, float]]:
    """Returns, seed by seed, the loop's loss on a third of the documents by the steps that it takes."""
    sides = (in_part(found, text, documents(text, third)) for found in (runs()[LOOPED], fixed_runs(runs())))
    both = zip(*(reports(side, text) for side in sides), strict=True)
    return [{depth: mean_loss([whole if depth in DEPTHS else fixed], depth) for depth in STEPS} for whole, fixed in both]


def at(depth: int, text: str, third: str) -> float:
    """Returns the loop's loss on a third of the documents, the mean over the seeds."""
    return statistics.mean(seed[depth] for seed in by_step(text, third))


def above_fixed(rule: str, text: str, third: str) -> float:
    """Returns an exit rule, at a mean of the trained steps over all documents, less the fixed depth, on a third of them."""
    left = in_part([leaving(run, rule) for run in runs()[LOOPED]], text, documents(text, third))
    return mean_loss(reports(left, text), TRAINED) - at(TRAINED, text, third)


def hard_less_easy(rival: str, text: str) -> tuple[float, float, float]:
    """Returns how much more the loop is behind on hard documents than on easy ones, and the interval of it over seeds."""
    hard, easy = (beside(rival, text, third).of_seeds for third in (THIRDS[-1], THIRDS[0]))
    each = [one - other for one, other in zip(hard, easy, strict=True)]
    return sum(each) / len(each), *over_seeds(each)


def claims() -> Iterator[str]:
    """Yields the table, and what is said of it."""
    for text, third in PARTS:
        once = mean_loss(reports(in_part(runs()[EQUAL], text, documents(text, third)), text), 1)
        steps = [f"{at(depth, text, third):.3f}" for depth in SHOWN]
        yield line(f"`{text}`, {third}", f"{once:.3f}", *steps, *(marked(beside(arm, text, third)) for arm in ONCE))
    alike = f"is the best of the {WORDS[len(STEPS)]} on easy, middle and hard documents alike (on {of(3, 3)} seeds)"
    yield when(trained_is_best(), f"The trained depth of {TRAINED} {alike}")
    rises = [[at(8, text, third) - at(TRAINED, text, third) for third in THIRDS] for text in TEXTS]
    sizes = " and ".join(" / ".join(f"{rise:.2f}" for rise in found) for found in rises)
    yield when(all(min(found) == found[-1] for found in rises), f"Four steps too many cost hard documents least: {sizes} nats")
    tokens, flops = ([beside(arm, *part) for part in PARTS] for arm in ONCE)
    yield when(
        side(tokens) == "ahead" and decided(tokens) == "decided", "At equal tokens the loop is ahead in each third (decided)"
    )
    yield f"its lead on hard documents less that on easy ones is {apart(EQUAL)}"
    undecided = [part for part, found in zip(PARTS, flops, strict=True) if found.verdict == "not resolved"]
    told = "At equal training FLOPs it is behind in each, on middle documents of `ood` undecided"
    yield when(side(flops) == "behind" and undecided == [("ood", "middle")], told)
    least = min(above_fixed(rule, *part) for rule in SIMPLE for part in PARTS)
    yield f"every rule is behind the fixed depth of {TRAINED} in each third, by at least {least:.2f} nats"


def trained_is_best() -> bool:
    """Returns whether the trained depth has the least loss in every third, on both texts and with every seed."""
    return all(min(seed, key=seed.__getitem__) == TRAINED for part in PARTS for seed in by_step(*part))


def apart(rival: str) -> str:
    """Returns how the lead on hard documents differs from that on easy ones, on both texts; the seeds must leave it open."""
    found = [hard_less_easy(rival, text) for text in TEXTS]
    told = " and ".join(f"{difference(-value, 3)} ({difference(-high, 3)} to {difference(-low, 3)})" for value, low, high in found)
    return when(all(low < 0 < high for _, low, high in found), f"{told}, undecided")


def marked(found: Pooled) -> str:
    """Returns a difference with its interval over seeds, and a mark where it is not decided."""
    return interval(found) + (", undecided" if found.verdict == "not resolved" else "")


def in_short() -> str:
    """Returns what docs/when-to-loop.md says of it."""
    return when(trained_is_best(), "the trained depth is the best on easy, middle and hard documents alike")
