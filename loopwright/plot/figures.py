"""Figures of training, evaluation and inference from plain saved numbers.

Over steps, an orbit is drawn as what it is, and an axis of many steps has room for the first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from loopwright.plot.drawing import (
    END,
    LAST_NAMED,
    MOST_LABELLED_CELLS,
    MOST_POINTS,
    SHADES,
    START,
    Axes,
    Curve,
    Drawing,
    Numbers,
    blend,
    cell,
    depth_axis,
    far_enough,
    figure,
    finite,
    legend,
    line_at_one,
    line_style,
    lines,
    log_axis,
    mark_trained,
    panels,
    plain_log,
    running_mean,
    spread,
    whole_ticks,
)
from loopwright.plot.style import COLOURS, EARLY, INK, LATE, WIDTH


@dataclass(frozen=True)
class Radius:
    """A spectral radius: its mean, and the least and largest over rows."""

    mean: float
    low: float
    high: float


# the figures


def accuracy_by_depth(
    curves: Mapping[str, Curve],
    *,
    trained: tuple[int, int, int] | None = None,
    label: str = "exact match (%)",
) -> Drawing:
    """Returns exact match over depth, a line per model with its interval; `trained` marks the least, median and largest depth
    trained at."""

    return _over_depth(curves, trained, label, lambda axes: axes.set_ylim(-3, 103), scale=100)


def loss_curves(curves: Mapping[str, Curve]) -> Drawing:
    """Returns the training loss over updates, each value faint and a running mean bold, on a logarithmic axis."""

    def draw(axes: Axes) -> None:
        for place, (name, curve) in enumerate(curves.items()):
            x, y = finite(curve.x, curve.y)
            kept = spread(len(x), MOST_POINTS)
            smooth = running_mean(y)
            axes.plot([x[i] for i in kept], [y[i] for i in kept], color=COLOURS[place % len(COLOURS)], linewidth=0.6, alpha=0.3)
            axes.plot([x[i] for i in kept], [smooth[i] for i in kept], label=name, linewidth=2, **line_style(place, marker=False))
        log_axis(axes, curves)
        axes.set_xlabel("update")
        axes.set_ylabel("loss")
        legend(axes)

    return figure(draw)


def loss_by_depth(
    curves: Mapping[str, Curve],
    *,
    trained: tuple[int, int, int] | None = None,
    label: str = "loss",
) -> Drawing:
    """Returns the loss over depth, a line per split or model with its interval, on a logarithmic axis."""

    return _over_depth(curves, trained, label, lambda axes: log_axis(axes, curves))


def radius_by_depth(curves: Mapping[str, Curve], *, trained: tuple[int, int, int] | None = None) -> Drawing:
    """Returns the spectral radius over depth, with the line at 1 below which a step contracts near the state."""

    def at_one(axes: Axes) -> None:
        line_at_one(axes.axhline)
        axes.set_ylim(bottom=0)

    return _over_depth(curves, trained, "spectral radius ρ", at_one)


def _over_depth(
    curves: Mapping[str, Curve],
    trained: tuple[int, int, int] | None,
    label: str,
    finish: Callable[[Axes], object],
    *,
    scale: float = 1,
) -> Drawing:
    """Returns a line per curve over depth; `finish` sees to the y axis."""

    def draw(axes: Axes) -> None:
        mark_trained(axes, trained)
        lines(axes, curves, scale=scale)
        depth_axis(axes, curves)
        finish(axes)
        axes.set_ylabel(label)
        legend(axes)

    return figure(draw)


def radius_bars(radii: Mapping[str, Radius]) -> Drawing:
    """Returns a bar per model: the mean spectral radius, with the least and largest over rows, and the line at 1."""

    def draw(axes: Axes) -> None:
        for place, (name, radius) in enumerate(radii.items()):
            reach = [[radius.mean - radius.low], [radius.high - radius.mean]]
            axes.barh(place, radius.mean, height=0.36, color=COLOURS[place % len(COLOURS)])
            axes.errorbar(radius.mean, place, xerr=reach, color=INK, capsize=4, linewidth=1.4)
            words = f"{name}: {radius.mean:.2f} ({radius.low:.2f}–{radius.high:.2f})"
            axes.text(0, place - 0.25, words, va="bottom", ha="left", color=INK)
        line_at_one(axes.axvline)
        axes.set_yticks([])
        axes.set_ylim(len(radii) - 0.6, -0.7)
        axes.set_xlim(0, 1.08 * max([1.0, *(radius.high for radius in radii.values())]))
        axes.set_xlabel("spectral radius ρ")
        axes.spines["left"].set_visible(False)
        axes.grid(False)

    return figure(draw, height=0.9 + 0.75 * len(radii))


def state_paths(
    paths: Sequence[Sequence[Sequence[float]]],
    *,
    explained: Sequence[float] | None = None,
    title: str = "",
) -> Drawing:
    """Returns the paths of states in two dimensions, [paths][steps][2]: blue at first, red at last, hollow where they start,
    square where they end."""

    def draw(axes: Axes) -> None:
        for points in paths:
            last = max(len(points) - 2, 1)
            for t, (here, there) in ((i, (points[i], points[j])) for i, j in pairwise(far_enough(points))):
                axes.plot([here[0], there[0]], [here[1], there[1]], color=blend(EARLY, LATE, t / last), linewidth=1.4)
            axes.plot(*points[0][:2], **START)
            axes.plot(*points[-1][:2], **END)
        shares = [f" ({100 * share:.0f} % of variance)" for share in explained or []] + ["", ""]
        axes.set_xlabel(f"first direction{shares[0]}")
        axes.set_ylabel(f"second direction{shares[1]}")
        axes.set_xticks([])
        axes.set_yticks([])
        axes.margins(0.08)
        axes.set_title(title, loc="left")
        axes.plot([], [], label="start", **START)
        axes.plot([], [], label=f"after {len(paths[0]) - 1} steps", **END)
        legend(axes)

    return figure(draw, width=4.4, height=4.2)


def length_by_depth_heatmap(
    values: Sequence[Numbers],
    *,
    rows: Sequence[str],
    columns: Sequence[int],
    trained_rows: Sequence[str] = (),
) -> Drawing:
    """Returns exact match as a grid: a row per split (operand length, say), a column per depth; trained splits in bold."""

    def draw(axes: Axes) -> None:
        from matplotlib import colormaps

        shares = [[math.nan if value is None else 100 * value for value in row] for row in values]
        # few enough shades that the bar beside the grid stays a drawing; matplotlib makes a bitmap of many
        shades = colormaps["cividis"].resampled(SHADES)
        image = axes.pcolormesh(shares, cmap=shades, vmin=0, vmax=100, edgecolors="face", linewidth=0.3)
        if len(rows) * len(columns) <= MOST_LABELLED_CELLS:
            for i, row in enumerate(shares):
                for j, value in enumerate(row):
                    # white on the dark half, black on the light half, whatever the page
                    colour = "#ffffff" if value < 55 else "#000000"
                    axes.text(j + 0.5, i + 0.5, cell(value), ha="center", va="center", color=colour, fontsize=8)
        kept = spread(len(columns), 14)
        axes.set_xticks([place + 0.5 for place in kept], [str(columns[place]) for place in kept])
        axes.set_yticks([place + 0.5 for place in range(len(rows))], rows)
        for label in axes.get_yticklabels():
            label.set_fontweight("bold" if label.get_text() in trained_rows else "normal")
        axes.tick_params(length=0)
        axes.grid(False)
        axes.invert_yaxis()
        axes.set_xlabel("depth")
        for side in axes.spines.values():
            side.set_visible(False)
        bar = axes.figure.colorbar(image, ax=axes, pad=0.02, aspect=30)
        bar.set_label("exact match (%)")
        bar.outline.set_visible(False)

    # room for the names of rows beside cells that hold a number
    width = max(WIDTH, 1.4 + 0.075 * max(map(len, rows), default=0) + 0.36 * min(len(columns), 20))
    return figure(draw, width=width, height=1.1 + 0.3 * max(len(rows), 4))


# what is drawn over depth, by the measure
BY_DEPTH = {"exact": accuracy_by_depth, "loss": loss_by_depth}


@dataclass(frozen=True)
class TradeOff:
    """What exit rules give over what they cost: a line per rule, fixed depths, and where they are known the oracle and the same
    shares of tokens that leave at random."""

    rules: Mapping[str, Curve]
    fixed: Curve
    oracle: Curve | None = None
    random: Curve | None = None
    cost: str = "mean steps a token"
    title: str = ""

    def draw(self, axes: Axes, label: str, scale: float) -> None:
        """Draws the lines; a rule has the same colour in every panel that lists the same rules."""
        dotted = {"linewidth": 1.4, "linestyle": (0, (2, 2)), "marker": "."}
        axes.plot(*finite(self.fixed.x, self.fixed.y, scale), color=INK, label="fixed depth", **dotted)
        if self.oracle is not None:
            axes.plot(*finite(self.oracle.x, self.oracle.y, scale), color=INK, linewidth=1, alpha=0.5, label="oracle")
        if self.random is not None:
            x, y = finite(self.random.x, self.random.y, scale)
            axes.plot(x, y, "x", color=INK, alpha=0.35, markersize=4, label="random depth")
        for place, (name, curve) in enumerate(self.rules.items()):
            axes.plot(*finite(curve.x, curve.y, scale), label=name, linewidth=1.8, **line_style(place))
        axes.set_xlabel(self.cost)
        axes.set_title(self.title, loc="left")
        axes.set_ylabel(label)


def exit_trade_off(costs: Sequence[TradeOff], *, label: str = "loss (nats a token)", scale: float = 1) -> Drawing:
    """Returns loss (or exact match) over each cost, a panel for each: mean steps, and time where it was measured."""
    if len(costs) == 1:

        def draw(axes: Axes) -> None:
            costs[0].draw(axes, label, scale)
            legend(axes)

        return figure(draw)
    return panels([partial(cost.draw, label=label, scale=scale) for cost in costs])


def throughput_by_batch(speeds: Mapping[str, Curve], bounds: Mapping[str, Curve]) -> Drawing:
    """Returns tokens per second over the batch size on logarithmic axes, a line per depth; thin lines are the bounds of the memory
    bandwidth."""

    def draw(axes: Axes) -> None:
        for place, (name, curve) in enumerate(speeds.items()):
            style = line_style(place)
            axes.plot(*finite(curve.x, curve.y), label=name, linewidth=2, **style)
            axes.plot(*finite(bounds[name].x, bounds[name].y), color=style["color"], linewidth=0.8, linestyle=(0, (2, 2)))
        depth_axis(axes, speeds)
        plain_log(axes)
        axes.set_xlabel("batch (rows)")
        axes.set_ylabel("tokens/s (thin: bandwidth bound)")
        legend(axes)

    return figure(draw)


LINEAR_STEPS = 32
FEWEST_TURNS = 24  # points of a line from which its ups and downs may lie on one another
SEEN_SWING = 0.02  # of a line's reach: smaller swings are not a brick
ENVELOPE = 9  # steps of which a band shows the least and largest


def over_steps(
    axes: Axes, x: Sequence[float], y: Numbers, *, color: str, linewidth: float = 1.5, label: str = "_", name: str = ""
) -> None:
    """Draws a line over steps, of this name where a page reads it out.

    A line that turns at most steps would be a solid brick: one that goes back and forth (period 2) is drawn as its even steps and
    its odd ones, any other as the band between the least and largest of neighbouring steps with their mean in it.
    """
    steps, values = finite(x, y)
    look = {"color": color, "linewidth": linewidth}
    if not _turns(values):
        axes.plot(steps, values, label=label, gid=name or None, **look)
        return
    halves = [[(a, b) for a, b in zip(steps, values, strict=True) if a % 2 == odd] for odd in (0, 1)]
    if not any(_turns([b for _, b in half]) for half in halves):
        axes.fill_between(*zip(*_between(steps, values, 2), strict=True), color=color, alpha=0.1, linewidth=0)
        for half, dash, word in zip(halves, ("-", (0, (2, 1.2))), LAST_NAMED, strict=True):
            axes.plot(
                [a for a, _ in half], [b for _, b in half], linestyle=dash, gid=f"{name or label}, {word}",
                label=label if dash == "-" else "_", **look,
            )  # fmt: skip
            axes.plot([], [], color=INK, linestyle=dash, linewidth=linewidth, label=word)
        return
    axes.fill_between(*zip(*_between(steps, values, ENVELOPE), strict=True), color=color, alpha=0.25, linewidth=0)
    middle = [sum(window) / len(window) for window in _windows(values, ENVELOPE)]
    axes.plot(steps, middle, label=label, gid=f"{name or label}, mean of {ENVELOPE} steps", **look)


def _turns(values: Sequence[float]) -> bool:
    """Whether a line goes up and down so often, and by so much, that its strokes would lie on one another."""
    later = values[len(values) // 2 :]
    if len(values) < FEWEST_TURNS:
        return False
    moves = [b - a for a, b in pairwise(later)]
    reach = max(values) - min(values)
    turns = sum(a * b < 0 for a, b in pairwise(moves))
    return turns > 0.5 * len(moves) and max(map(abs, moves)) > SEEN_SWING * reach


def _windows(values: Sequence[float], size: int) -> list[Sequence[float]]:
    reach = [min(size // 2, i, len(values) - 1 - i) for i in range(len(values))]
    return [values[i - r : i + r + 1] for i, r in enumerate(reach)]


def _between(steps: Sequence[float], values: Sequence[float], size: int) -> list[tuple[float, float, float]]:
    return [(step, min(window), max(window)) for step, window in zip(steps, _windows(values, size), strict=True)]


def linear_step_axis(axes: Axes) -> None:
    """Makes the x axis one of steps that all have the same room."""
    axes.set_xlabel("step")
    whole_ticks(axes.xaxis)


def step_axis(axes: Axes, steps: int) -> None:
    """Makes the x axis one of steps from 1 on; of many it is logarithmic, since what happens at first is over soon."""
    linear_step_axis(axes)
    if steps > LINEAR_STEPS:
        axes.set_xscale("log", base=2)
        kept = [4**i for i in range(16) if 4**i <= steps]
        axes.set_xticks(kept, [str(step) for step in kept])
        axes.minorticks_off()
