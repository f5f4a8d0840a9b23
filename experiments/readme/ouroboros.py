"""What docs/ouroboros.md says about the retrofit study."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from experiments.ouroboros.answers import TRAINED, decided
from experiments.ouroboros.plan import (
    BEST,
    BEST_ONCE,
    BEST_STATIC,
    BLIND,
    CONTROLLER,
    DIAGONAL,
    FULL,
    GATE,
    NORMED,
    ONCE,
    PUBLISHED,
    STATIC,
    TOKEN,
    TRUNCATED,
)
from experiments.ouroboros.rate_tables import at_own_rates, recovered
from experiments.ouroboros.rates import SEEDS, arm_of, best_rates, rates_of
from experiments.ouroboros.run import DEPTHS, TEXTS
from experiments.ouroboros.tables import planned
from experiments.pages import Result, by_label, difference, percent, results, words
from experiments.readme.rows import RESULTS, WORDS, line, of, rows_of
from experiments.seeds import best_depth, held, mean_loss, over_seeds, pooled, reports

LINES = {
    "healed LoRA, not looped": ONCE,
    "gate only": GATE,
    "static at matched parameters: LoRA per step, rank 4": STATIC,
    "controller, causal mean of raw states": CONTROLLER,
    "controller, causal mean of normed states": NORMED,
    "controller, blind to the input": BLIND,
    "controller + adapters everywhere + distillation, searched layout": BEST,
    "the same with low-rank tables per step instead of the controller": BEST_STATIC,
    "the same without controller, gate and loop: LoRA on its 15 layers, each once": BEST_ONCE,
}
WIDTH, STYLE = 576, 128
# what the blind controller has of a reader, and does not use: the state's projection, and its part of the layer behind it
IDLE = 2 * STYLE * (WIDTH + 1) + (2 * STYLE) ** 2
COMMON = 4e-3  # the rate of all rows that name no other
OWN_LINES = {
    "static diagonal": DIAGONAL,
    "controller, causal mean": CONTROLLER,
    "controller, token": TOKEN,
    "controller, blind": BLIND,
    "low-rank tables per step": STATIC,
    "gate alone": GATE,
    "controller, causal mean of normed states": NORMED,
    "as published": PUBLISHED,
    "LoRA, not looped": ONCE,
}
Runs = Mapping[str, Sequence[Result]]


@cache
def all_runs() -> Runs:
    """Returns the runs of the study by label."""
    return by_label(results([str(RESULTS / "ouroboros/runs.jsonl")], planned()))


@cache
def tried() -> list[Result]:
    """Returns the rows of the arms at rates of their own."""
    return results([str(RESULTS / "ouroboros/rates.jsonl")], ())


@dataclass(frozen=True)
class Beside:
    """One arm against another at their own rates: how far its loss is above the other's on each text, the same seed by seed, and
    whether both texts decide it."""

    above: Sequence[float]
    of_seeds: Sequence[Sequence[float]]
    decided: bool

    @property
    def seeds(self) -> int:
        """How many seeds both have."""
        return min(map(len, self.of_seeds))

    @property
    def far(self) -> str:
        """How far apart they are."""
        return span([abs(value) for value in self.above])

    @property
    def told(self) -> str:
        """How far apart they are, seeds and verdict."""
        return f"{self.far} nats ({self.verdict})"

    @property
    def word(self) -> str:
        """Whether it is decided."""
        return "decided" if self.decided else "not decided"

    @property
    def verdict(self) -> str:
        """Seeds, and whether they decide."""
        return f"{WORDS[self.seeds]} seed{'s' * (self.seeds > 1)}, {self.word}"

    @property
    def side(self) -> str:
        """Where the first one stands."""
        return "behind" if min(self.above) > 0 else "ahead of" if max(self.above) < 0 else "level with"

    @property
    def lost(self) -> list[int]:
        """The places of the seeds on which the first one is behind on some text."""
        return [place for place, each in enumerate(zip(*self.of_seeds, strict=True)) if max(each) > 0]


def beside(first: str, second: str, depth: int | None = None) -> Beside:
    """Returns an arm beside another, both at one depth or each at its best."""
    runs = at_own_rates(tried())
    found = {text: each for text in TEXTS if (each := pooled(runs[first], runs[second], text, depth)) is not None}
    each = found.values()
    return Beside([one.difference for one in each], [one.of_seeds for one in each], decided(found) != "not resolved")


def ahead_at(first: str, second: str, depths: Sequence[int] = DEPTHS) -> dict[int, Beside]:
    """Returns the depths at which an arm is ahead of another, which both texts decide."""
    found = {depth: beside(first, second, depth) for depth in depths}
    return {depth: each for depth, each in found.items() if each.decided and each.side == "ahead of"}


def none_ahead() -> bool:
    """Whether at best depths no controller is ahead of the static diagonal, decided or not."""
    return all(beside(arm, DIAGONAL).side != "ahead of" for arm in (CONTROLLER, TOKEN, BLIND, NORMED, PUBLISHED))


def own_rates() -> Iterator[str]:
    """Yields what README and page say of the arms at their own rates."""
    mean, token = beside(CONTROLLER, DIAGONAL), beside(TOKEN, DIAGONAL)
    yield f"the controller that reads the running mean is {mean.side} that rival by {mean.told}"
    won = of(token.seeds - len(token.lost), token.seeds)
    level = f"level with it ({token.far} {token.side} in the mean, ahead on {won} seeds, not decided)"
    yield f"one that reads each token is {f'{token.side} it by {token.told}' if token.decided else level}"
    rival, by_token = ahead_at(TOKEN, DIAGONAL), ahead_at(TOKEN, BLIND, TRAINED)
    too = ", as the blind one is" if ahead_at(BLIND, DIAGONAL).keys() == rival.keys() else ""
    yield f"ahead at depths {words(list(rival))} (decided; by {beside(TOKEN, DIAGONAL, 2).far} at depth 2){too}"
    best = beside(TOKEN, BLIND)
    told = words([f"{each.far} at depth {depth}" for depth, each in by_token.items()])
    yield f"reading each token is {best.side.removesuffix(' of')} by {told} (decided), by {best.far} at best depths ({best.word})"


def own_rates_further() -> Iterator[str]:
    """Yields what the page alone says of the controllers at their own rates."""
    depths = [depth for depth in DEPTHS if beside(CONTROLLER, BLIND, depth).decided]
    yield f"reading the running mean is decided at {'no depth' if not depths else f'depths {depths}'}"
    yield f"{'no' if none_ahead() else 'some'} controller is ahead of the paper's own rival"
    blind, token = beside(BLIND, DIAGONAL), beside(TOKEN, DIAGONAL)
    yield f"a blind one, which knows only the step, is {blind.side} it by {blind.told}"
    runs = at_own_rates(tried())
    lost = [runs[TOKEN][place] for place in token.lost]
    yield "; ".join(f"seed {run['seed']}, which it loses, skipped {run['skipped']} updates as not finite" for run in lost)
    best = {depth for arm in (CONTROLLER, TOKEN, BLIND, DIAGONAL) for text in TEXTS for depth in [best_at(runs[arm], text)[0]]}
    yield f"At best depths ({words(sorted(best))})"
    for label, arm in (("the one that reads each token", TOKEN), ("the blind one", BLIND), ("the running mean", CONTROLLER)):
        found = ahead_at(arm, DIAGONAL)
        yield f"{label} by {words([each.far for each in found.values()])} nats at depths {words(list(found))}"


def best_at(runs: Sequence[Result], text: str) -> tuple[int, float]:
    """Returns the best depth of runs and the mean loss there."""
    found = reports(runs, text)
    depth = best_depth(found)
    return depth, mean_loss(found, depth)


def further() -> Iterator[str]:
    """Yields what the page says of single depths on `test`: the first two of the one that reads each token, and the last."""
    runs = at_own_rates(tried())
    at = {arm: {depth: mean_loss(reports(found, "test"), depth) for depth in DEPTHS} for arm, found in runs.items()}
    yield f"at depth 1 its loss is {at[TOKEN][1]:.2f}; at depth 2 it is {at[TOKEN][2]:.2f}"
    three, last = [at[arm] for arm in (CONTROLLER, TOKEN, BLIND)], DEPTHS[-1]
    yield f"{span([each[last] for each in three])} at depth {last}, where the static diagonal has {at[DIAGONAL][last]:.2f}"
    yield f"and the gate alone {at[GATE][last]:.2f}"
    if min(at, key=lambda arm: at[arm][last]) == STATIC:
        rise = at[STATIC][last] - min(at[STATIC].values())
        yield f"Low-rank tables have the least loss there, {at[STATIC][last]:.2f}"
        yield f"{rise:.2f} above their best, those three {span([each[last] - min(each.values()) for each in three])}"


def trained() -> dict[str, int]:
    """Returns the trained parameters of every arm."""
    return {arm_of(run): run["trainable"] for run in tried() if "trainable" in run}


def sizes() -> str:
    """Returns how many parameters the arms of the closest contrast train, in millions."""
    blind, reading, rival = (f"{trained()[arm] / 1e6:.3f} million" for arm in (BLIND, TOKEN, DIAGONAL))
    return f"{blind} trained parameters, those that read {reading}, the static diagonal {rival}"


def untrained_places() -> Iterator[str]:
    """Yields what the page says of cores at two places before any training."""
    rows = rows_of("ouroboros/places.jsonl")
    once = next(row["loss"] for row in rows if not row["core"])
    yield f"its 15 layers have a loss of {once:.2f} once each"
    eight, one = ([row for row in rows if row["core"][:1] == [first]] for first in (8, 1))
    named = zip(eight, ("one layer, seven steps", "three, three", "six, two"), strict=True)
    yield "has " + words([f"{row['loss']:.2f} ({name})" for row, name in named])
    least = [min(row["loss"] for row in rows if len(row["core"]) == len(each["core"])) for each in one]
    if least == [row["loss"] for row in one]:
        yield f"one that begins at layer 1 the least of all places: {words([f'{loss:.2f}' for loss in least])}"


def span(values: Sequence[float]) -> str:
    """Returns from where to where numbers go, at two digits; one number where that is the same."""
    ends = f"{min(values):.2f}", f"{max(values):.2f}"
    return ends[0] if ends[0] == ends[1] else " to ".join(ends)


def own_lines() -> Iterator[str]:
    """Yields the lines of the page's table: the rate, the loss on `valid` at the common rate and at its own, and held out."""
    rates, best, runs = rates_of(tried()), best_rates(tried()), at_own_rates(tried())
    for label, arm in OWN_LINES.items():
        found = [run for run in runs.get(arm, ()) if run["seed"] in SEEDS]  # like with like
        cells = [
            f"{trained()[arm] / 1e6:.3f} M",
            f"{best[arm]:g}",
            f"{rates[arm][COMMON]:.3f}",
            f"{rates[arm][best[arm]]:.3f}",
            str(len(found) or "–"),
        ]
        for text in TEXTS:
            held = reports(found, text)
            share = percent(recovered(found, all_runs(), text)) if found else "–"
            cells += [f"{mean_loss(held, best_depth(held)):.3f}" if found else "–", share]
        yield line(label, *cells)


