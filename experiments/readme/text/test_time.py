"""What the pages say of depth at test time, on models that were trained from the start on all of the text."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from itertools import product
from statistics import mean

from experiments.halting.reading import SIMPLE
from experiments.leaving.reading import MEANS, MOST
from experiments.leaving.tables import THIRDS, against_fixed
from experiments.pages import Result, difference
from experiments.readme.rows import interval, line, when
from experiments.readme.text.repeats import kept
from experiments.readme.text.whole_text import seeds
from experiments.repeats.deep_tables import RANDOM, TEXTS, TRAINED, behind, deep_runs, easy_to_hard, hard_less_easy
from experiments.repeats.plan import ARMS, TESTED
from experiments.seeds import DECIDED, Pooled, decided, mean_loss, over_seeds, reports, stay_decided, verdict

SHOWN = (1, 2, 3, 4, 5, 8, 16)  # depths of the table
CLOSE = 0.001  # nats: how near the two best rules are to a fixed depth
NEAR = ("change", "divergence")  # the rules that stay close to a fixed depth


def looped() -> list[Result]:
    """Returns the runs of the model that was trained at random depth."""
    return deep_runs(kept(), RANDOM)


def apart(text: str) -> Mapping[tuple[str, int], Pooled]:
    """Returns each exit rule less the fixed depth of as many steps, by rule and mean steps."""
    found = {(rule, steps): against_fixed(looped(), rule, text, steps) for rule, steps in product(SIMPLE, MEANS)}
    return {key: each for key, each in found.items() if each is not None}


def beyond() -> float:
    """Returns by how much at most the loss of any seed changes from the trained depth to any deeper one."""
    depths = [depth for depth in TESTED[RANDOM] if depth > TRAINED]
    return max(abs(each) for text in TEXTS for depth in depths for each in behind(looped(), text, depth))


def claims() -> Iterator[str]:
    """Yields what the section says."""
    runs = looped()
    for text in TEXTS:
        yield line(f"`{text}`", *(f"{mean_loss(reports(runs, text), depth):.3f}" for depth in SHOWN))
    yield f"({seeds()}) were tested at other depths"
    yield f"with at most {MOST} steps"
    deepest = max(TESTED[RANDOM])
    told = f"From depth {TRAINED} to {deepest} no seed's loss changes by more than {beyond():.4f} nats on either text"
    yield when(beyond() < 0.0005, f"**More depth did no harm, and gave nothing.** {told}")
    yield trained_at()
    yield from fewer()
    yield from whole_loop()
    yield from rules()
    yield from documents()


def trained_at() -> str:
    """Returns which depths the model was trained at."""
    _, drawn, _ = ARMS[RANDOM]
    mean_depth, most = (re.search(rf"{name}: (\d+)", drawn)[1] for name in ("mean", "most"))  # type: ignore[index]
    own = int(mean_depth) + 1 == TRAINED  # 1 + Poisson
    return when(own, f"whose depth in training was random, {TRAINED} in the mean and at most {most}")


def fewer() -> Iterator[str]:
    """Yields what fewer steps cost."""
    cost = {depth: [behind(looped(), text, depth) for text in TEXTS] for depth in (3, 2, 1)}
    all_decided = {verdict(over_seeds(each)) for both in cost.values() for each in both} == {"higher"}
    three, *rest = [f"{mean(both[0]):.3f} and {mean(both[1]):.3f}" for both in cost.values()]
    told = f"Depth 3 is {three} nats behind depth {TRAINED} on `test` and `ood`, depth 2 {rest[0]}, depth 1 {rest[1]}"
    most = all(each < 0.01 for each in map(mean, cost[3]))
    known = f"{told} (three of three seeds; the intervals over seeds leave 0 out)"
    yield when(all_decided and most, f"**The first three steps do nearly all.** {known}")


def whole_loop() -> Iterator[str]:
    """Yields what ASURA does before its last step."""
    early = [
        mean_loss([report], depth)
        for text in TEXTS
        for report in reports(deep_runs(kept(), "ASURA"), text)
        for depth in TESTED["ASURA"][:-1]
    ]
    told = f"after one or two of its three steps its loss is {min(early):.1f} to {max(early):.1f}"
    yield when(min(early) > 9, f"**ASURA works at its trained depth alone**: {told}")


def no_lead() -> bool:
    """Returns whether no rule is ahead of a fixed depth of as many steps by an amount that stays decided, on either text."""
    return not any(apart(text)[key].verdict == "lower" for text in TEXTS for key in stay_decided(apart(text)))


def closest() -> list[str]:
    """Returns the rules, that which has the least loss in the mean of all its pairs on both texts first."""
    every = [(rule, each.difference) for text in TEXTS for (rule, _), each in apart(text).items()]
    loss = {rule: mean(apart_by for own, apart_by in every if own == rule) for rule in SIMPLE}
    return sorted(SIMPLE, key=lambda rule: loss[rule])


def farthest(rules: Collection[str]) -> float:
    """Returns how far these rules are from a fixed depth at most."""
    return max(abs(each.difference) for text in TEXTS for (rule, _), each in apart(text).items() if rule in rules)


def rules() -> Iterator[str]:
    """Yields what exit rules give at equal mean steps."""
    test, ood = (apart(text) for text in TEXTS)
    near = {*closest()[:2]} == {*NEAR} and farthest(NEAR) < 0.001
    close = "`change` and `divergence` lie within 0.001 nats of it at every mean"
    same = not any(any(test[rule, 2].of_seeds) for rule in NEAR)
    yield when(no_lead() and near, f"**No exit rule was seen to beat a fixed depth.** {close}")
    yield when(same, "at 2 steps they are it")
    told = []
    for text in TEXTS:
        (((rule, steps), each),) = [(key, each) for key, each in apart(text).items() if each.verdict == "lower"]
        told.append(f"{-each.difference:.4f} on `{text}` (`{rule}` at {steps} steps)")
    yield f"Two leads are decided by themselves: {' and '.join(told)}"
    far = [found["entropy", steps] for found in (test, ood) for steps in MEANS]
    span = f"{min(each.difference for each in far):.2f} to {max(each.difference for each in far):.2f}"
    yield when({each.verdict for each in far} == {"higher"}, f"`entropy` is {span} behind at every mean (decided by itself)")
    two, three, four = (test["stable", steps] for steps in (2, 3, 4))
    stable = f"`stable` {two.difference:.3f} behind at 2 steps ({DECIDED[two.verdict]})"
    stable = f"{stable}, {three.difference:.3f} at 3 and {four.difference:.3f} at 4"
    yield when(three.verdict == four.verdict == "higher", f"{stable} (both decided by themselves)")
    after = f"After a Bonferroni correction for the {len(test)} pairs of a text none is decided"
    yield when(not stay_decided(test) and not stay_decided(ood), after)
    own = [run["exits"]["test"]["divergence"]["own"] for run in looped()]
    steps, loss = (mean(each[place] for each in own) for place in (0, 1))
    full = mean_loss(reports(looped(), "test"), MOST)
    cost = f"{loss - full:.3f} nats more than all {MOST} steps"
    yield f"With the limit that it has unasked `divergence` takes {steps:.1f} steps in the mean, for {cost}"
    fixed = mean_loss(reports(looped(), "test"), 4) - full
    yield when(abs(fixed - (loss - full)) < 0.001, f"a fixed depth of 4 costs {fixed:.3f}")


def documents() -> Iterator[str]:
    """Yields whether hard documents want more steps than easy ones."""
    parts = easy_to_hard(kept())
    cost = [mean(behind(looped(), "test", 2, parts[name])) for name in THIRDS]
    told = f"Depth 2 costs {' / '.join(f'{each:.3f}' for each in cost)} nats on easy, middle and hard documents"
    more = hard_less_easy(kept(), looped(), 2)
    span = f"hard less easy {difference(mean(more), 3)} ({interval(*over_seeds(more))}, {decided(over_seeds(more))})"
    whole = f"The {sum(map(len, parts.values()))} documents of `test` are split into three parts"
    head = "**Hard documents were not seen to want more steps than easy ones.**"
    yield when(verdict(over_seeds(more)) != "higher", f"{head} {told}; {span}. {whole}")


def three() -> float:
    """Returns how far depth 3 is behind the trained depth, on the text where it is the most."""
    return max(mean(behind(looped(), text, 3)) for text in TEXTS)
