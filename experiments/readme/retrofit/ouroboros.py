"""What docs/ouroboros.md says about the retrofit study at one learning rate; own_rates.py has each arm at its own."""

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
from experiments.ouroboros.run import DEPTHS, TEXTS
from experiments.ouroboros.tables import planned
from experiments.pages import Result, by_label, percent, results, words
from experiments.readme.rows import RESULTS, WORDS, line, rows_of, when
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
Runs = Mapping[str, Sequence[Result]]


@cache
def all_runs() -> Runs:
    """Returns the runs of the study by label."""
    return by_label(results([str(RESULTS / "ouroboros/runs.jsonl")], planned()))


def untrained_places() -> Iterator[str]:
    """Yields what the page says of cores at two places before any training."""
    rows = rows_of("ouroboros/places.jsonl")
    once = next(row["loss"] for row in rows if not row["core"])
    yield f"its 15 layers have a loss of {once:.2f} once each"
    eight, one = ([row for row in rows if row["core"][:1] == [first]] for first in (8, 1))
    named = zip(eight, ("one layer, seven steps", "three, three", "six, two"), strict=True)
    yield "has " + words([f"{row['loss']:.2f} ({name})" for row, name in named])
    least = [min(row["loss"] for row in rows if len(row["core"]) == len(each["core"])) for each in one]
    told = f"one that begins at layer 1 the least of all places: {words([f'{loss:.2f}' for loss in least])}"
    yield when(least == [row["loss"] for row in one], told)


def claims() -> Iterator[str]:
    """Yields what the rows say."""
    yield from untrained_places()
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
    yield from what_varies(runs)
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


def what_varies(runs: Runs) -> Iterator[str]:
    """Yields the share of the variance of controllers' outputs that lies between steps: tokens averaged first, and per token."""
    spans = []
    for name in (CONTROLLER, NORMED, BEST):
        shares = [100 * run["diagonals"]["shares"]["steps"] for run in runs[name]]
        spans.append((min(shares), max(shares)))
    raw, normed, best = spans
    told = f"{normed[0]:.1f} to {normed[1]:.1f} % with normed ones, and {best[0]:.1f} to {best[1]:.1f} % in the best row"
    yield f"Between steps lie {raw[0]:.0f} to {raw[1]:.0f} % with raw states, {told}"
    yield from per_token(runs[CONTROLLER][0]["tokens"])


def per_token(whole: int) -> Iterator[str]:
    """Yields the same of short runs, seed by seed: averaged, and with every token by itself."""
    short = by_label(rows_of("ouroboros/by-token.jsonl"))
    (part,) = {round(whole / row["tokens"]) for rows in short.values() for row in rows}
    seeds = {name: len(short[name]) for name in (CONTROLLER, TOKEN, NORMED)}
    told = f"{WORDS[seeds[CONTROLLER]]} seeds, of normed states {WORDS[seeds[NORMED]]}"
    yield when(seeds[TOKEN] == seeds[CONTROLLER], f"in short runs on a CPU (1/{part} of the tokens; {told})")
    names = {
        CONTROLLER: "Running mean of raw states",
        NORMED: "Running mean of normed states",
        TOKEN: "Reading each token, raw states",
    }
    parts = [run["diagonals"]["shares_by_token"] for name in (CONTROLLER, TOKEN) for run in short[name]]
    more = all(each["tokens"] > each["steps"] for each in parts)
    yield when(more, "where raw states are read, more lies between tokens of a passage than between steps, on every seed")
    means = [100 * run["diagonals"]["shares"]["steps"] for run in short[CONTROLLER]]
    yield f"({min(means):.1f} to {max(means):.1f} % averaged, where those have"
    for name, said in names.items():
        found = [run["diagonals"] for run in short[name]]
        averaged, steps, tokens = (
            " / ".join(f"{100 * each[shares][between]:.1f}" for each in found)
            for shares, between in (("shares", "steps"), ("shares_by_token", "steps"), ("shares_by_token", "tokens"))
        )
        yield f"{said}: {averaged} % averaged, {steps} % per token ({tokens} % between tokens of a passage)"


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