def by_depth() -> Iterator[str]:
    """Yields the lines of the page's tables, depth by depth: reading against the blind controller, all three against the rival."""
    mean, token, normed, nothing = "the running mean", "each token", "the running mean of normed states", "nothing (blind)"
    against = {BLIND: {mean: CONTROLLER, token: TOKEN, normed: NORMED}, DIAGONAL: {mean: CONTROLLER, token: TOKEN, nothing: BLIND}}
    for name, other in {"blind": BLIND, "static diagonal": DIAGONAL}.items():
        for label, arm in against[other].items():
            cells = []
            for depth in DEPTHS:
                found = beside(arm, other, depth)
                cell = " / ".join(difference(value, 2) for value in found.above)
                cells.append(f"**{cell}**" if found.decided else cell)
            yield line(label, name, str(beside(arm, other).seeds), *cells)


def own_pairs() -> Iterator[str]:
    """Yields what the page says of the other pairs."""
    for label, first, second in (
        ("The static diagonal", DIAGONAL, STATIC),
        ("The controller with the running mean", CONTROLLER, STATIC),
        ("the one that reads each token", TOKEN, STATIC),
    ):
        found = beside(first, second)
        yield f"{label} is {found.side} low-rank tables per step by {found.told}"
    gate, published = beside(DIAGONAL, GATE), beside(PUBLISHED, BLIND)
    yield f"The static diagonal is {gate.side} the gate alone by {gate.told}"
    yield f"As published it is {published.side} the blind controller by {published.told}"


