"""What docs/when-to-loop-retrofit.md says of easy, middle and hard documents in the wide-core retrofit."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from functools import cache

import torch

from experiments.halting.reading import SIMPLE
from experiments.leaving.reading import FIXED, leaving
from experiments.leaving.tables import THIRDS, in_part
from experiments.ouroboros.rates import SEEDS
from experiments.pages import difference, words
from experiments.readme.retrofit.wide import ONCE, decided, interval, runs, side
from experiments.readme.rows import WORDS, line, when
from experiments.seeds import DECIDED, Pooled, averaged, mean_loss, over_seeds, pooled, reports, verdict
from experiments.sft.plan import TRAINED
from experiments.sft.wide import DEPTHS, EQUAL, LONGER, LOOPED, TEXTS
from experiments.sft.wide_tables import STEPS, by_depth, thirds
from loopwright.metrics.intervals import Mean, by_unit, ratio_mean

SHOWN = (3, 4, 6, 8)  # steps of the table
EASY, MIDDLE, HARD = THIRDS
PARTS = [(text, third) for text in TEXTS for third in THIRDS]
LOOP = (LOOPED, TRAINED)


@cache
def documents(text: str, third: str, arm: str = EQUAL) -> frozenset[int]:
    """Returns the documents of a third, split by the losses of an arm."""
    return thirds(runs(), text, arm)[third]


@cache
def beside(rival: str, text: str, third: str, by: str = EQUAL) -> Pooled:
    """Returns the loop less layers run once, on a third of the documents."""
    found = pooled(*(in_part(runs()[arm], text, documents(text, third, by)) for arm in (LOOPED, rival)), text)
    if found is None or found.seeds != SEEDS or found.depths != (TRAINED, 1):
        raise ValueError(f"{text}, {third}, {rival}: no seeds {SEEDS}, or depths other than {TRAINED} and 1 are best")
    return found


@cache
def at(depth: int, text: str, third: str) -> float:
    """Returns the loop's loss on a third of the documents, the mean over the seeds."""
    return statistics.mean(seed[depth] for seed in by_depth(runs()[LOOPED], text, documents(text, third)))


@cache
def contrast(first: tuple[str, int], second: tuple[str, int], text: str, third: str) -> tuple[tuple[float, ...], Mean]:
    """Returns one arm at a depth less another at a depth, on a third: seed by seed, and over documents."""
    sides = [reports(in_part(runs()[arm], text, documents(text, third)), text) for arm, _ in (first, second)]
    seeds = tuple(mean_loss([one], first[1]) - mean_loss([other], second[1]) for one, other in zip(*sides, strict=True))
    (losses, targets, units), (others, _, _) = (
        averaged(found, depth).at() for found, (_, depth) in zip(sides, (first, second), strict=True)
    )
    return seeds, ratio_mean(by_unit(losses - others, units), by_unit(targets, units))


def hard_less(other: str, first: tuple[str, int], second: tuple[str, int], text: str) -> tuple[float, float, float, str]:
    """Returns how much larger a contrast is on hard documents than on others, its interval over seeds, and if it is decided."""
    (hard, of_hard), (rest, of_rest) = (contrast(first, second, text, third) for third in (HARD, other))
    each = [one - another for one, another in zip(hard, rest, strict=True)]
    low, high = (of_hard - of_rest).ends()
    return statistics.mean(each), *over_seeds(each), DECIDED[verdict(over_seeds(each), (float(low), float(high)))]


def on_both(other: str, first: tuple[str, int], second: tuple[str, int]) -> list[str]:
    """Returns the same on both texts, as the page has it."""
    found = [hard_less(other, first, second, text) for text in TEXTS]
    return [f"{difference(mean, 3)} ({difference(low, 3)} to {difference(high, 3)}, {told})" for mean, low, high, told in found]


def claims() -> Iterator[str]:
    """Yields the table, and what is said of it."""
    for text, third in PARTS:
        once = mean_loss(reports(in_part(runs()[EQUAL], text, documents(text, third)), text), 1)
        steps = [f"{at(depth, text, third):.3f}" for depth in SHOWN]
        yield line(f"`{text}`, {third}", f"{once:.3f}", *steps, *(marked(beside(arm, text, third)) for arm in ONCE))
    yield split_claim()
    yield in_short()
    yield from rise_claims()
    yield from side_claims()
    rules = [above_fixed(rule, *part) for rule in SIMPLE for part in PARTS]
    least = min(each.difference for each in rules)
    told = f"every rule is behind the fixed depth of {TRAINED} in each third, by at least {least:.2f} nats ({decided(rules)})"
    yield when(side(rules) == "behind", told)


