"""What README, docs/ouroboros.md and docs/when-to-loop-retrofit.md say of cores of 1, 3 and 6 layers, each row at its own rate."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from experiments.ouroboros.answers import decided
from experiments.ouroboros.core_tables import LOOPED
from experiments.ouroboros.cores import ARMS, RATES
from experiments.ouroboros.plan import AT_DEPTH, AT_ONE, CORES, LAYERS, ONCE_EQUAL, ONCE_LONGER, PLACES, UPDATES, looping
from experiments.ouroboros.rate_tables import at_own_rates, recovered
from experiments.ouroboros.rates import SEEDS, best_rates, rates_of
from experiments.ouroboros.run import TEXTS
from experiments.pages import Result, difference, percent, results, words
from experiments.readme.retrofit.ouroboros import Runs, all_runs
from experiments.readme.rows import RESULTS, WORDS, from_to, line, of, rows_of, when
from experiments.seeds import best_depth, mean_loss, paired_p, pooled, reports
from experiments.templates.words import rate

SETTINGS = (
    "Cores of 1, 3 and 6 layers Does",
    "The 15 layers of the searched layout (0–2, 8, 19–29)",
    "A core of 1, 3 or 6 layers runs 7, 3 or 2 times, so that 21 layers run in each row",
    "low-rank adapters of rank 8",
    "From layer 8*: the core begins at layer 8, which the search at depth 1 picks",
    "Their adapters have rank 16",
    "16 × 512 tokens an update",
    "The rates 6e-3, 1.2e-2 and 2.4e-2 were compared on `valid` with seed 0",
    "Differences are the row's loss less that of the layers run once: below 0 the row is better",
    "the 95 % intervals over seeds and over documents exclude 0",
    "read 4,096 tokens of",
    "on 1,536 tokens other places came first",
)
UPDATE = 16 * 512  # tokens
BROKEN = 1.0  # nats above the best rate
RANKS, RUN = (8, 16), 21  # of the adapters in looped rows and in layers run once; layers that a looped row runs


@cache
def tried() -> list[Result]:
    """Returns all rows."""
    return results([str(RESULTS / "ouroboros/cores.jsonl")], ())


@cache
def runs() -> Runs:
    """Returns the runs of each row at its own rate."""
    return at_own_rates(tried(), RATES)


@dataclass(frozen=True)
class Beside:
    """One row against another: the difference of losses on each text, the same seed by seed, and what both texts decide."""

    apart: Sequence[float]
    of_seeds: Sequence[Sequence[float]]
    verdict: str

    @property
    def side(self) -> str:
        """Where the first stands, if that is decided."""
        return {"yes": "ahead", "no": "behind"}.get(self.verdict, "not decided")

    @property
    def far(self) -> str:
        """How far apart they are on each text."""
        return " and ".join(f"{abs(value):.3f}" for value in self.apart)

    @property
    def signed(self) -> str:
        """The differences with their signs."""
        return " / ".join(difference(value, 3) for value in self.apart)

    @property
    def cell(self) -> str:
        """The differences as a table tells them. Bold is not checked, so that words say what is not decided."""
        return f"{self.signed}, not decided" if self.side == "not decided" else f"**{self.signed}**"


@cache
def beside(first: str, second: str) -> Beside:
    """Returns a row against another, which must share all seeds."""
    found = {text: each for text in TEXTS if (each := pooled(runs()[first], runs()[second], text)) is not None}
    if {each.seeds for each in found.values()} != {SEEDS} or len(found) != len(TEXTS):
        raise ValueError(f"{first} and {second} do not share seeds {SEEDS} on all texts")
    pairs = found.values()
    return Beside([each.difference for each in pairs], [each.of_seeds for each in pairs], decided(found))


def beside_on(arm: str, text: str) -> str:
    """Returns what one text alone decides of a looped row against the layers run once, at equal tokens."""
    found = pooled(runs()[arm], runs()[ONCE_EQUAL], text)
    return found.verdict if found is not None else "not measured"


def stood(first: str, second: str, side: str) -> str:
    """Returns how far apart two rows are; marked where the first does not stand on this side, decided."""
    found = beside(first, second)
    return when(found.side == side, found.far)


def claims() -> Iterator[str]:
    """Yields what the section of docs/ouroboros.md says."""
    yield from setting_claims()
    yield from table_lines()
    yield from equal_tokens()
    yield from equal_flops()
    yield sizes()
    yield place()
    yield from limits()


def setting_claims() -> Iterator[str]:
    """Yields what was trained, on how much, at which rates."""
    sizes = {runs()[arm][0]["trainable"] for arm in LOOPED}
    (once,), (core,) = {runs()[label][0]["trainable"] for label in UPDATES}, sizes
    yield f"All {WORDS[len(LOOPED)]} rows train {core / 1e6:.2f} M parameters"
    yield f"{once / 1e6:.2f} M trained parameters, which is {percent(once / core - 1, 0)} more"
    updates = {label: runs()[label][0]["tokens"] / UPDATE for label in UPDATES}
    fewer, longer = (f"{updates[label]:g} updates, {tokens(label)}" for label in (ONCE_EQUAL, ONCE_LONGER))
    yield f"{fewer}, for which a looped row takes {cost()} times the training FLOPs"
    yield f"{longer}; the looped rows have {cost(ONCE_LONGER)} times its FLOPs"
    rates, seeds = set(best_rates(tried(), RATES).values()), words(SEEDS)
    told = f"The best is {words([*map(rate, rates)])} for each of the {WORDS[len(ARMS)]} rows"
    yield when(len(best_rates(tried(), RATES)) == len(ARMS) and len(rates) == 1, told)
    yield f"Fresh seeds {seeds} were measured"
    yield when(not any(run["skipped"] for run in tried()), "on `test` and `ood`. No update was skipped")
    commits = {run["origin"]["commit"][:7] for run in tried()}
    yield f"The {len(tried())} rows of `cores.jsonl` were made at {words(sorted(commits))}"
    places = {PLACES[AT_DEPTH][size] for size in CORES}
    yield when(len(places) == 1 and untrained_least(), f"that is layer {min(places)} for all three sizes")


def tokens(label: str) -> str:
    """Returns how many tokens a row is trained on."""
    return f"{runs()[label][0]['tokens'] / 1e6:.1f} million tokens"


def more_trained() -> str:
    """Returns by which part the layers run once have more trained parameters than a looped row."""
    (once,), (core,) = ({runs()[label][0]["trainable"] for label in labels} for labels in (UPDATES, LOOPED))
    return percent(once / core - 1, 0)


def training(label: str) -> float:
    """Returns the training FLOPs of a row, but for a factor that all rows share."""
    return float(runs()[label][0]["flops"] * runs()[label][0]["tokens"])


def cost(than: str = ONCE_EQUAL) -> str:
    """Returns the range of the looped rows' training FLOPs, in those of a row that runs once."""
    shares = [training(arm) / training(than) for arm in LOOPED]
    return f"{min(shares):.2f} to {max(shares):.2f}"