def claims() -> Iterator[str]:
    """Yields what the rows say."""
    yield from own_rates()
    yield from own_rates_further()
    yield from further()
    yield sizes()
    yield from untrained_places()
    yield from own_lines()
    yield from by_depth()
    yield from own_pairs()
    runs = all_runs()
    one = runs[CONTROLLER][0]
    yield f"tokens ({one['tokens'] / 1e6:.1f} million)"
    first, second = (round(held(one, text).targets / 1000) for text in TEXTS)
    yield f"({first} thousand tokens,"
    yield f"({second} thousand,"
    for label, name in LINES.items():
        row = runs[name][0]
        trained = row["trainable"] - (IDLE if name == BLIND else 0)
        test, ood = (f"{loss_of(name, text):.3f} | {percent(share(name, text))}" for text in TEXTS)
        yield line(label, percent(trained / row["kept"], 2), test).removesuffix(" |")
        yield f"| {ood}"
    yield from reading(runs)
    static, first_verdict = behind_once(BEST_STATIC)
    yield f"is {static:.3f} nats behind the same layers run once ({WORDS[len(runs[BEST_STATIC])]} seeds, {first_verdict})"
    best, second_verdict = behind_once(BEST)
    yield f"and {best:.3f} nats, which is {second_verdict}"


