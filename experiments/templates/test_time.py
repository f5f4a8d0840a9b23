"""What pages ask of depth at test time, on models that were trained from the start on all of the text."""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import cache
from itertools import product
from statistics import mean

from experiments.halting.reading import SIMPLE
from experiments.leaving.reading import MEANS
from experiments.leaving.tables import THIRDS, against_fixed
from experiments.pages import Result
from experiments.repeats.deep_tables import RANDOM, TEXTS, TRAINED, behind, deep_runs, easy_to_hard, hard_less_easy
from experiments.repeats.plan import ARMS, TESTED
from experiments.seeds import Pooled, mean_loss, over_seeds, reports, stay_decided, verdict
from experiments.templates.repeats import kept

SHOWN = (1, 2, 3, 4, 5, 8, 16)  # depths of the table
CLOSE = 0.001  # nats: how near the two best rules are to a fixed depth
Apart = dict[tuple[str, int], Pooled]


def looped() -> list[Result]:
    """Returns the runs of the model that was trained at random depth."""
    return deep_runs(kept(), RANDOM)


def loss(text: str, depth: int) -> float:
    """Returns its loss at a depth, the mean of the seeds."""
    return mean_loss(reports(looped(), text), depth)


def drawn() -> tuple[int, int]:
    """Returns the mean of the depths that it was trained at, and the most."""
    _, drawn, _ = ARMS[RANDOM]
    poisson, most = (int(re.search(rf"{name}: (\d+)", drawn)[1]) for name in ("mean", "most"))  # type: ignore[index]
    if poisson + 1 != TRAINED:
        raise ValueError(f"the mean depth is {poisson + 1}; the pages say {TRAINED}")
    return TRAINED, most


def beyond() -> float:
    """Returns by how much at most the loss of any seed changes from the trained depth to any deeper one."""
    depths = [depth for depth in TESTED[RANDOM] if depth > TRAINED]
    return max(abs(each) for text in TEXTS for depth in depths for each in behind(looped(), text, depth))


def cost(depth: int) -> list[list[float]]:
    """Returns by how much a depth is behind the trained one on both texts, seed by seed."""
    return [behind(looped(), text, depth) for text in TEXTS]


def three() -> float:
    """Returns how far depth 3 is behind the trained depth, on the text where it is the most."""
    return max(map(mean, cost(3)))


def fewer_is_worse() -> bool:
    """Whether the intervals over seeds of fewer steps leave 0 out on both texts."""
    return {verdict(over_seeds(each)) for depth in (1, 2, 3) for each in cost(depth)} == {"higher"}


def unfinished() -> list[float]:
    """Returns the losses of ASURA before its last step."""
    runs = deep_runs(kept(), "ASURA")
    return [mean_loss([each], depth) for text in TEXTS for each in reports(runs, text) for depth in TESTED["ASURA"][:-1]]


@cache
def apart(text: str) -> Apart:
    """Returns each exit rule less the fixed depth of as many steps, by rule and mean steps."""
    found = {(rule, steps): against_fixed(looped(), rule, text, steps) for rule, steps in product(SIMPLE, MEANS)}
    return {key: each for key, each in found.items() if each is not None}


def of_rule(rule: str) -> list[Pooled]:
    """Returns a rule's differences on both texts."""
    return [apart(text)[rule, steps] for text in TEXTS for steps in MEANS]


def no_lead() -> bool:
    """Whether no rule is ahead of a fixed depth of as many steps by an amount that stays decided, on either text."""
    return not any(apart(text)[key].verdict == "lower" for text in TEXTS for key in stay_decided(apart(text)))


def lead(text: str) -> tuple[str, int, Pooled]:
    """Returns the one lead over a fixed depth that is decided by itself: which rule, at how many steps."""
    ((key, found),) = [(key, each) for key, each in apart(text).items() if each.verdict == "lower"]
    return *key, found


def closest() -> list[str]:
    """Returns the rules, that which has the least loss in the mean of all its pairs on both texts first."""
    return sorted(SIMPLE, key=lambda rule: mean(each.difference for each in of_rule(rule)))


def farthest(rules: Collection[str]) -> float:
    """Returns how far these rules are from a fixed depth at most."""
    return max(abs(each.difference) for rule in rules for each in of_rule(rule))


def own(rule: str) -> tuple[float, float]:
    """Returns the mean steps and the loss on `test` of a rule at the limit that it has unasked."""
    found = [run["exits"]["test"][rule]["own"] for run in looped()]
    steps, losses = (mean(each[place] for each in found) for place in (0, 1))
    return steps, losses


def thirds() -> list[float]:
    """Returns what depth 2 costs on easy, middle and hard documents of `test`."""
    return [mean(behind(looped(), "test", 2, easy_to_hard(kept())[name])) for name in THIRDS]


def hard_less() -> list[float]:
    """Returns that of hard documents less that of easy ones, seed by seed."""
    return hard_less_easy(kept(), looped(), 2)


def documents() -> int:
    """Returns how many documents `test` has."""
    return sum(map(len, easy_to_hard(kept()).values()))
