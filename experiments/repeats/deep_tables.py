"""Depth at test time, of the looped models that were trained on all of the text: tables and a drawing from their rows."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Mapping, Sequence

from experiments.halting.reading import SIMPLE
from experiments.leaving.reading import MEANS, MOST, leaving
from experiments.leaving.tables import THIRDS, exit_table, in_part, in_thirds, own_limits
from experiments.pages import Result, by_seed, number, signed, spread, table
from experiments.repeats.plan import DOCUMENTS, TESTED, WHOLE
from experiments.repeats.tables import PARAMETERS, Chosen
from experiments.seeds import mean_loss, over_seeds, reports
from loopwright.plot.drawing import Axes, Drawing, line_style, panels
from loopwright.plot.style import INK

TIMES, TEXTS, LEAVES = 4, ("test", "ood"), "Huginn-like"
TRAINED = 5  # the depth at which the model that leaves early is measured beside others: about its mean one in training
NAMES = {arm: label for label, arm in WHOLE.items()}


def deep_runs(kept: Chosen, arm: str) -> list[Result]:
    """Returns an arm's runs on all of the text as if they had been measured at several depths alone."""
    return [run | run["deep"] for run in kept.get((NAMES[arm], TIMES), []) if "deep" in run]


def easy_to_hard(kept: Chosen) -> dict[str, frozenset[int]]:
    """Returns the documents of `test` in three parts, by the loss that four plain layers have on each."""
    return in_thirds(reports(kept[NAMES[PARAMETERS], TIMES], "test"), 1)


def gains(runs: Sequence[Result], text: str, depth: int, documents: Collection[int] | None = None) -> list[float]:
    """Returns by how much a depth is behind the trained one, seed by seed, on all documents where none are named."""
    part = runs if documents is None else in_part(runs, text, documents)
    return [mean_loss([each], depth) - mean_loss([each], TRAINED) for each in reports(part, text)]


def depth_table(kept: Chosen) -> str:
    """Returns the loss of each looped arm by depth."""
    depths, lines = sorted({depth for tested in TESTED.values() for depth in tested}), []
    for arm, tested in TESTED.items():
        for text in TEXTS if (runs := deep_runs(kept, arm)) else ():
            found = reports(runs, text)
            lines.append([arm, text, *[spread([mean_loss([e], d) for e in found]) if d in tested else "–" for d in depths]])
    return table(["arm", "text", *map(str, depths)], lines)


def third_table(kept: Chosen, runs: Sequence[Result]) -> str:
    """Returns by how much other depths are behind the trained one on easy, middle and hard documents of `test`, over seeds."""
    lines = []
    for name, documents in easy_to_hard(kept).items():
        found = {depth: gains(runs, "test", depth, documents) for depth in DOCUMENTS if depth != TRAINED}
        at = mean_loss(reports(in_part(runs, "test", documents), "test"), TRAINED)
        told = [signed(statistics.mean(each), *over_seeds(each)) for each in found.values()]
        lines.append([name, str(len(documents)), number(at), *told])
    head = [f"depth {depth}, less depth {TRAINED} (95 % over seeds)" for depth in DOCUMENTS if depth != TRAINED]
    return table(["documents", "number", f"loss at depth {TRAINED}", *head], lines)


def hard_less_easy(kept: Chosen, runs: Sequence[Result], depth: int) -> list[float]:
    """Returns how much more hard documents of `test` lose at a depth than easy ones, seed by seed."""
    parts = easy_to_hard(kept)
    easy, hard = (gains(runs, "test", depth, parts[name]) for name in (THIRDS[0], THIRDS[-1]))
    return [one - other for one, other in zip(hard, easy, strict=True)]


def hard_table(kept: Chosen, runs: Sequence[Result]) -> str:
    """Returns whether hard documents want more depth than easy ones."""
    found = {depth: hard_less_easy(kept, runs, depth) for depth in DOCUMENTS if depth < TRAINED}
    lines = [[str(depth), signed(statistics.mean(each), *over_seeds(each)), by_seed(each)] for depth, each in found.items()]
    return table(["depth", "what it loses on hard documents less that on easy ones (95 % over seeds)", "by seed"], lines)


def page_parts(kept: Chosen) -> list[str]:
    """Returns what the study's page says of depth at test time."""
    runs = deep_runs(kept, LEAVES)
    if not runs:
        return []
    parts = ["## Depth at test time, on the models of all of the text", depth_table(kept)]
    parts += [f"### {LEAVES}: easy, middle and hard documents of `test`, by the loss of four plain layers"]
    parts += [third_table(kept, runs), hard_table(kept, runs)]
    for text in TEXTS:
        parts += [f"### {LEAVES}: exit rules on {text}, at most {MOST} steps", exit_table(runs, text)]
        parts += ["At the limits that rules have unasked:", own_limits(runs, text)]
    return parts


def drawn(kept: Chosen) -> Mapping[str, Drawing]:
    """Returns the loss by steps, of fixed depths and of exit rules, on both texts."""
    runs = deep_runs(kept, LEAVES)
    return {"test-time": panels([of_text(runs, text) for text in TEXTS], height=3.2)} if runs else {}


def of_text(runs: Sequence[Result], text: str) -> Callable[[Axes], None]:
    """Returns what draws one text: means over seeds, less the loss at the trained depth."""
    found = reports(runs, text)
    base = mean_loss(found, TRAINED)

    def draw(axes: Axes) -> None:
        depths = [depth for depth in TESTED[LEAVES] if depth <= MOST]
        axes.plot(depths, [mean_loss(found, depth) - base for depth in depths], label="fixed depth", **line_style(0))
        for place, rule in enumerate(SIMPLE, start=1):
            left = reports([leaving(run, rule) for run in runs], text)
            style = line_style(place) | {"linestyle": "none", "markersize": 7}
            losses = [mean_loss(left, mean) - base for mean in MEANS]
            axes.plot(MEANS, losses, label=rule, markerfacecolor="none", markeredgewidth=1.4, **style)
        axes.axhline(0, color=INK, linewidth=0.6)
        axes.set_title(text, loc="left")
        axes.set_xlabel("steps of a token, in the mean")
        axes.set_ylabel(f"loss less that of depth {TRAINED} (nats)")

    return draw
