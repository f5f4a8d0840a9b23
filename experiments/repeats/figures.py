"""The study's figures: held-out loss by how often the text is read, and ASURA's by depth; every seed is a mark."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from experiments.pages import Result
from experiments.repeats.deep_tables import Chosen, drawn
from experiments.repeats.plan import DEPTH_RATES, STOPPED, TEXTS
from experiments.repeats.tables import BY_DEPTH, MAIN, RIVALS, at_rate, stopped
from loopwright.plot.drawing import Axes, Drawing, line_style, panels
from loopwright.plot.style import INK

TITLES = {1: "read once", 4: "read four times", STOPPED: "read sixteen times"}
PLAIN = RIVALS[1]


def draw_all(found: Sequence[Result], kept: Chosen) -> dict[str, Drawing]:
    """Returns the figures by name, for what was run."""
    deep = {depth: kept[label, 1] for depth, label in BY_DEPTH.items() if (label, 1) in kept}
    by_steps = {"by-depth": by_depth(found, kept, deep)} if len(deep) > 1 else {}
    return {"by-times": by_times(kept), **by_steps, **drawn(kept)}


def by_times(kept: Chosen) -> Drawing:
    """Returns a panel for each text with the held-out loss of each arm, seed by seed, and the mean as a line; runs that were
    validated on the way as they stood at their best validation. Arms with three times the updates stand where the others read the
    same text."""
    runs = {**kept, **stopped(kept)}
    return panels([of_text(runs, times) for times in TEXTS], columns=3, legend_columns=2)


def of_text(kept: Chosen, times: int) -> Callable[[Axes], None]:
    """Returns what draws the arms on one text, in the order of the legend."""

    def draw(axes: Axes) -> None:
        for place, label in enumerate(MAIN):
            losses = [run["loss"]["test"] for run in kept.get((label, times), [])]
            if losses:
                style = line_style(place) | {"linestyle": "none", "markersize": 6}
                axes.plot([place] * len(losses), losses, label=label, markerfacecolor="none", markeredgewidth=1.3, **style)
                axes.hlines(sum(losses) / len(losses), place - 0.35, place + 0.35, color=style["color"], linewidth=2)
        axes.set_title(TITLES[times], loc="left")
        axes.set_xlim(-0.7, len(MAIN) - 0.3)
        axes.set_xticks([])
        axes.set_xlabel("at the best validation" if times == STOPPED else "at the end")
        axes.margins(y=0.12)
        if times == min(TEXTS):
            axes.set_ylabel("held-out loss (nats)")

    return draw


def by_depth(found: Sequence[Result], kept: Chosen, deep: Mapping[int, Sequence[Result]]) -> Drawing:
    """Returns ASURA's held-out loss by depth on text that is read once: a panel at the depths' own rate and one at the smaller rate
    that was tried, of one scale, with a line for each seed and the mean of plain layers of nearly equal parameters."""
    calmer = at_rate(found, min(DEPTH_RATES))
    small = {depth: calmer[label, 1] for depth, label in BY_DEPTH.items() if (label, 1) in calmer}
    plain = [run["loss"]["test"] for run in kept.get((PLAIN, 1), [])]
    sides = [side for side in (deep, small) if side]
    losses = [run["loss"]["test"] for side in sides for runs in side.values() for run in runs] + plain
    return panels([of_rate(side, plain, (min(losses), max(losses))) for side in sides], height=3.4)


def of_rate(deep: Mapping[int, Sequence[Result]], plain: Sequence[float], ends: tuple[float, float]) -> Callable[[Axes], None]:
    """Returns what draws all depths at one rate, from the least loss to the largest of all rates."""
    seeds: dict[int, dict[int, float]] = {}
    for depth, runs in deep.items():
        for run in runs:
            seeds.setdefault(run["seed"], {})[depth] = run["loss"]["test"]
    rates = dict.fromkeys(f"{run['rate']:g}" for runs in deep.values() for run in runs)

    def draw(axes: Axes) -> None:
        for seed, losses in sorted(seeds.items()):
            style = line_style(seed) | {"markersize": 6, "linewidth": 1.6}
            axes.plot(list(losses), list(losses.values()), label=f"seed {seed}", **style)
        if plain:
            axes.axhline(sum(plain) / len(plain), color=INK, linewidth=1.2, linestyle=(0, (2, 2)), label="four plain layers")
        axes.set_title(f"rate {', '.join(rates)}", loc="left")
        axes.set_xscale("log", base=2)
        axes.set_xticks(list(BY_DEPTH), [str(depth) for depth in BY_DEPTH])
        axes.minorticks_off()
        edge = 0.05 * (ends[1] - ends[0])
        axes.set_ylim(ends[0] - edge, ends[1] + edge)
        axes.set_xlabel("depth, trained and tested")
        axes.set_ylabel("held-out loss (nats)")

    return draw
