"""The study's page and figures, from its rows alone.

Differences follow the rule of `experiments.seeds`: decided where the interval over documents and that over seeds leave 0 out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

from experiments.pages import Result, by_label, by_seed, last_of_each, missing_part, number, save_all, signed, spread, table
from experiments.pages import percent as share
from experiments.seeds import RULE, averaged, held, mean_loss, over_seeds, pooled, reports, shared
from experiments.sft.plan import BEYOND, CHAT, DEPTHS, TEXT, TRAINED, WORDS, later_runs
from loopwright.evaluation.paired import compare
from loopwright.plot.drawing import Axes, Curve, Drawing, depth_axis, lines, mark_trained, panels

Groups = Mapping[str, Sequence[Result]]
ARMS = ("fixed", "random", "fixed-penalty", "stars")
NAMES = {"chats": "held-out answers", "text": "held-out text"}


def read(*paths: str | Path) -> dict[str, list[Result]]:
    """Returns the runs of each label in the order of the plan, seeds in order; a later one of a name counts."""
    found = by_label(last_of_each(*paths).values())
    return {label: found[label] for label in (*TEXT, *CHAT) if label in found}


def loss_table(groups: Groups, text: str) -> str:
    """Returns the loss of one text by depth, the mean over seeds; an unlooped model has one depth."""
    lines = []
    for label, runs in groups.items():
        found = reports(runs, text)
        cells = [number(mean_loss(found, depth)) for depth in DEPTHS if depth in found[0].depth]
        lines.append([WORDS[label], str(len(runs)), *cells, *["–"] * (len(DEPTHS) - len(cells))])
    return table([f"loss of {NAMES[text]} at depth", "seeds", *map(str, DEPTHS)], lines)


def beyond_table(groups: Groups, text: str) -> str:
    """Returns how much each model loses from the trained depth to larger ones, over documents and over seeds."""
    lines = []
    for label, runs in groups.items():
        found = reports(runs, text)
        if TRAINED not in found[0].depth:
            continue
        for depth in BEYOND:
            both = compare(averaged(found, depth), averaged(found, TRAINED))
            seeds = [mean_loss([each], depth) - mean_loss([each], TRAINED) for each in found]
            cells = [signed(both.difference, both.difference_low, both.difference_high), by_seed(seeds)]
            lines.append([WORDS[label], str(depth), *cells, verdict((both.difference_low, both.difference_high), seeds)])
    return table(["model", "depth", f"loss, less that at depth {TRAINED} (over documents)", "by seed", ""], lines)


def verdict(documents: tuple[float, float], seeds: Sequence[float]) -> str:
    """Returns what is decided about a difference of losses; of one seed that it is one."""
    low, high = over_seeds(seeds)
    found = "higher" if min(documents[0], low) > 0 else "lower" if max(documents[1], high) < 0 else "not resolved"
    return found if len(seeds) > 1 else f"{found}, one seed"


def pairs(groups: Groups) -> Iterator[tuple[str, str]]:
    """Yields which rows are compared: the first against the second."""
    wanted = [*((label, "fixed") for label in ARMS[1:]), ("stars", "random")]
    return ((first, second) for first, second in wanted if first in groups and second in groups)


def paired_table(groups: Groups, text: str) -> str:
    """Returns the arms against one another at the trained depth and beyond."""
    lines = []
    for first, second in pairs(groups):
        for depth in (TRAINED, *BEYOND):
            found = pooled(groups[first], groups[second], text, depth)
            if found is not None:
                documents = signed(found.difference, found.low, found.high)
                said = found.verdict if len(found.seeds) > 1 else f"{found.verdict}, one seed"
                lines.append([WORDS[first], WORDS[second], str(depth), documents, by_seed(found.of_seeds), said])
    return table(["model", "less", "depth", f"loss of {NAMES[text]}", "by seed", ""], lines)


def against_unlooped(groups: Groups) -> str:
    """Returns the looped models at the trained depth against the unlooped ones, which have one depth."""
    lines = []
    for first, second in (("heal", "unlooped"), ("heal", "unlooped-flops"), ("fixed", "unlooped-chat")):
        both = shared(groups.get(first, ()), groups.get(second, ()))
        for text in NAMES if both else ():
            sides = reports([a for a, _ in both], text), reports([b for _, b in both], text)
            found = compare(averaged(sides[0], TRAINED), averaged(sides[1], 1))
            seeds = [mean_loss([a], TRAINED) - mean_loss([b], 1) for a, b in zip(*sides, strict=True)]
            cells = [signed(found.difference, found.difference_low, found.difference_high), by_seed(seeds)]
            said = verdict((found.difference_low, found.difference_high), seeds)
            lines.append([WORDS[first], WORDS[second], NAMES[text], *cells, said])
    return table([f"looped, at depth {TRAINED}", "less", "text", "loss (over documents)", "by seed", ""], lines)


def answer_table(groups: Groups) -> str:
    """Returns results after the true reasoning and answers by the model itself, by depth, the mean over seeds."""
    lines = []
    for label, runs in groups.items():
        looped = TRAINED in held(runs[0], "chats").depth
        forced = [share(mean(values)) for values in zip(*(run["results"] for run in runs), strict=True)]
        lines.append([WORDS[label], "after true reasoning", *forced, *["–"] * (len(DEPTHS) - len(forced))])
        own = [run["answers"] for run in runs if "answers" in run]
        if own:
            total = sum(each["questions"] for each in own)
            by_depth = dict(zip(own[0]["depth"], map(sum, zip(*(each["right"] for each in own), strict=True)), strict=True))
            cells = [f"{by_depth[depth]} of {total}" if depth in by_depth else "–" for depth in (DEPTHS if looped else (1,))]
            lines.append([WORDS[label], "by itself", *cells, *["–"] * (len(DEPTHS) - len(cells))])
    return table(["right results at depth", "", *map(str, DEPTHS)], lines)


def cost_table(groups: Groups) -> str:
    """Returns what each model was trained on, what it cost, and its spectral radius."""
    lines = []
    for label, runs in groups.items():
        first = runs[0]
        flops = "–" if first["flops"] is None else f"{first['flops'] / 1e15:.1f}"
        radius = [
            spread([run["radius"][depth]["radius_mean"] for run in runs], 2) if run_has(runs, depth) else "–" for depth in RADII
        ]
        seconds = spread([run["train_seconds"] for run in runs], 0)
        lines.append([WORDS[label], str(first["updates"]), f"{first['tokens'] / 1e6:.1f}", flops, seconds, *radius])
    heads = [f"ρ at depth {depth}" for depth in RADII]
    return table(["model", "updates", "million tokens", "PFLOP", "seconds, side by side", *heads], lines)


RADII = (str(TRAINED), str(DEPTHS[-1]))


def run_has(runs: Sequence[Result], depth: str) -> bool:
    """Returns whether the radius was measured at a depth."""
    return all(depth in run["radius"] for run in runs)


def page(groups: Groups) -> str:
    """Returns all tables as one page of Markdown."""
    runs = [run for group in groups.values() for run in group]
    first = held(runs[0], "chats"), held(runs[0], "text")
    parts = [
        "# A looped language model, fine-tuned on chats", "`python -m experiments.sft tables` made this page.",
        f"{first[0].passages} held-out chats ({first[0].targets:,} tokens of answers) and {first[1].passages} passages of held-out "
        f"text ({first[1].targets:,} tokens).", RULE,
        "## Loss by depth", loss_table(groups, "chats"), loss_table(groups, "text"),
        "## Beyond depth 4", beyond_table(groups, "chats"), beyond_table(groups, "text"),
        "## The arms against one another", paired_table(groups, "chats"), paired_table(groups, "text"),
        "## Looped against unlooped", against_unlooped(groups),
        "## Right results", answer_table(groups), "## Cost, and the spectral radius of a step on text", cost_table(groups),
        *missing_part(runs, list(later_runs((0, 1, 2)))),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


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


def write(out: Path, *paths: Path) -> Any:
    """Writes table.md and the figures into a folder."""
    groups = read(*paths)
    out.mkdir(parents=True, exist_ok=True)
    save_all(draw(groups), out)
    (out / "table.md").write_text(page(groups))
    print(f"{out / 'table.md'}: {sum(map(len, groups.values()))} runs")
