"""What docs/halting.md says: the rows of its tables, what the rules do where the need of a token is known, and on text."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

from experiments.halting.reading import SIMPLE
from experiments.halting.shown import SHOWN, mean
from experiments.halting.tables import Models, at_depth, curve_of, difference, learned_of, models_of, tables_of
from experiments.readme.rows import WORDS, from_to, interval, of, rows_of, when
from experiments.seeds import over_seeds, paired_p

COLUMNS, TEXT = "columns", "text"
EVERY, FIRST, BOTH = GATED = ("every-step, gate after", "Ouro, first stage", "Ouro, both stages")
PONDER = ("ACT", "ACT, Ouroboros halter")
RULES = ("learned", *SIMPLE)
MEANS = (2.0, 3.0, 4.0)  # the mean depths that rules are compared at, beside the oracle's
HALVES = (1.5, 2.5, 3.5, 4.5, 5.5)  # of text, between whole depths
# what stays decided on columns after a correction, and on which side: model, the rule beside the gate, mean depth
STAY = {
    (EVERY, "entropy", 2.0): 1,
    (EVERY, "stable", 2.0): -1,
    (FIRST, "change", 2.0): -1,
    (FIRST, "change", 3.0): -1,
    (FIRST, "divergence", 2.0): -1,
    (FIRST, "stable", 2.0): -1,
    (BOTH, "entropy", 2.0): 1,
    (BOTH, "stable", 3.0): -1,
}
LEVEL = 0.05  # of p, before it is divided by the number of differences


@dataclass(frozen=True)
class Gaps:
    """Losses less others, seed by seed, with the interval over seeds; `rows` is that over rows or text, where there is one."""

    each: tuple[float, ...]
    rows: tuple[float, float] | None = None

    @property
    def mean(self) -> float:
        """The mean over seeds."""
        return mean(self.each)

    @property
    def side(self) -> int:
        """-1 where the first is decided to be lower, 1 where it is decided to be higher, else 0."""
        spans = [over_seeds(self.each), *([self.rows] if self.rows else [])]
        return -1 if max(high for _, high in spans) < 0 else int(min(low for low, _ in spans) > 0)

    def stays(self, count: int) -> bool:
        """Whether it is still decided after a Bonferroni correction for so many differences."""
        return self.side != 0 and paired_p(self.each) * count < LEVEL


@cache
def models(task: str) -> Models:
    """Returns what was measured of each model of a task, seed by seed."""
    return models_of(rows_of("halting/runs.jsonl"), task)


def at(task: str, model: str, rule: str, m: float, gives: str = "loss") -> list[float]:
    """Returns what a rule gives at a mean depth, seed by seed; nothing where a seed cannot have it."""
    seeds = models(task)[model]
    values = [at_depth(seed, learned_of(seed) if rule == "learned" else rule, m, gives) for seed in seeds]
    known = [value for value in values if value is not None]
    return known if len(known) == len(values) else []


def less(first: Sequence[float], second: Sequence[float]) -> Gaps:
    """Returns one less another, seed by seed."""
    return Gaps(tuple(a - b for a, b in zip(first, second, strict=True)))


@cache
def gap(task: str, model: str, rule: str, m: float) -> Gaps | None:
    """Returns the learned rule's loss less another's on the same model at a mean depth; None where one of them cannot have it."""
    own, others = at(task, model, "learned", m), at(task, model, rule, m)
    return less(own, others) if own and others else None


@cache
def at_oracle(task: str, model: str, rule: str) -> Gaps | None:
    """Returns the same at the oracle's mean depth."""
    found = difference(models(task)[model], rule)
    return None if found is None else Gaps(tuple(found["each"]), found["rows"])


def side(task: str, model: str, rule: str, m: float) -> int | None:
    """Returns on which side the learned rule less another is decided at a mean depth."""
    found = gap(task, model, rule, m)
    return None if found is None else found.side


def sides(task: str, model: str, rule: str) -> list[int | None]:
    """Returns the same at each of the mean depths."""
    return [side(task, model, rule, m) for m in MEANS]


def claims() -> Iterator[str]:
    """Yields what the rows say."""
    for task in SHOWN:
        for text in tables_of(task, models(task)):
            yield from (row for row in text.splitlines() if re.match(r"\| .*(\d|not reached)", row))
    yield from trained_claims()
    yield from head_claims()
    yield from gate_claims()
    yield from entropy_claims()
    yield from stage_claims()
    yield from ponder_claims()
    yield from text_claims()
    yield from text_rule_claims()
    yield from text_ponder_claims()


