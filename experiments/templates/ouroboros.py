"""What pages ask of the retrofit study's rows: its arms at one learning rate, each at its own, and in a second set.

Verdicts here are of both held-out texts together: a difference is decided where each text decides it, with one sign.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import chain

from experiments.ouroboros import again_tables, answers, rate_tables
from experiments.ouroboros.again_tables import changed, filled, in_both, second_set
from experiments.ouroboros.plan import BLIND, CONTROLLER, DIAGONAL, FULL, LEAKING, STATIC, TOKEN, TRUNCATED
from experiments.ouroboros.rate_tables import at_own_rates
from experiments.ouroboros.rates import FURTHER, GRID, SEEDS, arm_of, best_rates, rates_of
from experiments.ouroboros.run import DEPTHS, TEXTS
from experiments.ouroboros.tables import Runs, planned
from experiments.pages import Result, by_label, results
from experiments.seeds import Pooled, best_depth, held, mean_loss, of_documents, pooled, reports, share_of_gap, stay_decided
from experiments.templates.rows import RESULTS, rows_of

COMMON = 4e-3  # the rate of all rows that name no other
READERS = (CONTROLLER, TOKEN)
CONTROLLERS = (*READERS, BLIND)
RIVALS = (DIAGONAL, STATIC, BLIND)
BOOK, BOOK_IN = "sarabander/sicp", "ood"  # the one book whose author and publisher the training text does not have
BY_DEPTH = ("depth", "loss", "loss_low", "loss_high", "perplexity", "bits_per_byte", "losses")  # of a report of held-out text


class OnTexts(tuple[Pooled, ...]):
    """One row less another on each held-out text."""

    @property
    def side(self) -> str:
        """Where the first row stands, "ahead" or "behind", if that is decided; else "undecided"."""
        verdict = answers.decided(dict(zip(TEXTS, self, strict=True)))
        return {"yes": "ahead", "no": "behind"}.get(verdict, "undecided")

    @property
    def word(self) -> str:
        """Whether it is decided."""
        return "undecided" if self.side == "undecided" else "decided"

    @property
    def apart(self) -> list[float]:
        """The difference on each text."""
        return [each.difference for each in self]

    @property
    def by_seed(self) -> list[tuple[float, ...]]:
        """The differences on all texts, seed by seed."""
        return list(zip(*(each.of_seeds for each in self), strict=True))

    @property
    def behind_on(self) -> int:
        """On how many seeds the first row is behind on each text."""
        return sum(min(each) > 0 for each in self.by_seed)

    @property
    def ahead_on(self) -> int:
        """On how many seeds it is ahead on each text."""
        return sum(max(each) < 0 for each in self.by_seed)


def read(name: str) -> list[Result]:
    """Returns the rows of a file of the study."""
    return results([str(RESULTS / f"ouroboros/{name}.jsonl")], planned() if name == "runs" else ())


@cache
def one_rate() -> Runs:
    """Returns the rows at one rate for all."""
    return by_label(read("runs"))


@cache
def seed_zero() -> Runs:
    """Returns the same with seed 0 alone."""
    return {row: found[:1] for row, found in one_rate().items()}


def others() -> list[str]:
    """Returns the rows that are beside the question, most with one seed."""
    return [row for row, found in one_rate().items() if found[0]["group"] == "others"]


def has_gap(row: str) -> bool:
    """Whether a row keeps the truncated model's layers, so that it has a gap to recover."""
    return one_rate()[row][0]["system"] not in answers.NOT_TRUNCATED


def refiners() -> list[str]:
    """Returns the refiner with its gate, without, and without at a smaller rate."""
    return [row for row in others() if not has_gap(row)]


def diverged(row: str) -> bool:
    """Whether a run of a row at one rate diverged."""
    return any(map(answers.diverged, one_rate()[row]))


def by_seed(row: str) -> list[float]:
    """Returns what each seed of a row at one rate recovers on `test`, in percent."""
    return [100 * rate_tables.recovered([run], one_rate(), "test") for run in one_rate()[row]]


@cache
def tried() -> list[Result]:
    """Returns the first set of rows at rates of their own, and those that chose the rates."""
    return read("rates")


@cache
def again() -> list[Result]:
    """Returns the rows of the second set."""
    return read("again")


@cache
def own() -> Runs:
    """Returns the first set, each arm at its own rate."""
    return at_own_rates(tried())


@cache
def second() -> Runs:
    """Returns the second set by arm."""
    return second_set(tried(), again())


@cache
def both() -> Runs:
    """Returns the first set with the second's rows of the seeds that it lacks."""
    return filled(tried(), again())


@cache
def fresh() -> Runs:
    """Returns the seeds of the second set that the first never had."""
    return {arm: [run for run in runs if run["seed"] in FURTHER] for arm, runs in second().items()}


@cache
def without_diverged() -> Runs:
    """Returns the second set without the runs that diverged."""
    return again_tables.without_diverged(second())