def untrained_least() -> bool:
    """Returns whether before training the place of every size at its depth has the least loss of all places."""
    found: dict[int, dict[int, float]] = {}
    for row in rows_of("ouroboros/places.jsonl"):
        if row["core"]:
            found.setdefault(len(row["core"]), {})[row["core"][0]] = row["loss"]
    return all(min(losses, key=losses.__getitem__) == PLACES[AT_DEPTH][size] for size, losses in found.items())


def table_lines() -> Iterator[str]:
    """Yields the table."""
    for how in (AT_DEPTH, AT_ONE):
        for size, steps in CORES.items():
            first, arm = LAYERS.index(PLACES[how][size]), looping(size, how)
            core = f"{size} ({ranges(LAYERS[first : first + size])})"
            against = (beside(arm, once).cell for once in UPDATES)
            yield line(core, str(steps), how.removeprefix("placed "), *measured(arm), *against)
    yield line("run once, equal tokens", "1", "–", *measured(ONCE_EQUAL), "–", "–")
    yield line("run once, equal training FLOPs", "1", "–", *measured(ONCE_LONGER), beside(ONCE_LONGER, ONCE_EQUAL).cell, "–")


def ranges(layers: Sequence[int]) -> str:
    """Returns layers as the page writes them: "8, 19, 20" and "8, 19–23", three or more in a row as a range."""
    parts: list[list[int]] = []
    for layer in layers:
        if parts and parts[-1][-1] == layer - 1:
            parts[-1].append(layer)
        else:
            parts.append([layer])
    return ", ".join(f"{each[0]}–{each[-1]}" if len(each) > 2 else ", ".join(map(str, each)) for each in parts)


def measured(label: str) -> tuple[str, str]:
    """Returns a row's losses, and what it recovers of the gap, on both texts."""
    found = [reports(runs()[label], text) for text in TEXTS]
    losses = " / ".join(f"{mean_loss(each, best_depth(each)):.3f}" for each in found)
    return losses, " / ".join(percent(recovered(runs()[label], all_runs(), text)) for text in TEXTS)