def trained() -> dict[tuple[str, int], float]:
    """Returns exact match at full depth of each trained model of columns; the second stage trains a gate alone."""
    return {(name, s["seed"]): s["fixed"]["exact"][-1] for name in (EVERY, FIRST, *PONDER) for s in models(COLUMNS)[name]}


def tested() -> int:
    """Returns how many test rows of columns there are."""
    counts = {
        match[1]
        for row in rows_of("halting/runs.jsonl")
        if row["task"] == COLUMNS
        for change in row["changes"]
        if (match := re.search(r"test: (\d+)", change))
    }
    (count,) = counts
    return int(count)


def trained_claims() -> Iterator[str]:
    """Yields which models of columns are right on every row at full depth, and what tokens need."""
    wrong = {key: round(tested() * (1 - exact)) for key, exact in trained().items() if exact < 1}
    if set(wrong) != {(name, 2) for name in PONDER}:
        raise ValueError(f"rows are wrong with {sorted(wrong)}; allowed: seed 2 of both ACT models")
    right = of(len(trained()) - len(wrong), len(trained()))
    yield f"{right.capitalize()} are 100 % right at full depth ({tested():,} test rows)"
    act, halter = (wrong[name, 2] for name in PONDER)
    yield f"Of seed 2, ACT has {WORDS[act]} row wrong and the halter {halter}."
    (last,) = (seed for seed in models(COLUMNS)[PONDER[1]] if seed["seed"] == 2)
    told = f"has {halter} rows wrong at full depth. Every column that needs one step is right: the faults stand behind a column"
    yield when(last["oracle"]["by_need"][1] == 1, f"{told} that sums to 9")
    yield f"The mean need is {need():.2f} steps"
    fewer = all(seed["target"] < need() for seeds in models(COLUMNS).values() for seed in seeds)
    yield when(fewer, "That is fewer than it needs")


def need() -> float:
    """Returns the steps that a token of columns needs in the mean."""
    (counts,) = {tuple(seed["needs"]) for seeds in models(COLUMNS).values() for seed in seeds}
    return sum(steps * count for steps, count in enumerate(counts)) / sum(counts)


def head_claims() -> Iterator[str]:
    """Yields what the page says first."""
    beats = sides(COLUMNS, FIRST, "change") == [-1] * 3 and sides(COLUMNS, FIRST, "divergence")[:2] == [-1] * 2
    yield when(beats, "the gate of Ouro's first stage does.")
    ahead = sides(COLUMNS, BOTH, "change") == [-1] * 3 and -1 not in sides(COLUMNS, BOTH, "divergence")
    told = "The gate of its second stage is ahead of one on ‖Δs‖ at mean depths 2 to 4 (at the oracle's this is not decided)"
    open_there = not at_oracle(COLUMNS, BOTH, "change").side
    yield when(ahead and open_there and [*MEANS] == [2, 3, 4], f"{told}, but not of one on KL.")
    found = [gap(COLUMNS, FIRST, "entropy", m) for m in MEANS] + [at_oracle(COLUMNS, FIRST, "entropy")]
    most = max(abs(each.mean) for each in found if each is not None and each.side)
    best = all(lowest(model, m) >= lowest(FIRST, m) for model, m in product(GATED, MEANS))
    told = "which needs no training, was not seen to be worse than the best gate: no difference of more than 0.0001 nats is decided"
    yield when(best and most < 0.0001, told)
    change, divergence = (max(-each.mean for each in chosen(rule)) for rule in ("change", "divergence"))
    told = f"by {change:.3f} nats at most and of one on KL by {divergence:.3f} at most"
    yield f"gates are ahead of a threshold on the change {told}"
    behind = [less(*entropy_at(model, m)).mean for model, m in product(GATED, MEANS)]
    worst = all(is_worst(model, m) for model, m in product(GATED, MEANS))
    yield when(worst, f"entropy is the worst, {from_to(behind, 2)} nats behind a fixed depth")


def lowest(model: str, m: float) -> float:
    """Returns the loss of a model's gate on columns at a mean depth."""
    return mean(at(COLUMNS, model, "learned", m))


def chosen(rule: str) -> list[Gaps]:
    """Returns the gates of text less a threshold wherever they can have the mean depths chosen beforehand."""
    found = [gap(TEXT, model, rule, m) for model, m in product(GATED, MEANS)]
    found += [at_oracle(TEXT, model, rule) for model in GATED]
    return [each for each in found if each is not None]


def entropy_at(model: str, m: float) -> tuple[list[float], list[float]]:
    """Returns the losses of entropy and of a fixed depth on text at a mean depth."""
    return at(TEXT, model, "entropy", m), at(TEXT, model, "fixed", m)