def loss_of(name: str, text: str) -> float:
    """Returns a row's loss at its best depth, the mean over seeds."""
    found = reports(all_runs()[name], text)
    return mean_loss(found, best_depth(found))


def share(name: str, text: str) -> float:
    """Returns what a row recovers of the gap from the truncated to the full model, at its best depth, the mean over seeds."""
    worse, better = held(all_runs()[TRUNCATED][0], text), held(all_runs()[FULL][0], text)
    top, bottom = mean_loss([worse], worse.depth[0]), mean_loss([better], best_depth([better]))
    return (top - loss_of(name, text)) / (top - bottom)


def by_seed(runs: Runs, first: str, second: str, text: str, depth: int) -> list[float]:
    """Returns the differences of two rows at one depth, seed by seed."""
    pairs = zip(reports(runs[first], text), reports(runs[second], text), strict=False)
    return [mean_loss([a], depth) - mean_loss([b], depth) for a, b in pairs]


def against_blind() -> str:
    """Returns whether reading the input changes anything from depth 2 on."""
    beyond = [(text, depth) for text in TEXTS for depth in DEPTHS[1:]]
    blind = [over_seeds(by_seed(all_runs(), name, BLIND, *at)) for name in (CONTROLLER, NORMED) for at in beyond]
    return "no depth from 2 on is decided" if all(low <= 0 <= high for low, high in blind) else "some depth is decided"


def reading(runs: Runs) -> Iterator[str]:
    """Yields what is said about reading the input."""
    yield f"{against_blind()} ({WORDS[len(runs[BLIND])]} seeds)"
    beyond = [(text, depth) for text in TEXTS for depth in DEPTHS[1:]]
    static = [by_seed(runs, name, STATIC, *at) for name in (CONTROLLER, NORMED) for at in beyond]
    means = [sum(each) / len(each) for each in static]
    seeds = sum(all(each[seed] > 0 for each in static) for seed in range(len(static[0])))
    yield (
        f"by {min(means):.2f} to {max(means):.2f} nats a token at depths {DEPTHS[1]} to {DEPTHS[-1]} on "
        f"{WORDS[seeds]} of {WORDS[len(static[0])]} seeds"
    )
    yield against_diagonal()


def against_diagonal() -> str:
    """Returns how the controller stands against the paper's own rival at one rate for all."""
    runs = all_runs()
    slow = [by_seed(runs, CONTROLLER, DIAGONAL, text, depth) for text in TEXTS for depth in DEPTHS]
    worse = sum(all(each[seed] < 0 for each in slow) for seed in range(len(slow[0])))
    return f"the static diagonal, at every depth on {WORDS[worse]} of {WORDS[len(slow[0])]} seeds"


@cache
def behind_once(name: str) -> tuple[float, str]:
    """Returns how far a looped row is behind the same layers run once on `test`, each at its best depth, and the verdict on both
    texts."""
    found = {text: pooled(all_runs()[name], all_runs()[BEST_ONCE], text) for text in TEXTS}
    verdicts = {each.verdict for each in found.values() if each is not None}
    test = found["test"]
    return (
        test.difference if test is not None else float("nan"),
        "decided" if verdicts in ({"higher"}, {"lower"}) else "not decided",
    )
