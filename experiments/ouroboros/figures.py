"""The retrofit study's figures: the gap recovered, loss by depth, the question by depth, and what a controller says."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from experiments.ouroboros.answers import named
from experiments.ouroboros.plan import (
    BLIND,
    CODA,
    CONTROLLER,
    CUT,
    DIAGONAL,
    FULL,
    GATE,
    LEAKING,
    NORMED,
    ONCE,
    STATIC,
    TRUNCATED,
)
from experiments.ouroboros.run import DEPTHS, TEXTS
from experiments.pages import Result, percent
from experiments.seeds import Pooled, Share, best_depth, mean_loss, reports
from loopwright.plot.drawing import MARKERS, Axes, Curve, Drawing, depth_axis, figure, line_style, lines, mosaic, panels
from loopwright.plot.style import COLOURS, INK

LEAST_SHOWN, MOST_SHOWN = -0.5, 1.3  # a share beyond is told at the edge: one such row must not flatten the others
TARGETS = ("q", "k", "v", "o", "gate", "up", "down")
# no more than there are colours; normed states would lie on raw ones: question.svg has both
BY_DEPTH = (GATE, DIAGONAL, STATIC, BLIND, CONTROLLER, CODA)
AGAINST = (CONTROLLER, NORMED, BLIND)

Runs = Mapping[str, Sequence[Result]]
Shares = Mapping[str, Mapping[str, Share]]
ByDepth = Mapping[int | None, Mapping[str, Pooled]]
Pairs = Mapping[tuple[str, str], ByDepth]


def draw_all(runs: Runs, shares: Shares, pairs: Pairs) -> dict[str, Drawing]:
    """Returns every figure that there are rows for, by its name."""
    made: dict[str, Drawing] = {}

    def draw(name: str, there: object, how: Callable[[], Drawing]) -> None:
        if there:
            made[name] = how()

    ends = (FULL, TRUNCATED, CUT)
    for name, groups in {"recovered": ("references", "main", "best"), "recovered-others": ("others",)}.items():
        chosen = {label: found for label, found in shares.items() if runs[label][0]["group"] in groups and label not in ends}
        draw(name, chosen, partial(recovered_points, runs, chosen))
    looped = {label: runs[label] for label in BY_DEPTH if label in runs}
    draw("by-depth", looped, partial(loss_by_depth, runs, looped))
    against = {label: pairs[label, STATIC] for label in AGAINST if (label, STATIC) in pairs}
    draw("question", against, partial(difference_by_depth, against))
    said = next((run for run in runs.get(CONTROLLER, []) if run.get("diagonals")), None)
    draw("diagonals", said, partial(diagonal_maps, said))
    return made


def recovered_points(runs: Runs, shares: Shares) -> Drawing:
    """Returns the share of the gap that each row recovers on each text: the interval over documents, and a small dot per seed."""
    count = len(shares)
    negative = any(share.low < -0.1 for found in shares.values() for share in found.values())  # then names begin at the edge

    def draw(axes: Axes) -> None:
        for place, (label, found) in enumerate(shares.items()):
            leaks = not all(runs[label][0]["texts"][text]["likelihood"] for text in found)
            axes.annotate(
                named(label, runs[label]), (0, place - 0.3), xycoords=("axes fraction" if negative else "data", "data"),
                xytext=(5, 0), textcoords="offset points", fontsize=9.5, va="center",
            )  # fmt: skip
            for i, (text, share) in enumerate(found.items()):
                _point(axes, place + 0.06 + 0.26 * i, share, i, text if place == 0 else None, hollow=leaks)
        for value, name in ((0, TRUNCATED), (1, FULL)):
            for place in range(count):  # not through the names
                axes.vlines(value, place - 0.1, place + 0.5, color=INK, linewidth=1, linestyle=(0, (2, 2)))
            axes.annotate(
                name, (value, 1), xycoords=("data", "axes fraction"), xytext=(0, 3), textcoords="offset points", ha="center",
                fontsize=9,
            )  # fmt: skip
        shown = [value for found in shares.values() for share in found.values() for value in (share.low, share.high, 0, 1)]
        low, high = max(min(shown), LEAST_SHOWN), min(max(shown), MOST_SHOWN)
        axes.set_xlim(low - 0.06, high + 0.06)
        axes.set_ylim(count - 0.35, -0.6)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.grid(False)
        axes.xaxis.set_major_formatter(lambda value, _: percent(value, 0))
        axes.set_xlabel("gap recovered")
        axes.figure.legend(loc="outside lower center", frameon=False, ncols=2)

    return figure(draw, height=1.2 + 0.52 * count)


def _point(axes: Axes, y: float, share: Share, place: int, name: str | None, *, hollow: bool) -> None:
    colour = COLOURS[place]
    if not LEAST_SHOWN <= share.share <= MOST_SHOWN:
        left = share.share < LEAST_SHOWN
        words = percent(share.share, 0)
        axes.annotate(
            f"← {words}" if left else f"{words} →", (0 if left else 1, y), xycoords=("axes fraction", "data"), fontsize=9,
            color=colour, ha="left" if left else "right", va="center",
        )  # fmt: skip
        if name:
            axes.plot([], [], color=colour, marker=MARKERS[place], linestyle="none", label=name)
        return
    axes.plot([share.low, share.high], [y, y], color=colour, linewidth=2.2, solid_capstyle="butt", alpha=0.8, clip_on=True)
    face = "none" if hollow else colour
    axes.plot(
        [share.share], [y], marker=MARKERS[place], markersize=6, color=colour, markerfacecolor=face, linestyle="none", label=name
    )
    if len(share.of_seeds) > 1:
        dots = list(share.of_seeds)
        axes.plot(dots, [y] * len(dots), marker="|", markersize=9, color=INK, linestyle="none", markeredgewidth=0.9)


def loss_by_depth(runs: Runs, looped: Runs) -> Drawing:
    """Returns the loss of the main rows over depth, a panel per text, mean of the seeds with their range."""

    def draw(text: str, axes: Axes) -> None:
        curves = {label: _by_depth(of_label, text) for label, of_label in looped.items()}
        lines(axes, curves)
        if LEAKING in runs:
            curve = _by_depth(runs[LEAKING], text)
            behind = {"linestyle": (0, (1, 2)), "marker": "o", "markersize": 8, "markerfacecolor": "none", "zorder": 1}
            axes.plot(curve.x, curve.y, color=INK, label=f"{LEAKING} †", **behind)
        references = ((TRUNCATED, 1, (0, (2, 2)), 2), (ONCE, None, (0, (6, 2)), -10), (FULL, None, (0, (2, 2)), 2))
        for label, depth, dash, above in references:
            if label in runs:
                found = reports(runs[label], text)
                loss = mean_loss(found, depth or best_depth(found))
                axes.axhline(loss, color=INK, linewidth=1, linestyle=dash, alpha=0.7)
                axes.annotate(
                    label.split(",")[0], (1, loss), xycoords=("axes fraction", "data"), xytext=(0, above),
                    textcoords="offset points", fontsize=8.5, ha="right",
                )  # fmt: skip
        depth_axis(axes, curves)
        axes.set_title(text)
        axes.set_ylabel("loss (nats per token)")

    return panels([partial(draw, text) for text in TEXTS], columns=1, height=3.7)


def _by_depth(runs: Sequence[Result], text: str) -> Curve:
    found = reports(runs, text)
    depths = [depth for depth in DEPTHS if math.isfinite(mean_loss(found, depth))]
    alone = [[mean_loss([each], depth) for each in found] for depth in depths]
    ends = ([min(row) for row in alone], [max(row) for row in alone]) if len(found) > 1 else (None, None)
    return Curve(depths, [sum(row) / len(row) for row in alone], *ends)


def difference_by_depth(against: Mapping[str, ByDepth], than: str = "static's", depths: Sequence[int] = DEPTHS) -> Drawing:
    """Returns rows against one other at equal depth, by default static modulation of equal parameters: intervals over documents, a
    mark per seed."""

    def draw(text: str, axes: Axes) -> None:
        curves = {}
        axes.axhline(0, color=INK, linewidth=1, linestyle=(0, (2, 2)))
        for place, (label, by_depth) in enumerate(against.items()):
            found = {depth: each[text] for depth, each in by_depth.items() if depth in depths and text in each}
            shift = 1.07 ** (place - (len(against) - 1) / 2)  # side by side on the logarithmic axis
            x, y = [depth * shift for depth in found], [each.difference for each in found.values()]
            curves[label] = Curve(list(found), y)
            axes.plot(x, y, label=label, linewidth=1.4, **line_style(place) | {"markersize": 3})
            ends = [e.low for e in found.values()], [e.high for e in found.values()]
            axes.vlines(x, *ends, color=COLOURS[place], linewidth=9, alpha=0.4)  # wider than the marks, which would hide it
            for at, each in zip(x, found.values(), strict=True):
                if len(each.seeds) > 1:
                    axes.plot([at] * len(each.seeds), each.of_seeds, marker="_", markersize=8, color=INK, linestyle="none")
        depth_axis(axes, curves)
        axes.set_xlim(depths[0] / 1.3, depths[-1] * 1.3)
        axes.set_title(text)
        axes.set_ylabel(f"loss (nats) less\n{than}")

    return panels([partial(draw, text) for text in TEXTS], columns=1, height=2.9)


def diagonal_maps(run: Result) -> Drawing:
    """Returns the size of a controller's diagonals by map and step: for each kind of text, and of the difference of two kinds."""
    said = run["diagonals"]
    maps = said["sizes"]
    high = max(value for values in maps.values() for row in values for value in row)
    shares = ", ".join(f"{name} {100 * value:.0f} %" for name, value in said["shares"].items())

    def draw(name: str, title: str, axes: Axes) -> None:
        values = maps[name]
        mappable = mosaic(axes, values, "cividis", low=0, high=high)
        axes.set_title(title)
        axes.set_yticks([i + 0.5 for i in range(len(values))], TARGETS[: len(values)])
        steps = len(values[0])
        axes.set_xticks([i + 0.5 for i in range(steps)], [str(i) for i in range(steps)])
        axes.set_xlabel("step")
        axes.figure.colorbar(mappable, ax=axes, label="RMS")

    draws = [partial(draw, name, f"variance: {shares}\n{name}" if i == 0 else name) for i, name in enumerate(maps)]
    return panels(draws, columns=1, height=2.5)
