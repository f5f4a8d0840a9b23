"""What the README says about the retrofit study."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from experiments.ouroboros.plan import NORMED
from experiments.ouroboros.run import DEPTHS, TEXTS
from experiments.ouroboros.tables import BEST, BEST_ONCE, BEST_STATIC, BLIND, CONTROLLER, FULL, STATIC, TRUNCATED, planned
from experiments.pages import Result, by_label, percent, results
from experiments.readme.rows import RESULTS, WORDS, line
from experiments.seeds import best_depth, held, mean_loss, over_seeds, pooled, reports

LINES = {
    "the gate alone": "gate only",
    "the controller, reading raw states (causally)": CONTROLLER,
    "the controller, reading normed states": NORMED,
    "the same controller, blind: it knows the step alone": BLIND,
    "low-rank tables per step": STATIC,
    "LoRA on the kept layers, not looped": "healed LoRA, equal parameters",
    "best with a controller (`heal-smollm2`): adapters on every layer, searched layout, the intact model as teacher": BEST,
    "the same with low-rank tables per step instead of the controller": BEST_STATIC,
    "the same, not looped: adapters on its 15 layers, each run once": BEST_ONCE,
}
WIDTH, STYLE = 576, 128
# what the blind controller has of a reader, and does not use: the state's projection, and its part of the layer behind it
IDLE = 2 * STYLE * (WIDTH + 1) + (2 * STYLE) ** 2
DIAGONAL, FASTER = "static diagonal", "static diagonal, rate 4e-2"
SETTINGS = (
    "SmolLM2-135M cut from 30 to 15 layers, one of them looped;",
    "no gain from reading the input was found beyond depth 1",
    "of the training sources and of other books, at the best depth; one H200.",
)

Runs = Mapping[str, Sequence[Result]]


def claims() -> Iterator[str]:
    """Yields what the rows say."""
    runs = by_label(results([str(RESULTS / "ouroboros/runs.jsonl")], planned()))
    one, texts = runs[CONTROLLER][0], [held(runs[CONTROLLER][0], text) for text in TEXTS]
    tokens = {round(each.targets / 1000) for each in texts}
    yield f"{one['tokens'] / 1e6:.1f} million tokens; {WORDS[len(runs[CONTROLLER])]} seeds"
    yield f"{' and '.join(map(str, sorted(tokens)))} thousand held-out tokens each"
    for label, name in LINES.items():
        first = runs[name][0]
        trained = first["trainable"] - (IDLE if name == BLIND else 0)
        yield line(label, percent(trained / first["kept"], 2), *(percent(share(runs, name, text)) for text in TEXTS))
    yield from reading(runs)
    yield from looping(runs)


def share(runs: Runs, name: str, text: str) -> float:
    """Returns what a row recovers of the gap from the truncated to the full model, at its best depth, the mean over seeds."""
    worse, better = held(runs[TRUNCATED][0], text), held(runs[FULL][0], text)
    top, bottom = mean_loss([worse], worse.depth[0]), mean_loss([better], best_depth([better]))
    found = reports(runs[name], text)
    return (top - mean_loss(found, best_depth(found))) / (top - bottom)


def by_seed(runs: Runs, first: str, second: str, text: str, depth: int) -> list[float]:
    """Returns the differences of two rows at one depth, seed by seed."""
    pairs = zip(reports(runs[first], text), reports(runs[second], text), strict=False)
    return [mean_loss([a], depth) - mean_loss([b], depth) for a, b in pairs]


def reading(runs: Runs) -> Iterator[str]:
    """Yields what is said about reading the input."""
    beyond = [(text, depth) for text in TEXTS for depth in DEPTHS[1:]]
    blind = [over_seeds(by_seed(runs, name, BLIND, *at)) for name in (CONTROLLER, NORMED) for at in beyond]
    told = "no depth from 2 on is decided" if all(low <= 0 <= high for low, high in blind) else "some depth is decided"
    yield f"against the blind controller {told}"
    static = [by_seed(runs, name, STATIC, *at) for name in (CONTROLLER, NORMED) for at in beyond]
    means = [sum(each) / len(each) for each in static]
    seeds = sum(all(each[seed] > 0 for each in static) for seed in range(len(static[0])))
    yield (
        f"are better ({min(means):.2f} to {max(means):.2f} nats at depths {DEPTHS[1]} to {DEPTHS[-1]}, "
        f"{WORDS[seeds]} of {WORDS[len(static[0])]} seeds)"
    )
    slow = [by_seed(runs, CONTROLLER, DIAGONAL, text, depth) for text in TEXTS for depth in DEPTHS]
    worse = sum(all(each[seed] < 0 for each in slow) for seed in range(len(slow[0])))
    ahead = [depth for depth in DEPTHS if all(by_seed(runs, CONTROLLER, FASTER, text, depth)[0] > 0 for text in TEXTS)]
    yield (
        f"is worse at an equal rate, at every depth on {WORDS[worse]} of {WORDS[len(slow[0])]} seeds, and better at depths "
        f"{ahead[0]} to {ahead[-1]} only with ten times the rate ({WORDS[len(runs[FASTER])]} seed)"
    )


def looping(runs: Runs) -> Iterator[str]:
    """Yields what is said about the loop: the two best looped rows against the same layers run once, each at its best depth."""
    parts = []
    for name in (BEST_STATIC, BEST):
        found = {text: pooled(runs[name], runs[BEST_ONCE], text) for text in TEXTS}
        verdicts = {each.verdict for each in found.values() if each is not None}
        decided = "decided" if verdicts in ({"higher"}, {"lower"}) else "not decided"
        test = found["test"]
        parts.append((test.difference if test is not None else float("nan"), decided))
    (static, first), (best, second) = parts
    yield f"the best looped row is {static:.3f} nats behind the same layers run once, {first}"
    yield f"the best with a controller {best:.3f}, {second}"