@cache
def less(row: str, other: str, depth: int | None = None, of: Callable[[], Runs] = own) -> OnTexts:
    """Returns a row less another, both at one depth or each at its best."""
    found = [pooled(of()[row], of()[other], text, depth) for text in TEXTS]
    pairs = OnTexts(each for each in found if each is not None)
    if len(pairs) != len(TEXTS):
        raise ValueError(f"{row} and {other} have no seed or no losses in common at depth {depth}")
    return pairs


def at_depths(row: str, other: str, of: Callable[[], Runs] = own) -> dict[int | None, OnTexts]:
    """Returns that at every depth, and at best depths under None."""
    return {depth: less(row, other, depth, of) for depth in (*DEPTHS, None)}


def decided_at(row: str, other: str, side: str, of: Callable[[], Runs] = own) -> list[int | None]:
    """Returns the depths at which a row stands so beside another, decided; None is best depths."""
    return [depth for depth, each in at_depths(row, other, of).items() if each.side == side]


def decided_in_both(row: str, other: str, side: str = "ahead") -> list[int | None]:
    """Returns the depths at which both sets decide that."""
    return [depth for depth in decided_at(row, other, side) if depth in decided_at(row, other, side, second)]


def every(pairs: Iterable[OnTexts]) -> list[Pooled]:
    """Returns the differences of several comparisons on all texts."""
    return [*chain.from_iterable(pairs)]


def ahead_of_rivals() -> list[tuple[str, str]]:
    """Returns the controllers that are ahead of the static diagonal or of the tables on any text at best depths, decided or not."""
    controllers = [arm for arm in own() if arm.startswith("controller")]
    return [(arm, rival) for arm in controllers for rival in (DIAGONAL, STATIC) if min(less(arm, rival).apart) < 0]


def loss(row: str, text: str = "test", depth: int | None = None, of: Callable[[], Runs] = own) -> float:
    """Returns the mean loss of a row at a depth, or at its best."""
    found = reports(of()[row], text)
    return mean_loss(found, best_depth(found) if depth is None else depth)


def rise(row: str) -> float:
    """Returns how far the loss on `test` at the last depth, which was not trained, is above the best one."""
    return loss(row, depth=DEPTHS[-1]) - loss(row)


def recovered(row: str, text: str = "test", of: Callable[[], Runs] = own) -> float:
    """Returns what a row recovers of the gap, in percent."""
    return 100 * rate_tables.recovered(of()[row], one_rate(), text)


def best_depths(rows: Iterable[str], of: Callable[[], Runs] = own) -> list[int]:
    """Returns the depths that are best for these rows on some text."""
    return sorted({best_depth(reports(of()[row], text)) for row in rows for text in TEXTS})


def trained(row: str) -> int:
    """Returns the parameters that a row trains; of the blind controller those at its own rate, where none are idle."""
    counts = {arm_of(run): run["trainable"] for run in tried() if "trainable" in run}
    return int(counts[row] if row in counts else one_rate()[row][0]["trainable"])


def cost(*arms: str) -> list[float]:
    """Returns what the common rate costs arms on `valid` with seed 0."""
    losses = rates_of(tried())
    return [losses[arm][COMMON] - min(losses[arm].values()) for arm in arms]


@cache
def own_rate() -> dict[str, float]:
    """Returns the rate of each arm."""
    return best_rates(tried())


@cache
def twelve() -> dict[tuple[str, str], OnTexts]:
    """Returns the pairs of the study that have three seeds in the first set, at best depths."""
    pairs = [pair for pair in rate_tables.PAIRS if all(len(own().get(arm, ())) == len(SEEDS) for arm in pair)]
    return {pair: less(*pair) for pair in pairs}


def stay() -> list[tuple[str, str]]:
    """Returns those of them that stay decided on both texts after a Bonferroni correction for all."""
    kept = [stay_decided({pair: each[place] for pair, each in twelve().items()}) for place in range(len(TEXTS))]
    return [pair for pair, each in twelve().items() if each.word == "decided" and all(pair in found for found in kept)]


def stay_beside(rival: str, side: str) -> list[str]:
    """Returns the arms that still stand so beside a rival."""
    return [row for row, other in stay() if other == rival and twelve()[row, other].side == side]


def no_longer() -> list[tuple[str, str]]:
    """Returns the pairs that the correction leaves undecided."""
    return [pair for pair, each in twelve().items() if each.word == "decided" and pair not in stay()]


@cache
def chosen_on_valid() -> Runs:
    """Returns the first set with each arm at one depth: its best on `valid`, of the run that chose its rate."""
    return {arm: [_only_at(run, depth_on_valid(arm)) for run in runs] for arm, runs in own().items()}


def depth_on_valid(arm: str) -> int:
    """Returns that depth."""
    (run,) = [run for run in tried() if run["group"] == GRID and arm_of(run) == arm and run["rate"] == own_rate()[arm]]
    report = run["texts"]["valid"]  # as a whole: the losses of single passages were not kept
    return int(min(zip(report["loss"], report["depth"], strict=True))[1])