def best() -> str:
    """Returns the looped row that is ahead of the layers run once; there must be one alone."""
    (found,) = standing("ahead")
    return found


def standing(side: str, than: str = ONCE_EQUAL) -> list[str]:
    """Returns the looped rows that stand so against the layers run once."""
    return [arm for arm in LOOPED if beside(arm, than).side == side]


def span(found: Iterable[Beside], digits: int = 3) -> str:
    """Returns the least and the largest of some differences on any text."""
    return from_to((value for each in found for value in each.apart), digits)


def lead() -> str:
    """Returns how far the best looped row is ahead at equal tokens."""
    test, ood = (f"{-value:.3f}" for value in beside(best(), ONCE_EQUAL).apart)
    return f"{test} nats on `test` and {ood} on `ood`"


def equal_tokens() -> Iterator[str]:
    """Yields how the looped rows stand at equal tokens."""
    counts = WORDS[len(standing("ahead"))], WORDS[len(LOOPED)]
    yield f"At equal tokens {counts[0]} of the {counts[1]} looped rows is ahead."
    won = {sum(value < 0 for value in each) for each in beside(best(), ONCE_EQUAL).of_seeds}
    told = f"The core of three at its depth is ahead by {lead()}, on {of(min(won), len(SEEDS))} seeds each (decided)."
    yield when(best() == looping(3, AT_DEPTH), told)
    others = [beside(best(), arm) for arm in LOOPED if arm != best()]
    told = f"It is ahead of each of the other {WORDS[len(others)]} looped rows too, by {span(others)} (decided)."
    yield when(all(each.side == "ahead" for each in others), told)
    behind, open_ = standing("behind"), standing("not decided")
    told = "The cores of six at both places and the core of one at its depth are behind by "
    so = set(behind) == {looping(6, AT_DEPTH), looping(6, AT_ONE), looping(1, AT_DEPTH)}
    yield when(so, f"{told}{span(beside(arm, ONCE_EQUAL) for arm in behind)} (decided).")
    cells = " and ".join(beside(arm, ONCE_EQUAL).signed for arm in open_)
    told = f"The cores of one and three from layer 8 are not decided ({cells}; the second is decided on the first text alone)."
    alone = [[beside_on(arm, text) for text in TEXTS] for arm in open_]
    so = alone == [["not resolved", "not resolved"], ["higher", "not resolved"]]
    yield when(so and open_ == [looping(1, AT_ONE), looping(3, AT_ONE)], told)


def every_behind() -> bool:
    """Returns whether all looped rows are behind at equal training FLOPs, decided."""
    return len(standing("behind", ONCE_LONGER)) == len(LOOPED)


def all_behind(digits: int) -> str:
    """Returns by how much the looped rows are behind at equal training FLOPs, if all of them are."""
    return when(every_behind(), f"by {span((beside(arm, ONCE_LONGER) for arm in LOOPED), digits)}")


def equal_flops() -> Iterator[str]:
    """Yields how the looped rows stand at equal training FLOPs."""
    yield f"At equal training FLOPs all {WORDS[len(LOOPED)]} are behind, {all_behind(3)} (decided)."
    more, gain = training(ONCE_LONGER) / training(ONCE_EQUAL), beside(ONCE_LONGER, ONCE_EQUAL)
    told = f"Reading {more:.3f} times the text takes {gain.far} off the loss of the layers run once (decided)"
    most = min(value for arm in LOOPED for value in beside(arm, ONCE_EQUAL).apart)
    yield when(gain.side == "ahead" and max(gain.apart) < most, f"{told}, more than any of these loops does")


def sizes() -> str:
    """Returns how cores of different sizes stand against one another at each place."""
    one, three, six = (looping(size, AT_DEPTH) for size in CORES)
    first = f"At its depth the core of three is ahead of that of six by {stood(three, six, 'ahead')}"
    first += f", and of that of one by {stood(three, one, 'ahead')} (decided)."
    one, three, six = (looping(size, AT_ONE) for size in CORES)
    second = f"From layer 8 the core of one is ahead of that of three by {stood(one, three, 'ahead')}"
    return f"{first} {second} (decided), and the core of three is ahead of that of six by {stood(three, six, 'ahead')} (decided)."


