"""What docs/ouroboros.md says about the retrofit study."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache

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
    STATIC,
    TOKEN,
    TRUNCATED,
)
from experiments.ouroboros.rate_tables import at_own_rates, recovered
from experiments.ouroboros.rates import best_rates, rates_of
from experiments.ouroboros.run import DEPTHS, TEXTS
from experiments.ouroboros.tables import planned
from experiments.pages import Result, by_label, percent, results
from experiments.readme.rows import RESULTS, WORDS, line
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


def own_rates() -> Iterator[str]:
    """Yields what README and page say of the arms at their own rates: on `valid`, by the seed that chose, and held out."""
    valid, runs = {arm: min(losses.values()) for arm, losses in rates_of(tried()).items()}, at_own_rates(tried())
    controllers = (CONTROLLER, TOKEN, BLIND)
    lead = [valid[arm] - valid[DIAGONAL] for arm in controllers]
    yield f"ahead of every causal controller by {span(lead)} nats on validation text"
    found = {pair: beside(runs, *pair) for pair in [(arm, DIAGONAL) for arm in controllers] + [(a, BLIND) for a in controllers[:2]]}
    seeds = {seeds for _, seeds in found.values()}
    lead = [value for (_, other), (both, _) in found.items() if other == DIAGONAL for value in both]
    if seeds != {1}:
        raise ValueError(f"{sorted(seeds)} seeds at own rates; the page says one: let it say what the pairs say now")
    yield f"by {span(lead)} on held-out text (one fresh seed, not decided)"
    gain = [valid[BLIND] - valid[arm] for arm in controllers[:2]]
    held = [-value for (_, other), (both, _) in found.items() if other == BLIND for value in both]
    yield f"reading gains {span(gain)} nats on validation text and {span(held)} on held-out text"


def span(values: Sequence[float]) -> str:
    """Returns from where to where numbers go, at two digits; one number where that is the same."""
    ends = f"{min(values):.2f}", f"{max(values):.2f}"
    return ends[0] if ends[0] == ends[1] else " to ".join(ends)


def beside(runs: Runs, first: str, second: str) -> tuple[list[float], int]:
    """Returns how far one arm's loss is above another's on each text, each at its best depth, and over how many seeds."""
    found = [pooled(runs[first], runs[second], text) for text in TEXTS]
    return [each.difference for each in found if each is not None], min(len(each.seeds) for each in found if each is not None)


def own_lines() -> Iterator[str]:
    """Yields the lines of the page's table: the rate, the loss on `valid` at the common rate and at its own, and held out."""
    rates, best, made = rates_of(tried()), best_rates(tried()), at_own_rates(tried())
    shared = set.intersection(*({run["seed"] for run in made[arm]} for arm in OWN_LINES.values()))  # like with like
    runs = {arm: [run for run in of_arm if run["seed"] in shared] for arm, of_arm in made.items()}
    for label, arm in OWN_LINES.items():
        cells = [f"{best[arm]:g}", f"{rates[arm][COMMON]:.3f}", f"{rates[arm][best[arm]]:.3f}"]
        for text in TEXTS:
            found = reports(runs[arm], text)
            cells += [f"{mean_loss(found, best_depth(found)):.3f}", percent(recovered(runs[arm], all_runs(), text))]
        yield line(label, *cells)


def claims() -> Iterator[str]:
    """Yields what the rows say."""
    yield from own_rates()
    yield from own_lines()
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