def _only_at(run: Result, depth: int) -> Result:
    """Returns a run as if it had been measured at one depth alone."""
    texts = {}
    for name, report in run["texts"].items():
        place = list(report["depth"]).index(depth)
        texts[name] = report | {key: [report[key][place]] for key in BY_DEPTH if report.get(key)}
    return run | {"texts": texts}


def same_on_valid() -> bool:
    """Whether the twelve pairs have the same verdicts at depths chosen on `valid`."""
    return all(less(*pair, of=chosen_on_valid).side == each.side for pair, each in twelve().items())


@cache
def made_again() -> dict[str, dict[int, float]]:
    """Returns how far the second set's run of a row is above the first set's on `test`, by arm and depth."""
    return {arm_of(before): changed(before, after, "test") for before, after in in_both(tried(), again())}


def broken() -> Result:
    """Returns the run of the second set that diverged."""
    (run,) = [run for runs in second().values() for run in runs if answers.diverged(run)]
    return run


def same_signs() -> bool:
    """Whether without that run blind stands beside the static diagonal at every depth as in the first set."""
    both_ways = [at_depths(BLIND, DIAGONAL, of).values() for of in (own, without_diverged)]
    sides = [[value > 0 for each in pairs for value in each.apart] for pairs in both_ways]
    return sides[0] == sides[1]


def skipped(arm: str, of: Callable[[], Runs] = own) -> list[int]:
    """Returns how many updates each run of an arm skipped."""
    return [run["skipped"] for run in of()[arm]]


def skipping() -> list[str]:
    """Returns the arms of which a run of either set skipped an update, at any rate."""
    return sorted({arm_of(run) for run in (*tried(), *again()) if run.get("skipped", 0)})


def skipped_at() -> list[int]:
    """Returns the depths of these updates, of the runs that tell them."""
    told = [update for run in (*tried(), *again()) for update in run.get("skipped_at", ())]
    return sorted({depth for _, depths in told for depth in depths})


def worth_of_future() -> list[float]:
    """Returns what seeing the future was worth to the leaking controller at depth 8, by seed and text, scored from prefixes."""
    return [run["texts"][text]["honest"]["gain"][DEPTHS.index(8)] for run in both()[LEAKING] for text in TEXTS]


@cache
def on_book(row: str, other: str) -> Pooled:
    """Returns an arm less another on that book alone, each at its own rate and its best depth there."""
    found = pooled(every_on_book(own()[row]), every_on_book(own()[other]), BOOK_IN)
    assert found is not None and found.seeds == SEEDS
    return found


def every_on_book(runs: Sequence[Result]) -> list[Result]:
    """Returns runs whose report of the text is of that book alone, at the depths at which they keep the losses of documents."""
    fingerprint, numbers = book_documents()
    for run in runs:
        if held(run, BOOK_IN).fingerprint != fingerprint:
            raise ValueError(f"{run['name']}: other passages than those whose sources are known")
    return [of_documents(run, BOOK_IN, numbers) for run in runs]


@cache
def book_documents(begins: str = BOOK) -> tuple[str, frozenset[int]]:
    """Returns the fingerprint of the passages, and the numbers of the documents among them whose source begins so."""
    found = json.loads((RESULTS / "ouroboros/ood-sources.json").read_text())
    numbers = [each for source, each in found["documents"].items() if source.startswith(begins)]
    return found["fingerprint"], frozenset(chain.from_iterable(numbers))


def part_of_ood(begins: str = BOOK) -> float:
    """Returns the percentage of the text's tokens that are of such sources."""
    whole = held(one_rate()[FULL][0], BOOK_IN)
    numbers = book_documents(begins)[1]
    found = [count for count, document in zip(whole.targets_of, whole.document_of, strict=True) if document in numbers]
    return 100 * sum(found) / whole.targets


def recovered_on_book(row: str) -> float:
    """Returns what a row at one rate recovers of the gap on that book, in percent."""
    worse, better = (every_on_book(one_rate()[label])[0] for label in (TRUNCATED, FULL))
    found = share_of_gap(every_on_book(one_rate()[row]), worse, better, BOOK_IN)
    assert found is not None
    return 100 * found.share


def between_steps(row: str) -> list[float]:
    """Returns the percentage of the variance of a controller's output that lies between steps, tokens averaged, by seed."""
    return [100 * run["diagonals"]["shares"]["steps"] for run in one_rate()[row]]


@cache
def short_runs() -> Mapping[str, list[Result]]:
    """Returns the short runs on a CPU whose outputs were taken for each token."""
    return by_label(rows_of("ouroboros/by-token.jsonl"))


def by_token(row: str, between: str) -> list[float]:
    """Returns the percentage of that variance, token by token, that lies between steps or between tokens of a passage."""
    return [100 * run["diagonals"]["shares_by_token"][between] for run in short_runs()[row]]