def targets(model: str, rule: str) -> list[float]:
    """Returns the losses of a rule on text at the oracle's mean depth."""
    return [curve_of(seed, learned_of(seed) if rule == "learned" else rule)["at_target"] for seed in models(TEXT)[model]]


def is_worst(model: str, m: float) -> bool:
    """Whether entropy has the highest loss of all rules on text."""
    return all(mean(at(TEXT, model, "entropy", m)) >= mean(at(TEXT, model, rule, m)) for rule in ("fixed", *RULES))


def gate_claims() -> Iterator[str]:
    """Yields where the gate of the first stage beats thresholds that wait for rest, and what a correction leaves of all tables."""
    change, divergence = (sides(COLUMNS, FIRST, rule) for rule in ("change", "divergence"))
    beats = change[:2] == [-1, -1] and divergence == [-1, -1, 0]
    yield when(beats, "**The gate of the first stage beats ‖Δs‖ and KL**, decided at mean depths 2 and 3 (KL: not at 4)")
    stay = {key: each.side for key, each in along(COLUMNS).items() if each.stays(len(along(COLUMNS)))}
    told = f"for the {len(along(COLUMNS))} differences by mean depth ({decided(along(COLUMNS))} are decided by themselves)"
    yield when(
        stay == STAY,
        f"{told} {len(stay)} stay: the first-stage gate's lead over ‖Δs‖ (2 and 3), KL (2) and `stable` (2); entropy's over the "
        "gate of the every-step model (2) and after both stages (2); the every-step gate's over `stable` (2) and that after both "
        "stages over `stable` (3)",
    )
    oracles = at_oracle_depth(COLUMNS)
    rest = [key for key, each in oracles.items() if each.stays(len(oracles))]
    told = f"Of the {len(oracles)} at the oracle's mean depth ({decided(oracles)} decided)"
    yield when(rest == [(FIRST, "stable")], f"{told} the first-stage gate's lead over `stable` stays")
    tables = along(TEXT), at_oracle_depth(TEXT)
    none = not any(each.stays(len(table)) for table in tables for each in table.values())
    told = f"for the {len(tables[0])} differences by mean depth ({decided(tables[0])} are decided by themselves), or for the"
    yield when(none, f"{told} {len(tables[1])} at the oracle's mean depth ({decided(tables[1])}), none stays decided")


def along(task: str) -> dict[tuple[str, str, float], Gaps]:
    """Returns all differences of a task's table by mean depth."""
    keys = product(models(task), SHOWN[task].others, SHOWN[task].along)
    return {key: found for key in keys if (found := gap(task, *key)) is not None}


def at_oracle_depth(task: str) -> dict[tuple[str, str], Gaps]:
    """Returns all differences of a task's table at the oracle's mean depth."""
    keys = product(models(task), SHOWN[task].others)
    return {key: found for key in keys if (found := at_oracle(task, *key)) is not None}


def decided(table: Mapping[Any, Gaps]) -> int:
    """Returns how many differences of a table are decided, each by itself."""
    return sum(each.side != 0 for each in table.values())


def entropy_claims() -> Iterator[str]:
    """Yields how entropy does beside the gates on columns."""
    two, three, four = (gap(COLUMNS, FIRST, "entropy", m) for m in MEANS)
    oracle = at_oracle(COLUMNS, FIRST, "entropy")
    assert two and three and four and oracle
    undecided = two.mean < 0 and not two.side and not oracle.side
    yield when(undecided, f"at mean depth 2 it is {-two.mean:.3f} nats ahead, which is not decided")
    exact = [at(COLUMNS, FIRST, rule, m, "exact") for rule in ("learned", "entropy") for m in MEANS[1:]]
    so = (three.side, four.side) == (1, -1) and {value for each in exact for value in each} == {1.0}
    most = f"{max(three.mean, -four.mean):.5f}"
    yield when(so, f"At 3 and 4, where every row is right, it is behind and ahead by at most {most} (decided over seeds)")
    own = [seed["rules"]["entropy"]["own"] for seed in models(COLUMNS)[EVERY]]
    steps, right = {f"{steps:.2f}" for steps, _, _ in own}, min(exact for _, _, exact in own)
    told = f"takes the mean need, {need():.2f} steps, and is right on at least {tested() * right:.0f} of {tested():,} rows"
    yield when(steps == {f"{need():.2f}"}, f"{told}, with each of the {WORDS[len(own)]} seeds")


