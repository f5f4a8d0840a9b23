"""What the pages say of depth at test time, on models that were trained from the start on all of the text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from statistics import mean

from experiments.halting.reading import SIMPLE
from experiments.leaving.reading import MEANS, MOST
from experiments.leaving.tables import THIRDS, against_fixed
from experiments.pages import Result
from experiments.readme.rows import WORDS, line, when
from experiments.readme.text.repeats import kept
from experiments.readme.text.whole_text import seeds, spans
from experiments.repeats.deep_tables import LEAVES, TEXTS, TRAINED, deep_runs, easy_to_hard, gains, hard_less_easy
from experiments.repeats.plan import TESTED
from experiments.seeds import DECIDED, Pooled, decided, mean_loss, over_seeds, paired_p, reports, verdict

NEAR = ("change", "divergence")  # the rules that stay close to a fixed depth


def looped() -> list[Result]:
    """Returns the runs of the model that was trained at random depth."""
    return deep_runs(kept(), LEAVES)


def apart(text: str) -> Mapping[tuple[str, int], Pooled]:
    """Returns each exit rule less the fixed depth of as many steps, by rule and mean steps."""
    found = {(rule, steps): against_fixed(looped(), rule, text, steps) for rule, steps in product(SIMPLE, MEANS)}
    return {key: each for key, each in found.items() if each is not None}


def beyond() -> float:
    """Returns by how much at most the loss of any seed changes from the trained depth to any deeper one."""
    depths = [depth for depth in TESTED[LEAVES] if depth > TRAINED]
    return max(abs(each) for text in TEXTS for depth in depths for each in gains(looped(), text, depth))


def claims() -> Iterator[str]:
    """Yields what the section says."""
    runs = looped()
    for text in TEXTS:
        yield line(f"`{text}`", *(f"{mean_loss(reports(runs, text), depth):.3f}" for depth in TESTED[LEAVES]))
    yield f"({seeds()}) were tested at other depths"
    yield f"with at most {MOST} steps"
    deepest = max(TESTED[LEAVES])
    told = f"From depth {TRAINED} to {deepest} no seed's loss changes by more than {beyond():.4f} nats on either text"
    yield when(beyond() < 0.0005, f"**More depth did no harm, and gave nothing.** {told}")
    yield from fewer()
    yield from whole_loop()
    yield from rules()
    yield from documents()


def fewer() -> Iterator[str]:
    """Yields what fewer steps cost."""
    cost = {depth: [gains(looped(), text, depth) for text in TEXTS] for depth in (3, 2, 1)}
    all_decided = {verdict(over_seeds(each)) for both in cost.values() for each in both} == {"higher"}
    three, *rest = [f"{mean(both[0]):.3f} and {mean(both[1]):.3f}" for both in cost.values()]
    told = f"Depth 3 is {three} nats behind depth {TRAINED} on `test` and `ood`, depth 2 {rest[0]}, depth 1 {rest[1]}"
    yield when(all_decided, f"{told} (three of three seeds; the intervals over seeds leave 0 out)")


def whole_loop() -> Iterator[str]:
    """Yields what ASURA does before its last step."""
    early = [
        mean_loss([report], depth)
        for text in TEXTS
        for report in reports(deep_runs(kept(), "ASURA"), text)
        for depth in TESTED["ASURA"][:-1]
    ]
    yield f"after one or two of its three steps its loss is {min(early):.1f} to {max(early):.1f}"


def rules() -> Iterator[str]:
    """Yields what exit rules give at equal mean steps."""
    test, ood = (apart(text) for text in TEXTS)
    near = max(abs(each.difference) for found in (test, ood) for (rule, _), each in found.items() if rule in NEAR)
    ahead = [(key, each) for key, each in test.items() if each.verdict == "lower"]
    ((rule, steps), best), *rest = ahead
    strict = paired_p(best.of_seeds) * len(test) >= 0.05
    there = ood[rule, steps].verdict == "not resolved"
    told = f"the one lead that is decided by itself on `test` is {-best.difference:.4f} (`{rule}` at {steps} steps)"
    left = f"{told}; it is not after a Bonferroni correction for the {len(test)} pairs, nor decided on `ood`"
    none = not rest and strict and there
    yield when(none, left)
    close = "`change` and `divergence` lie within 0.001 nats of it at every mean"
    yield when(none and near < 0.001, f"**No exit rule was seen to beat a fixed depth.** {close}")
    far = [found["entropy", steps] for found in (test, ood) for steps in MEANS]
    span = f"{min(each.difference for each in far):.2f} to {max(each.difference for each in far):.2f}"
    yield when({each.verdict for each in far} == {"higher"}, f"`entropy` is {span} behind at every mean (decided)")
    two, three = (test["stable", steps] for steps in (2, 3))
    told = f"`stable` {two.difference:.3f} behind at 2 steps ({DECIDED[two.verdict]}) and {three.difference:.3f} at 3"
    yield when(three.verdict == "higher", f"{told} (decided)")
    own = [run["exits"]["test"]["divergence"]["own"] for run in looped()]
    steps, loss = (mean(each[place] for each in own) for place in (0, 1))
    full = mean_loss(reports(looped(), "test"), MOST)
    cost = f"{loss - full:.3f} nats more than all {MOST} steps"
    yield f"With the limit that it has unasked `divergence` takes {steps:.1f} steps in the mean, for {cost}"
    four = mean_loss(reports(looped(), "test"), 4) - full
    yield when(abs(four - (loss - full)) < 0.001, f"a fixed depth of 4 costs {four:.3f}")


def documents() -> Iterator[str]:
    """Yields whether hard documents want more steps than easy ones."""
    parts = easy_to_hard(kept())
    cost = [mean(gains(looped(), "test", 2, parts[name])) for name in THIRDS]
    told = f"Depth 2 costs {' / '.join(f'{each:.3f}' for each in cost)} nats on easy, middle and hard documents"
    more = hard_less_easy(kept(), looped(), 2)
    span = f"hard less easy {mean(more):.3f} ({spans(*over_seeds(more))}, {decided(over_seeds(more))})".replace("easy -", "easy −")
    yield when(verdict(over_seeds(more)) != "higher", f"{told}; {span}")


def in_short() -> str:
    """Returns what the decision page says of leaving early in a model that was trained from the start."""
    found = [each for text in TEXTS for (rule, _), each in apart(text).items() if rule in NEAR]
    none = all(abs(each.difference) < 0.001 for each in found)
    return when(none, f"in a model trained from the start within 0.001 of it for the two best rules of {WORDS[len(SIMPLE)]}")


def steps_in_short() -> str:
    """Returns what it says of more and of fewer steps."""
    three = max(mean(gains(looped(), text, 3)) for text in TEXTS)
    told = f"In a Huginn-like model that was trained from the start on text depth 3 is within {three:.3f} nats of depth {TRAINED}"
    return when(beyond() < 0.0005, f"{told}, and more depth changes nothing")