def place() -> str:
    """Returns what the place does to each size."""
    one, three, six = ((looping(size, AT_DEPTH), looping(size, AT_ONE)) for size in CORES)
    gains = f"the core of three gains {stood(*three, 'ahead')} and the core of six {stood(*six, 'ahead')} (decided)."
    loses = f"The core of one loses {stood(*one, 'behind')} (decided), although it had the lower loss there before training."
    return f"Placed from layer 1 on instead of from layer 8 on, {gains} {when(untrained_least(), loses)}"


def holds_corrected() -> list[bool]:
    """Returns on which texts the lead of the best looped row is decided once its p is multiplied by the number of looped rows."""
    return [len(LOOPED) * paired_p(each) < 0.05 for each in beside(best(), ONCE_EQUAL).of_seeds]


def limits() -> Iterator[str]:
    """Yields what the lead is worth, and what the grid of rates leaves open."""
    chances = [paired_p(each) for each in beside(best(), ONCE_EQUAL).of_seeds]
    count = len(LOOPED)
    test, ood = (f"{chance:.3f}" for chance in chances)
    yield f"Over its {WORDS[len(SEEDS)]} seeds (paired t-test) p is {test} on `test` and {ood} on `ood`."
    test, ood = (f"{count * chance:.2f}" for chance in chances)
    yield f"Multiplied by {WORDS[count]}, because {WORDS[count]} looped rows were tried (Bonferroni), it is {test} and {ood}."
    told = "Corrected in this way, the lead is decided on the first text and not on the second, so that by the rule of this page"
    yield when(holds_corrected() == [True, False], f"{told} it is not decided.")
    losses = rates_of(tried())
    steps = [loss - min(each.values()) for each in losses.values() for loss in each.values()]
    near = [step for step in steps if 0 < step < BROKEN]
    told = f"The next rate on either side costs {min(near):.3f} to {max(near):.3f} nats on `valid`"
    largest = max(abs(value) for value in beside(best(), ONCE_EQUAL).apart)
    yield when(min(near) > largest, f"{told}, more than this lead.")
    broken = {label: each[RATES[-1]] for label, each in losses.items() if each[RATES[-1]] - min(each.values()) > BROKEN}
    ends = words([f"{broken[label]:.2f}" for label in UPDATES if label in broken])
    yield when(set(broken) == set(UPDATES), f"At {rate(RATES[-1])} the layers run once break (they end at {ends}).")
    yield f"Each row has {WORDS[len(SEEDS)]} seeds and {tokens(ONCE_EQUAL)} ({tokens(ONCE_LONGER)[:3]} for the longer run)."
    (once,), (core,) = ({runs()[label][0]["trainable"] for label in labels} for labels in (UPDATES, LOOPED))
    yield f"The layers run once have {percent(once / core - 1, 0)} more trained parameters, all of them in adapters."
    adapters = once * RANKS[0] * RUN / (RANKS[1] * len(LAYERS))  # of one rank all layers have as many
    parts = f"A looped row has {adapters / 1e6:.2f} M in adapters, which differ from step to step in the core"
    yield f"{parts}, and {(core - adapters) / 1e6:.2f} M in the gate."
    yield f"A looped row takes {cost()} times the FLOPs when it is used, too."


def page_claims() -> Iterator[str]:
    """Yields what the head and the end of docs/ouroboros.md say in short."""
    ahead, behind, open_ = (WORDS[len(standing(side))] for side in ("ahead", "behind", "not decided"))
    told = f"{ahead} of {WORDS[len(LOOPED)]} looped rows is ahead at equal tokens and none at equal training FLOPs."
    yield when(not standing("ahead", ONCE_LONGER), told)
    lead_told = f"is ahead of the same layers run once by {lead()} (decided; {corrected('on `test` only')})."
    yield f"{lead_told} Of the other five, {behind} are behind (decided)"
    yield f"and {open_} are not decided."
    yield f"all six looped rows are behind them, {all_behind(2)} nats (decided)"


def corrected(told: str) -> str:
    """Returns where the lead is decided once it is corrected for the number of looped rows."""
    return when(holds_corrected() == [True, False], f"after a Bonferroni correction for {WORDS[len(LOOPED)]} rows {told}")


def headline() -> str:
    """Returns what the README says."""
    test, verdict = -beside(best(), ONCE_EQUAL).apart[0], f"decided; {corrected('on one of two texts only')}"
    six, one = WORDS[len(LOOPED)], standing("ahead") == [best()]
    ahead = when(one, f"of {six} loops with adapters one is ahead of the same layers run once, by {test:.3f} ({verdict})")
    return f"{ahead}; at equal training FLOPs all {six} are behind, {all_behind(2)} (decided)"