def split_claim() -> str:
    """Returns what another arm as the judge of the documents would change."""
    moved, same = 0, True
    for arm, (text, third) in ((arm, part) for arm in (LOOPED, LONGER) for part in PARTS):
        moved = max(moved, len(documents(text, third) - documents(text, third, arm)))
        same &= all(beside(rival, text, third, arm).verdict == beside(rival, text, third).verdict for rival in ONCE)
    return when(same, f"Split by another arm, at most {WORDS[moved]} documents of a third change and no verdict of the table does")


def in_short() -> str:
    """Returns at which depth the documents have their least loss, for this page and docs/when-to-loop.md."""
    told = f"of the {WORDS[len(STEPS)]} depths measured the trained {TRAINED} is the best on every document with every seed"
    return when(all(trained_is_best(text) for text in TEXTS), told)


def trained_is_best(text: str) -> bool:
    """Returns whether every document has its least loss at the trained depth, with every seed."""
    for run in runs()[LOOPED]:
        (whole,), (fixed,) = reports([run], text), reports([leaving(run, FIXED)], text)
        losses = torch.stack([(whole if depth in DEPTHS else fixed).at(depth)[0] for depth in STEPS])
        if set(losses.argmin(0).tolist()) != {STEPS.index(TRAINED)}:
            return False
    return True


def rise_claims() -> Iterator[str]:
    """Yields what twice the trained steps cost."""
    deep = 2 * TRAINED
    rises = [" / ".join(f"{at(deep, text, third) - at(TRAINED, text, third):.2f}" for third in THIRDS) for text in TEXTS]
    yield f"From depth {TRAINED} to {deep} the loss rises by {words(rises)} nats ({' / '.join(THIRDS)}; `test` and `ood`)"
    yield f"hard less easy is {words(on_both(EASY, (LOOPED, deep), LOOP))}"


def side_claims() -> Iterator[str]:
    """Yields where the loop stands in each third, and whether the thirds differ."""
    tokens, flops = ([beside(arm, *part) for part in PARTS] for arm in ONCE)
    ahead = side(tokens) == "ahead" and decided(tokens) == "decided"
    yield when(ahead, "At equal tokens the loop is ahead in each third (decided)")
    undecided = [part for part, found in zip(PARTS, flops, strict=True) if found.verdict == "not resolved"]
    told = "at equal training FLOPs behind in each, on middle documents of `ood` undecided"
    yield when(side(flops) == "behind" and undecided == [("ood", MIDDLE)], told)
    differ = [on_both(EASY, LOOP, (arm, 1)) for arm in (EQUAL, LONGER)]
    no_difference = all("undecided" in each for both in differ for each in both)
    yield when(no_difference, "No gain of hard documents over easy ones was decided")
    yield f"The loop's difference on hard documents less that on easy ones is {words(differ[0])} at equal tokens"
    yield f"{words(differ[1])} at equal training FLOPs"
    later = on_both(MIDDLE, LOOP, (EQUAL, 1))
    gains = {text: {third: beside(EQUAL, text, third).difference for third in THIRDS} for text in TEXTS}
    most = all(min(each, key=each.__getitem__) == MIDDLE for each in gains.values())
    told = f"at equal tokens hard less middle is {words(later)}: middle documents gain most"
    yield when(most, f"{told}, which was looked at after the fact")


def above_fixed(rule: str, text: str, third: str) -> Pooled:
    """Returns an exit rule, at a mean of the trained steps over all documents, less the fixed depth, on a third of them."""
    both = ([leaving(run, name) for run in runs()[LOOPED]] for name in (rule, FIXED))
    found = pooled(*(in_part(found, text, documents(text, third)) for found in both), text, TRAINED)
    if found is None or found.seeds != SEEDS:
        raise ValueError(f"{rule}, {text}, {third}: not measured with seeds {SEEDS}")
    return found


def marked(found: Pooled) -> str:
    """Returns a difference with its interval over seeds, and a mark where it is not decided."""
    return interval(found) + (", undecided" if found.verdict == "not resolved" else "")