def stage_claims() -> Iterator[str]:
    """Yields what the second stage does to the gate on columns."""
    points = [100 * each for each in less(*(at(COLUMNS, model, "learned", 2.0, "exact") for model in (BOTH, FIRST))).each]
    lost = f"{-mean(points):.0f} points of exact match less at mean depth 2 (interval {ends(*over_seeds(points), 0)})"
    yield when(over_seeds(points)[1] < 0, f"**The second stage undoes most of it**: {lost}".replace("+", ""))
    change, divergence = (sides(COLUMNS, BOTH, rule) for rule in ("change", "divergence"))
    oracle = at_oracle(COLUMNS, BOTH, "change")
    so = change == [-1] * 3 and oracle is not None and oracle.side == 0 and divergence == [0, 1, 1]
    told = "It stays ahead of ‖Δs‖ (decided at mean depths 2, 3 and 4, not at the oracle's), and is behind KL (decided at 3 and 4)"
    yield when(so, told)
    gates = [less(*(at(COLUMNS, EVERY, rule, m, "exact") for rule in ("learned", "fixed"))) for m in SHOWN[COLUMNS].depths]
    near = WORDS[math.ceil(max(100 * abs(each.mean) for each in gates))]
    yield f"the gate is within {near} points of a fixed depth (means over seeds, mean depths of the table)"


def ends(low: float, high: float, digits: int) -> str:
    """Returns the ends of an interval, with a sign where they are below 0."""
    return interval(low, high, digits).replace("+", "")


def ponder_claims() -> Iterator[str]:
    """Yields what ACT and the halter do on columns."""
    act, halter = ([seed["rules"]["act"]["own"] for seed in models(COLUMNS)[name]] for name in PONDER)
    steps = [f"{min(own)[0]:.1f} to {max(own)[0]:.1f}" for own in (act, halter)]
    last = f"{100 * act[2][2]:.1f} and {100 * halter[2][2]:.1f} %"
    right = all(own[seed][2] == 1 for own in (act, halter) for seed in (0, 1))
    yield when(
        right, f"takes {steps[0]} steps and the halter {steps[1]}, by their own limits, right on every row but for seed 2 ({last})"
    )
    gate = at(COLUMNS, FIRST, "learned", 2.0, "exact")
    own = {name: at(COLUMNS, name, "learned", 2.0, "exact") for name in PONDER}
    fixed = {name: at(COLUMNS, name, "fixed", 2.0, "exact") for name in PONDER}
    between = all(mean(fixed[name]) < mean(own[name]) < mean(gate) for name in PONDER)
    yield when(between, "mean depth 2 lies between the first-stage gate's and a fixed depth's of the same model in the mean")
    pairs = [less(own[name], other) for name in PONDER for other in (gate, fixed[name])]
    spans = [f"{100 * min(each):.1f} to {100 * max(each):.1f}" for each in own.values()]
    told = f"(ACT {spans[0]} %, the halter {spans[1]}), and none of these {WORDS[len(pairs)]} differences is decided"
    yield when(not any(each.side for each in pairs), told)


def text_claims() -> Iterator[str]:
    """Yields what is known of the need for depth on text, and by whom."""
    seeds = [seed for model in GATED for seed in models(TEXT)[model]]
    r = max(abs(rule["r"]) for seed in seeds for rule in seed["rules"].values() if rule["r"] is not None)
    yield f"on the every-step and Ouro models r is at most {r:.2f}, with each seed"
    taken = [[mean(tenth) for tenth in zip(*(s["oracle"]["by_need"] for s in models(TEXT)[model]), strict=True)] for model in GATED]
    early = {sum(round(steps) == 1 for steps in each) for each in taken}
    last = {f"{each[-1]:.1f}" for each in taken}
    told = f"The oracle stops six tenths of the tokens after about one step and gives the last tenth {' or '.join(sorted(last))}"
    yield when(early == {6}, told)
    spread = max(max(tenths(model, rule)) - min(tenths(model, rule)) for model in GATED for rule in RULES if rule != "entropy")
    yield f"every rule but entropy gives all tenths nearly the same (at most {spread:.1f} steps apart)"
    best = [mean(targets(model, "fixed")) - mean(targets(model, "oracle")) for model in GATED]
    wins = [found for model in GATED if (found := at_oracle(TEXT, model, "fixed")) is not None]
    told = f"is {from_to(best, 2)} nats below a fixed depth of the same mean; the gates win {from_to(each.mean for each in wins)}"
    yield when(all(each.side < 0 for each in wins), f"{told} of that, decided")


def tenths(model: str, rule: str) -> list[float]:
    """Returns the mean steps that a rule gives each tenth of the tokens of text, the least gain first."""
    seeds = models(TEXT)[model]
    steps = [seed["rules"][learned_of(seed) if rule == "learned" else rule]["by_need"] for seed in seeds]
    return [mean(tenth) for tenth in zip(*steps, strict=True)]


