"""The study's page and figures, from its rows alone.

Differences follow the rule of `experiments.seeds`: decided where the interval over documents and that over seeds leave 0 out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import mean

from experiments.pages import Result, by_label, last_of_each, percent, save_all
from experiments.seeds import mean_loss, reports
from experiments.sft.plan import BEYOND, CHAT, DEPTHS, TEXT, TRAINED, WORDS, later_runs
from experiments.tables import Columns, Page, Pair, arm_table, columns_of, loss_columns, named_pairs, of, pair_table
from loopwright.plot.drawing import Axes, Curve, Drawing, depth_axis, lines, mark_trained, panels

Groups = Mapping[str, Sequence[Result]]
ARMS = ("fixed", "random", "fixed-penalty", "stars")
NAMES = {"chats": "held-out answers", "text": "held-out text"}


def read(*paths: str | Path) -> dict[str, list[Result]]:
    """Returns the runs of each label in the order of the plan, seeds in order; a later one of a name counts."""
    return by_arm(last_of_each(*paths).values())


def by_arm(runs: Iterable[Result]) -> dict[str, list[Result]]:
    """Returns runs by label, those on text first, seeds in order."""
    found = by_label(runs)
    return {label: found[label] for label in (*TEXT, *CHAT) if label in found}


def draw(groups: Groups) -> dict[str, Drawing]:
    """Returns the loss of answers and of text over depth in two panels: the mean over seeds with the least and the largest.

    Depths 1 and 2, at which models of a fixed depth fail, would leave no room for the rest.
    """

    def panel(text: str, labels: Sequence[str], axes: Axes) -> None:
        curves = {WORDS[label]: _curve(groups[label], text) for label in labels if label in groups}
        mark_trained(axes, (TRAINED, TRAINED, TRAINED))
        lines(axes, curves)
        depth_axis(axes, curves)
        axes.set_ylabel(f"loss (nats) of\n{NAMES[text]}")

    both = [partial(panel, "chats", ARMS), partial(panel, "text", (*ARMS, "heal"))]
    return {"by-depth": panels(both, legend_columns=2)}


def _curve(runs: Sequence[Result], text: str) -> Curve:
    found, depths = reports(runs, text), DEPTHS[2:]
    seeds = [[mean_loss([each], depth) for each in found] for depth in depths]
    return Curve(depths, *([measure(values) for values in seeds] for measure in (mean, min, max)))


def named(groups: Groups) -> dict[str, Sequence[Result]]:
    """Returns the runs of each label under the name that the page gives it."""
    return {WORDS[label]: runs for label, runs in groups.items()}


def at_depth(runs: Sequence[Result], depth: int) -> list[Result]:
    """Returns runs as if they had been measured at one depth alone."""

    def one(held: Mapping[str, object]) -> dict[str, object]:
        place = held["depth"].index(depth)  # type: ignore[attr-defined]
        lists = ("depth", "loss", "loss_low", "loss_high", "perplexity", "bits_per_byte", "losses")
        return {**held, **{name: held[name][place : place + 1] for name in lists}}  # type: ignore[index]

    return [{**run, "texts": {name: one(held) for name, held in run["texts"].items()}} for run in runs]


def unlooped_pairs(groups: Groups) -> Iterator[Pair]:
    """Yields the looped models at the trained depth beside the unlooped ones, which have one depth; then at depths beyond it."""
    for first, second in (("heal", "unlooped"), ("heal", "unlooped-flops"), ("fixed", "unlooped-chat")):
        if first in groups and second in groups:
            yield f"{WORDS[first]}, at depth {TRAINED}", WORDS[second], at_depth(groups[first], TRAINED), groups[second]
    for label, runs in groups.items():
        for depth in BEYOND if "unlooped" not in label else ():
            sides = at_depth(runs, depth), at_depth(runs, TRAINED)
            yield f"{WORDS[label]}, at depth {depth}", f"itself at depth {TRAINED}", *sides


def answers(depth: int, run: Result) -> str | None:
    """Returns how many questions a model answers rightly by itself at a depth."""
    told = run.get("answers")
    return f"{told['right'][told['depth'].index(depth)]} of {told['questions']}" if told and depth in told["depth"] else None


def after_reasoning(depth: int, run: Result) -> str | None:
    """Returns how many results are right after the true reasoning at a depth."""
    depths = run["texts"]["chats"]["depth"]
    return percent(run["results"][depths.index(depth)]) if depth in depths else None


def parts(found: list[Result]) -> dict[str, str]:
    """Returns the tables of the page."""
    groups = by_arm(found)
    arms, pairs = named(groups), [*((label, "fixed") for label in ARMS[1:]), ("stars", "random")]
    results = {f"after true reasoning, depth {depth}": partial(after_reasoning, depth) for depth in DEPTHS}
    results |= {f"by itself, depth {depth}": partial(answers, depth) for depth in (1, 2, 4, 8, 16)}
    compared = [(WORDS[first], WORDS[second]) for first, second in pairs]
    return {
        "Cost, and the spectral radius of a step on text": arm_table(arms, COLUMNS),
        **{f"Loss of {what} by depth": arm_table(arms, loss_columns((text,), DEPTHS)) for text, what in NAMES.items()},
        "The arms against one another": pair_table(named_pairs(arms, compared), [*NAMES], (TRAINED, *BEYOND)),
        "Looped against unlooped, and beyond the trained depth": pair_table(unlooped_pairs(groups), [*NAMES]),
        "Right results": arm_table(arms, results),
    }


def write(out: Path, *paths: Path) -> None:
    """Writes table.md and the figures into a folder; a later row of a name counts."""
    found = [run for runs in read(*paths).values() for run in runs]
    out.mkdir(parents=True, exist_ok=True)
    (out / PAGE.name).write_text(PAGE.text(found, "experiments.sft tables"))
    save_all(PAGE.draw(found), out)
    print(f"{out / PAGE.name}: {len(found)} runs")


COLUMNS: Columns = {
    **columns_of("updates", "tokens", "flops", "train_seconds"), "ρ at depth 4": of("radius", "4", "radius_mean"),
    "at depth 16": of("radius", "16", "radius_mean"),
}  # fmt: skip
PAGE = Page(
    "A looped language model, fine-tuned on chats", ("sft/rows.jsonl",), parts, lambda found: list(later_runs((0, 1, 2))),
    lambda found: draw(by_arm(found)),
)  # fmt: skip
