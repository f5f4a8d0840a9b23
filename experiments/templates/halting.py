"""What docs/halting.md asks of the rows: what exit rules do with models whose halting was learned, on columns and on text."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product
from statistics import fmean
from typing import Any

from experiments.halting.reading import SIMPLE
from experiments.halting.shown import SHOWN
from experiments.halting.tables import Models, against, along, at_depth, at_target, by_mean_depth, curve_of, learned_of, models_of
from experiments.halting.tables import difference as difference_at_oracle
from experiments.seeds import stay_decided
from experiments.templates.rows import rows_of
from experiments.templates.words import Gaps

EVERY, FIRST, BOTH = GATED = ("every-step, gate after", "Ouro, first stage", "Ouro, both stages")
PONDER = ACT, HALTER = ("ACT", "ACT, Ouroboros halter")
MEANS = (2.0, 3.0, 4.0)  # the mean depths that rules are compared at, beside the oracle's
HALVES = (1.5, 2.5, 3.5, 4.5, 5.5)  # of text, between whole depths
SMALL = 0.0001  # nats: the decided differences of the first-stage gate from entropy are smaller
# what stays decided on columns after a correction: model, the rule beside the gate, mean depth
STAY = {
    (EVERY, "entropy", 2.0): "higher",
    (EVERY, "stable", 2.0): "lower",
    (FIRST, "change", 2.0): "lower",
    (FIRST, "change", 3.0): "lower",
    (FIRST, "divergence", 2.0): "lower",
    (FIRST, "stable", 2.0): "lower",
    (BOTH, "entropy", 2.0): "higher",
    (BOTH, "stable", 3.0): "lower",
}
TABLES = {"at_target": at_target, "against": against, "along": along, "by_mean_depth": by_mean_depth}


@cache
def models(task: str) -> Models:
    """Returns what was measured of each model of a task, seed by seed."""
    return models_of(rows_of("halting/runs.jsonl"), task)


def lines(task: str, table: str) -> str:
    """Returns the lines of a table that have a number, or say that there is none."""
    found = TABLES[table](models(task), SHOWN[task]).partition("---|\n")[2].splitlines()
    return "\n".join(line for line in found if re.match(r"\| .*(\d|not reached)", line))


@cache
def at(task: str, model: str, rule: str, m: float, gives: str = "loss") -> tuple[float, ...]:
    """Returns what a rule gives at a mean depth, seed by seed; nothing where a seed cannot have it."""
    seeds = models(task)[model]
    values = [at_depth(seed, learned_of(seed) if rule == "learned" else rule, m, gives) for seed in seeds]
    known = tuple(value for value in values if value is not None)
    return known if len(known) == len(values) else ()


def less(first: Sequence[float], second: Sequence[float]) -> Gaps:
    """Returns one less another, seed by seed."""
    return Gaps(tuple(a - b for a, b in zip(first, second, strict=True)))


@cache
def gap(task: str, model: str, rule: str, m: float | None) -> Gaps | None:
    """Returns the learned rule's loss less another's on the same model at a mean depth (None: the oracle's); None where one of them
    cannot have it."""
    if m is None:
        found = difference_at_oracle(models(task)[model], rule)
        return None if found is None else Gaps(tuple(found["each"]), found["rows"])
    own, others = at(task, model, "learned", m), at(task, model, rule, m)
    return less(own, others) if own and others else None


def verdicts(task: str, model: str, rule: str) -> list[str | None]:
    """Returns what is decided of the learned rule less another at each of the mean depths, and at the oracle's."""
    found = [gap(task, model, rule, m) for m in (*MEANS, None)]
    return [None if each is None else each.verdict for each in found]


def table_of(task: str, oracle: bool = False) -> dict[tuple[str, str, float | None], Gaps]:
    """Returns all differences of a task's table by mean depth, or of that at the oracle's."""
    keys = product(models(task), SHOWN[task].others, (None,) if oracle else SHOWN[task].along)
    return {key: found for key in keys if (found := gap(task, *key)) is not None}


def decided(found: dict[Any, Gaps]) -> int:
    """Returns how many differences of a table are decided, each by itself."""
    return sum(each.verdict != "not resolved" for each in found.values())


def stay(found: dict[Any, Gaps]) -> dict[Any, str]:
    """Returns those that stay decided after a Bonferroni correction for all, with their verdicts."""
    return {key: found[key].verdict for key in stay_decided(found)}


def tested() -> int:
    """Returns how many test rows of columns there are."""
    changes = {change for row in rows_of("halting/runs.jsonl") if row["task"] == "columns" for change in row["changes"]}
    (count,) = {int(match[1]) for change in changes if (match := re.search(r"test: (\d+)", change))}
    return count


def trained() -> dict[tuple[str, int], int]:
    """Returns how many rows each trained model of columns has wrong at full depth; the second stage trains a gate alone."""
    seeds = [(name, seed) for name in (EVERY, FIRST, *PONDER) for seed in models("columns")[name]]
    return {(name, seed["seed"]): round(tested() * (1 - seed["fixed"]["exact"][-1])) for name, seed in seeds}


def need() -> float:
    """Returns the steps that a token of columns needs in the mean; the oracle's mean depth must be below."""
    (counts,) = {tuple(seed["needs"]) for seeds in models("columns").values() for seed in seeds}
    found = sum(steps * count for steps, count in enumerate(counts)) / sum(counts)
    if not all(seed["target"] < found for seeds in models("columns").values() for seed in seeds):
        raise ValueError("an oracle's mean depth is not below the mean need")
    return found


def own(task: str, model: str, rule: str, what: int) -> list[float]:
    """Returns what a rule gives by its own limit, seed by seed: mean steps (0), loss (1), exact match (2)."""
    return [seed["rules"][rule]["own"][what] for seed in models(task)[model]]


def all_right(model: str, rule: str, *mean_depths: float) -> bool:
    """Whether a rule is right on every row of columns at these mean depths, with each seed."""
    return all(set(at("columns", model, rule, m, "exact")) == {1.0} for m in mean_depths)


def gate_is_best() -> bool:
    """Whether no gate of columns has a lower loss than that of the first stage, at each mean depth."""
    loss = {(model, m): fmean(at("columns", model, "learned", m)) for model, m in product(GATED, MEANS)}
    return all(found >= loss[FIRST, m] for (_, m), found in loss.items())


def within() -> int:
    """Returns within how many points of a fixed depth the gate of the every-step model is on columns, rounded up."""
    found = [less(*(at("columns", EVERY, rule, m, "exact") for rule in ("learned", "fixed"))) for m in SHOWN["columns"].depths]
    return math.ceil(max(100 * abs(each.difference) for each in found))


def between() -> bool:
    """Whether at mean depth 2 ACT and the halter lie between a fixed depth and the first-stage gate in the mean, none decided."""
    gate = at("columns", FIRST, "learned", 2.0, "exact")
    own = {name: [at("columns", name, rule, 2.0, "exact") for rule in ("fixed", "learned")] for name in PONDER}
    lies = all(fmean(fixed) < fmean(learned) < fmean(gate) for fixed, learned in own.values())
    pairs = [less(learned, other) for fixed, learned in own.values() for other in (gate, fixed)]
    return lies and {each.verdict for each in pairs} == {"not resolved"}


def most(rule: str) -> float:
    """Returns how far gates of text are ahead of a rule at most, at the mean depths chosen beforehand."""
    return max(-each.difference for each in everywhere(rule, *MEANS, None))


def most_between() -> tuple[float, str, float]:
    """Returns how far gates of text are at most ahead of a threshold on the change between whole depths: the model, and where."""
    pairs = {(model, m): [at("text", model, rule, m) for rule in ("learned", "change")] for model, m in product(GATED, HALVES)}
    found = {key: less(*pair).difference for key, pair in pairs.items()}
    model, m = min(found, key=lambda key: found[key])
    return -found[model, m], model, m


def everywhere(rule: str, *mean_depths: float | None) -> list[Gaps]:
    """Returns the gates of text less a rule at mean depths (None: the oracle's), wherever both can have them."""
    found = [gap("text", model, rule, m) for model, m in product(GATED, mean_depths)]
    return [each for each in found if each is not None]


def beside_fixed(rule: str, *mean_depths: float) -> list[Gaps]:
    """Returns a rule on the gated models of text less a fixed depth."""
    return [less(at("text", model, rule, m), at("text", model, "fixed", m)) for model, m in product(GATED, mean_depths)]


def most_ahead(*mean_depths: float) -> float:
    """Returns how far any rule is ahead of a fixed depth on text at most, in the mean over seeds."""
    found = [(model, rule, m) for model, rule, m in product(GATED, ("learned", *SIMPLE), mean_depths) if at("text", model, rule, m)]
    return max(fmean(at("text", model, "fixed", m)) - fmean(at("text", model, rule, m)) for model, rule, m in found)


def entropy_is_worst() -> bool:
    """Whether entropy has the highest loss of all rules on text, at each mean depth with each gated model."""
    return all(
        fmean(at("text", model, "entropy", m)) >= fmean(at("text", model, rule, m))
        for model, m, rule in product(GATED, MEANS, ("fixed", "learned", *SIMPLE))
    )


def targets(model: str, rule: str) -> list[float]:
    """Returns the losses of a rule on text at the oracle's mean depth."""
    return [curve_of(seed, learned_of(seed) if rule == "learned" else rule)["at_target"] for seed in models("text")[model]]


def oracle_ahead() -> list[float]:
    """Returns how far the oracle is below a fixed depth of the same mean, by gated model."""
    return [fmean(targets(model, "fixed")) - fmean(targets(model, "oracle")) for model in GATED]


def tenths(model: str, rule: str) -> list[float]:
    """Returns the mean steps that a rule, or the oracle, gives each tenth of the tokens of text, the least gain first."""
    seeds = models("text")[model]
    name = learned_of(seeds[0]) if rule == "learned" else rule
    found = [(seed["oracle"] if rule == "oracle" else seed["rules"][name])["by_need"] for seed in seeds]
    return [fmean(tenth) for tenth in zip(*found, strict=True)]


def uneven() -> float:
    """Returns how far apart the tenths lie at most with any rule but entropy."""
    found = [tenths(model, rule) for model, rule in product(GATED, ("learned", *SIMPLE)) if rule != "entropy"]
    return max(max(each) - min(each) for each in found)


def stopped() -> int:
    """Returns how many tenths of the tokens the oracle stops after about one step, which must be the same of all gated models."""
    (count,) = {sum(round(steps) == 1 for steps in tenths(model, "oracle")) for model in GATED}
    return count


def last_tenth() -> list[float]:
    """Returns the mean steps that the oracle gives the last tenth, by gated model."""
    return [tenths(model, "oracle")[-1] for model in GATED]


def entropy_is_even() -> bool:
    """Whether entropy gives the tenths of the least and of the most gain as many steps."""
    return all(abs(tenths(model, "entropy")[0] - tenths(model, "entropy")[-1]) < 0.1 for model in GATED)


def r() -> float:
    """Returns the largest r of steps taken and nats gained on text."""
    seeds = [seed for model in GATED for seed in models("text")[model]]
    return max(abs(rule["r"]) for seed in seeds for rule in seed["rules"].values() if rule["r"] is not None)


def fixed(model: str) -> Iterator[tuple[float, ...]]:
    """Yields the losses of text at each whole depth, seed by seed."""
    for depth in range(1, len(models("text")[model][0]["fixed"]["loss"]) + 1):
        yield at("text", model, "fixed", float(depth))


def best(model: str) -> tuple[float, ...]:
    """Returns the losses at the depth with the least."""
    return min(fixed(model), key=fmean)


def wins() -> list[float]:
    """Returns what the loop wins on text beside one step, by gated model."""
    return [fmean(next(fixed(model))) - fmean(best(model)) for model in GATED]