def text_rule_claims() -> Iterator[str]:
    """Yields how rules do beside a fixed depth and beside each other on text."""
    depths = [2.0, 3.0, 4.0, 5.0]
    pairs = [(at(TEXT, model, rule, m), at(TEXT, model, "fixed", m)) for model, m in product(GATED, depths) for rule in RULES]
    most = max(mean(fixed) - mean(own) for own, fixed in pairs)
    yield f"At mean depths 2, 3, 4 and 5 no rule is ahead of a fixed depth by more than {most:.4f} nats"
    oracle = {model: at_oracle(TEXT, model, "change") for model in GATED}
    both = oracle[BOTH]
    assert both is not None
    so = both.side < 0 and not any(each and each.side for model, each in oracle.items() if model != BOTH)
    told = f"after both stages it is ahead by {-both.mean:.3f} nats at the oracle's mean depth, decided"
    yield when(so, f"{told}; after the first alone, and on the every-step model, it is not")
    later = [gap(TEXT, model, "change", m) for model, m in product(GATED, MEANS[1:])]
    most = max(-each.mean for each in later if each)
    so = all(each and each.side < 0 for each in later)
    yield when(so, f"At mean depths 3 and 4 all three are ahead, by at most {most:.4f} (over seeds)")
    halves = {(model, m): less(at(TEXT, model, "learned", m), at(TEXT, model, "change", m)) for model, m in product(GATED, HALVES)}
    model, m = min(halves, key=lambda key: halves[key].mean)
    told = f"which were not chosen beforehand, by at most {-halves[model, m].mean:.4f} ({m:g}, both stages)"
    yield when(model == BOTH, told)
    found = {m: [each for model in GATED if (each := gap(TEXT, model, "divergence", m)) is not None] for m in MEANS}
    so = all(each.side < 0 for each in found[4.0]) and not any(each.side for m in MEANS[:2] for each in found[m])
    told = f"ahead by {from_to(each.mean for each in found[4.0])} at mean depth 4 (over seeds); at 2 and 3 nothing is decided"
    yield when(so, f"**Against KL**: {told}")
    behind = [less(*entropy_at(model, m)).mean for model, m in product(GATED, MEANS[:2])]
    told = f"is the worst here**: {from_to(behind)} nats behind a fixed depth at mean depths 2 and 3"
    yield when(all(is_worst(model, m) for model, m in product(GATED, MEANS)), told)
    ends_apart = max(abs(tenths(model, "entropy")[0] - tenths(model, "entropy")[-1]) for model in GATED)
    yield when(ends_apart < 0.1, "It gives the tokens of the least gain as many steps as those of the most")
    ahead = less(targets(BOTH, "learned"), targets(FIRST, "learned"))
    later_on = less(at(TEXT, BOTH, "learned", 4.0), at(TEXT, FIRST, "learned", 4.0))
    low, high = over_seeds(ahead.each)
    told = f"it is ahead of the first by {-ahead.mean:.4f} (interval {-high:.4f} to {-low:.4f})"
    yield when(ahead.side < 0 < later_on.mean, f"{told}, at mean depth 4 behind it by {later_on.mean:.4f}")


def text_ponder_claims() -> Iterator[str]:
    """Yields what ACT and the halter do on text."""
    own = [seed["rules"]["act"]["own"][0] for name in PONDER for seed in models(TEXT)[name]]
    told = f"ACT and the halter learn to stop after one step** ({min(own):.2f} to {max(own):.2f} by their own limits"
    yield when(round(max(own)) == 1, told)
    steps = [float(depth) for depth in range(1, len(models(TEXT)[FIRST][0]["fixed"]["loss"]) + 1)]
    best = min((at(TEXT, FIRST, "fixed", depth) for depth in steps), key=mean)
    act, halter = (at(TEXT, name, "fixed", 1.0) for name in PONDER)
    told = f"at one step it has {mean(halter):.4f} nats, the first-stage model at its best depth {mean(best):.4f}"
    yield when(not less(halter, best).side, f"{told}, a difference that is not decided")
    behind = less(act, best)
    low, high = over_seeds(behind.each)
    told = f"on each of the three seeds, by {behind.mean:.3f} nats in the mean (interval {ends(low, high, 4)}, not decided)"
    yield when(min(behind.each) > 0 and not behind.side, f"ACT is behind that model {told}")
    wins = [mean(at(TEXT, model, "fixed", 1.0)) - min(mean(at(TEXT, model, "fixed", depth)) for depth in steps) for model in GATED]
    yield f"a loop that wins {from_to(wins, 2)} nats"
