"""Figures from a saved summary: what the layers do (over realised depth, step by step over the block, layer by layer over steps),
and where states go (fixed points, all pairs of depths, paths, orbits, answers, attention maps).

Colours are the grouping's own: steps go from blue to red, layers from violet to green, a dense model is dashed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from loopwright.analysis.report.page import count
from loopwright.analysis.summary import STAGES, grid, one_step
from loopwright.analysis.trace.places import Places
from loopwright.plot.drawing import (
    END,
    START,
    Axes,
    Drawing,
    Numbers,
    far_enough,
    finite,
    line_at_one,
    mosaic,
    panels,
    shades,
    spread,
    whole_ticks,
)
from loopwright.plot.figures import linear_step_axis, over_steps, state_paths, step_axis
from loopwright.plot.style import EARLY, FIRST_LAYER, INK, LAST_LAYER, LATE, WIDTH

STEP_ENDS, LAYER_ENDS = (EARLY, LATE), (FIRST_LAYER, LAST_LAYER)
MOST_NAMED = 6  # layers or steps up to which each has its name; of more, the first and the last between which colours go
MOST_LINES = 24  # steps drawn of more
MOST_HALVES = 8  # steps drawn of more, where each is two lines
MOST_POINTS = 1200  # of a line over realised depth
MOST_STEPS = 1024  # of a line over steps; fewer would turn an orbit into another
MORE_STAGES = (*STAGES, "any_sink_rate", "lens_entropy")
SHARES = ("sink_rate", "any_sink_rate")
LABELS = {
    "colsum": "ColSum concentration", "mixing": "mixing score (nats)", "sink_rate": "sink rate, first token",
    "any_sink_rate": "sink rate, any token", "entropy": "residual entropy (nats)", "norm": "residual norm",
    "largest": "largest activation", "step_norm": "change since step before", "step_cosine": "cosine to step before",
    "step_attention": "attention change", "step_bound": "bound on it", "fixed_norm": "distance to last state",
    "fixed_cosine": "cosine to last state", "fixed_attention": "attention distance",
    "far_norm": "distance to farthest", "far_cosine": "cosine to farthest", "far_attention": "attention distance to farthest",
    "lens_entropy": "logit lens entropy (nats)", "lens_change": "logit lens change (KL)", "diagonal": "size of the diagonals",
}  # fmt: skip
Metrics = Mapping[str, Any]


def realised(metrics: Metrics, names: Sequence[str] = STAGES, *, steps: int = 8) -> Drawing:
    """Returns values over the layers in the order they run, for the first `steps` steps: dashed through all of them, and a line
    for each layer of the core across its steps."""
    return panels([partial(_realised, metrics, name, steps) for name in _drawable(metrics, names)], columns=1, height=2.3)


def by_step(
    metrics: Metrics,
    names: Sequence[str] = MORE_STAGES,
    *,
    dense: Metrics | None = None,
    first: int = 0,
) -> Drawing:
    """Returns values over relative depth (prelude, core, coda in percent), a line per step from the `first` on; a dense model's
    beside them."""
    return panels([partial(draw_steps, metrics, name, dense, first) for name in _drawable(metrics, names)])


def by_layer(metrics: Metrics, names: Sequence[str] = STAGES) -> Drawing:
    """Returns values over the steps, a line per layer of the core; the band is one standard deviation over examples."""
    return panels([partial(_by_layer, metrics, name, True) for name in _drawable(metrics, names)])


def fading(metrics: Metrics, names: Sequence[str]) -> Drawing:
    """Returns values that soon die away over the steps, a line per layer of the core, on an axis with room for the first steps."""
    return panels([partial(_by_layer, metrics, name, False) for name in _drawable(metrics, names)])


def parts(metrics: Metrics) -> Drawing:
    """Returns how far the gate is open and how large the diagonals of an adapter are, over the steps; the bands are one standard
    deviation over examples."""
    gates = [partial(_gate, metrics)] if "state_gate" in metrics["by_step"] else []
    return panels([*gates, *(partial(_by_layer, metrics, "diagonal", True) for _ in range("diagonal" in metrics["by_place"]))])


def has_parts(metrics: Metrics) -> bool:
    """Says whether a summary holds numbers of a gate or of diagonals in the core."""
    diagonals = metrics["by_place"].get("diagonal", {"mean": []})["mean"][Places(**metrics["places"]).looped]
    return "state_gate" in metrics.get("by_step", {}) or any(value is not None for value in diagonals)


def halves(metrics: Metrics, names: Sequence[str] = STAGES, *, dense: Metrics | None = None) -> Drawing:
    """Returns the first half of the core (solid) and the second (dashed) laid over one another, step by step, and a dense model's
    layers."""
    return panels([partial(_halves, metrics, name, dense) for name in _drawable(metrics, names)])


def neurons(metrics: Metrics, *, dense: Metrics | None = None) -> Drawing:
    """Returns the shares of prediction and suppression neurons over the layers, which no step changes."""

    def draw(axes: Axes) -> None:
        for kind, colour, mark in (("predict", "#0072B2", "o"), ("suppress", "#D55E00", "s")):
            values = metrics["neurons"][kind]
            axes.plot(_percent(len(values)), [100 * v for v in values], color=colour, marker=mark, markersize=3.5, label=kind)
            if dense is not None and "neurons" in dense:
                values = dense["neurons"][kind]
                axes.plot(
                    _percent(len(values)), [100 * v for v in values], color=colour, linestyle=(0, (4, 2)), label=f"{kind}, dense"
                )
        axes.set_xlabel("layers (%)")
        axes.set_ylabel("neurons (%)")

    return panels([draw], columns=1)


def _realised(metrics: Metrics, name: str, steps: int, axes: Axes) -> None:
    places = Places(**metrics["places"])
    shown = min(steps, places.steps)
    end = places.prelude + shown * places.core
    values = metrics["by_place"][name]["mean"][:end]
    if shown == places.steps:
        values = metrics["by_place"][name]["mean"]
    for layer, colour in enumerate(shades(*LAYER_ENDS, places.core)):
        x = range(places.prelude + layer, end, places.core)
        y = [values[i] for i in x]
        axes.plot(*finite(x, y), color=colour, linewidth=1.6, label=_layer_name(layer, places.core), gid=f"layer {layer}")
    kept = spread(len(values), MOST_POINTS)
    axes.plot(
        *finite(kept, [values[i] for i in kept]), color=INK, linewidth=0.9, linestyle=(0, (3, 2)), label="all layers in order"
    )
    axes.set_xlabel("layer, in the order they run")
    whole_ticks(axes.xaxis)
    _name_values(axes, name)


def draw_steps(metrics: Metrics, name: str, dense: Metrics | None, first: int, axes: Axes) -> None:
    """Draws a value over relative depth on a pair of axes: a line per step from the `first` on, and a dense model's beside them."""
    places = Places(**metrics["places"])
    shown = [first + step for step in spread(places.steps - first, MOST_LINES)]
    block = places.prelude + places.core + places.coda
    if places.core:
        for edge in (places.prelude, block - places.coda) if places.prelude or places.coda else ():
            if 0 < edge < block:
                axes.axvline(100 * (edge - 0.5) / (block - 1), color=INK, linewidth=0.8, linestyle=(0, (1, 2)), alpha=0.6)
        for colour, step in zip(shades(*STEP_ENDS, len(shown)), shown, strict=True):
            label = f"step {step + 1}" if step in (shown[0], shown[-1]) or len(shown) <= MOST_NAMED else "_"
            axes.plot(
                *finite(_percent(block), one_step(metrics, name, step)),
                color=colour,
                linewidth=1.5,
                label=label,
                gid=f"step {step + 1}",
                marker="o" if block == 1 else None,
            )
    else:
        label = "_" if dense is None else "this model"  # a line alone needs no name
        line = finite(_percent(block), one_step(metrics, name, 0))
        axes.plot(*line, color=STEP_ENDS[0], linewidth=1.8, label=label, gid="this model")
    _overlay(axes, name, dense)
    axes.set_xlabel("block depth (%)")
    _name_values(axes, name)


def _by_layer(metrics: Metrics, name: str, band: bool, axes: Axes) -> None:
    places = Places(**metrics["places"])
    mean, band = grid(metrics, name), band and "std" in metrics["by_place"][name]
    std = grid(metrics, name, "std") if band else mean
    kept = spread(places.steps, MOST_STEPS)
    mean, std, x = [mean[t] for t in kept], [std[t] for t in kept], [t + 1 for t in kept]
    linear_step_axis(axes)
    if not band:
        step_axis(axes, places.steps)
    for layer, colour in enumerate(shades(*LAYER_ENDS, places.core)):
        values = [row[layer] for row in mean]
        over_steps(axes, x, values, color=colour, label=_layer_name(layer, places.core), name=f"layer {layer}")
        if band and metrics["examples"] > 1:
            _draw_band(
                axes, x, values, [row[layer] for row in std], colour, (0.0, 1.0) if name in SHARES else (-math.inf, math.inf)
            )
    _name_values(axes, name)


def _gate(metrics: Metrics, axes: Axes) -> None:
    numbers = metrics["by_step"]["state_gate"]
    kept = spread(len(numbers["mean"]), MOST_STEPS)
    mean, std, x = [numbers["mean"][t] for t in kept], [numbers["std"][t] for t in kept], [t + 1 for t in kept]
    linear_step_axis(axes)
    over_steps(axes, x, mean, color=FIRST_LAYER, label="_", name="gate")
    _draw_band(axes, x, mean, std, FIRST_LAYER, (-math.inf, math.inf))
    axes.set_ylabel("how far the gate is open")


def _draw_band(axes: Axes, x: Sequence[int], mean: Numbers, std: Numbers, colour: str, within: tuple[float, float]) -> None:
    """Draws one standard deviation to each side of a mean; a share does not lie beyond 0 and 1."""
    there = [(t, m, s) for t, m, s in zip(x, mean, std, strict=True) if m is not None and s is not None]
    low, high = ([min(max(m + sign * s, within[0]), within[1]) for _, m, s in there] for sign in (-1, 1))
    axes.fill_between([t for t, _, _ in there], low, high, color=colour, alpha=0.12, linewidth=0)


def _halves(metrics: Metrics, name: str, dense: Metrics | None, axes: Axes) -> None:
    values = grid(metrics, name)
    half = (len(values[0]) + 1) // 2
    shown = spread(len(values), MOST_HALVES)
    for colour, step in zip(shades(*STEP_ENDS, len(shown)), shown, strict=True):
        named = step in (shown[0], shown[-1])
        for label, part, dash in (("first", values[step][:half], "-"), ("second", values[step][-half:], (0, (2, 1.2)))):
            words = f"{label} half, step {step + 1}" if named else "_"
            axes.plot(*finite(_percent(half), part), color=colour, linewidth=1.4, linestyle=dash, label=words)
    _overlay(axes, name, dense)
    axes.set_xlabel("half of the block (%)")
    _name_values(axes, name)


def _name_values(axes: Axes, name: str) -> None:
    axes.set_ylabel(LABELS[name])
    if name in SHARES and not axes.dataLim.y1:  # none anywhere: not a line in the middle of shares below zero
        axes.set_ylim(-0.03, 1.03)


def _overlay(axes: Axes, name: str, dense: Metrics | None) -> None:
    if dense is not None and name in dense["by_place"]:
        values = dense["by_place"][name]["mean"]
        axes.plot(*finite(_percent(len(values)), values), color=INK, linewidth=1.8, linestyle=(0, (4, 2)), label="dense model")


def _drawable(metrics: Metrics, names: Sequence[str]) -> list[str]:
    held = {name for name, each in metrics["by_place"].items() if any(value is not None for value in each["mean"])}
    drawable = [name for name in names if name in held] or [name for name in names if name in metrics["by_place"]][:1]
    if not drawable:
        raise ValueError(f"figure: the summary holds none of {', '.join(names)}; it has: {', '.join(metrics['by_place'])}")
    return drawable


def _layer_name(layer: int, layers: int) -> str:
    return f"layer {layer}" if layer in (0, layers - 1) or layers <= MOST_NAMED else "_"


def _percent(count: int) -> list[float]:
    return [100 * i / max(count - 1, 1) for i in range(count)]


def orbit_realised(metrics: Metrics) -> Drawing:
    """Returns the stages of the prompt with the largest orbit, over all layers in the order they run."""
    return realised(_of_orbit(metrics), steps=metrics["places"]["steps"])


def orbit_by_step(metrics: Metrics) -> Drawing:
    """Returns the stages of the prompt with the largest orbit over the block, at the later half of the steps."""
    return by_step(_of_orbit(metrics), STAGES, first=metrics["places"]["steps"] // 2)


def _of_orbit(metrics: Metrics) -> Metrics:
    return {**metrics, "by_place": metrics["limits"]["orbit"]["by_place"], "examples": 1}


# every figure by the name its file has
STAGE_FIGURES: dict[str, Callable[..., Drawing]] = {
    "stages-realised": realised,
    "stages-by-step": by_step,
    "stages-by-layer": by_layer,
    "changes": partial(fading, names=("step_norm", "step_cosine", "step_attention", "step_bound")),
    # two columns: a layer's own end on the left, the farthest layer's on the right
    "fixed-points": partial(
        fading, names=("fixed_norm", "far_norm", "fixed_cosine", "far_cosine", "fixed_attention", "far_attention")
    ),
    "norms": partial(by_step, names=("norm", "largest")),
}


Stack = tuple[str, str | None, list[int]]  # its name, the colour of its frame, and its layers as run
FLOOR_COLUMNS = 6  # maps side by side in a floorplan
ROUNDING = 1e-5  # of a state's size: smaller changes are what float32 leaves of them
PRELUDE, CODA = "#0072B2", "#D55E00"  # around the maps of a stack that runs once


def same_and_far(metrics: Metrics, *, layer: int = 0) -> Drawing:
    """Returns one layer against its own fixed point and against the farthest layer's: where both meet, the fixed point is
    degenerate."""

    def draw(kind: str) -> Callable[[Axes], None]:
        def inner(axes: Axes) -> None:
            for name, label, colour in (
                (f"fixed_{kind}", "its own", LAYER_ENDS[0]),
                (f"far_{kind}", "the farthest layer's", LAYER_ENDS[1]),
            ):
                values = [row[layer] for row in grid(metrics, name)]
                over_steps(axes, range(1, len(values) + 1), values, color=colour, linewidth=1.8, label=label)
            step_axis(axes, metrics["places"]["steps"])
            axes.set_ylabel(LABELS[f"fixed_{kind}"])

        return inner

    return panels([draw("cosine"), draw("norm")])


def pair_matrices(metrics: Metrics) -> Drawing:
    """Returns every pair of realised depths: how far apart the attention maps are, and how alike the residuals."""
    drawn = (("attention", "attention distance", "viridis_r"), ("residual", "residual cosine", "viridis"))
    return panels(
        [lambda axes, each=each: _matrix(axes, metrics["pairs"][each[0]], *each[1:]) for each in drawn], columns=1, height=4.4
    )


def _matrix(axes: Axes, values: Sequence[Numbers], title: str, colours: str) -> None:
    image = mosaic(axes, values, colours)
    axes.set_aspect("equal")
    axes.set_title(title, loc="left", fontsize=9.5, fontweight="normal")
    axes.set_xlabel("layer, as run")
    for axis in (axes.xaxis, axes.yaxis):
        whole_ticks(axis)
    _bar(axes, image)


def _bar(axes: Axes, image: Any, *, ticks: Sequence[float] | None = None) -> None:
    bar = axes.figure.colorbar(image, ax=axes, pad=0.02, aspect=25, shrink=0.8, ticks=ticks)
    bar.outline.set_visible(False)


def cycles(metrics: Metrics) -> Drawing:
    """Returns the last token's path through the layers of each step, in windows of steps that share their two directions."""
    points, steps = metrics["path"]["points"], len(metrics["path"]["points"])
    size = 8 if steps > 8 else max(1, steps)
    starts = sorted({0, size, steps // 2, steps - size} & set(range(max(1, steps - size + 1))))
    every = [p for step in points for p in step]
    limits = [(min(p[i] for p in every), max(p[i] for p in every)) for i in (0, 1)]

    def draw(start: int) -> Callable[[Axes], None]:
        def inner(axes: Axes) -> None:
            window = points[start : start + size]
            flat = [p for step in window for p in step]
            if start:
                flat = [points[start - 1][-1], *flat]
            colours = shades(*STEP_ENDS, len(window))
            layers = len(window[0])
            for i in range(len(flat) - 1):
                colour = colours[min(i // max(layers, 1), len(window) - 1)]
                axes.plot([flat[i][0], flat[i + 1][0]], [flat[i][1], flat[i + 1][1]], color=colour, linewidth=1.2)
            for layer, colour in enumerate(shades(*LAYER_ENDS, layers)):
                at = [step[layer] for step in window]
                axes.plot(
                    [p[0] for p in at], [p[1] for p in at],
                    linestyle="none", marker="o", markersize=3, color=colour, label=_layer_name(layer, layers),
                )  # fmt: skip
            axes.set_title(f"steps {start + 1}–{start + len(window)}", loc="left", fontsize=9.5)
            for (low, high), scale in zip(limits, (axes.set_xlim, axes.set_ylim), strict=True):
                margin = 0.08 * (high - low) or 1
                scale(low - margin, high + margin)
            axes.set_xticks([])
            axes.set_yticks([])

        return inner

    return panels([draw(start) for start in starts], height=2.6)


def layer_paths(metrics: Metrics) -> Drawing:
    """Returns the last token's path over the steps at each of up to eight layers, in that layer's own two directions."""
    paths = metrics["path"]["layers"]
    chosen = sorted({round(i * (len(paths) - 1) / 7) for i in range(8)}) if len(paths) > 8 else range(len(paths))

    def draw(layer: int) -> Callable[[Axes], None]:
        def inner(axes: Axes) -> None:
            points, colours = paths[layer], shades(*STEP_ENDS, len(paths[layer]))
            for i, j in pairwise(far_enough(points)):
                axes.plot([points[i][0], points[j][0]], [points[i][1], points[j][1]], color=colours[i], linewidth=1.2)
            axes.plot(*points[0], **START | {"markersize": 4.5}, label="first step")
            axes.plot(*points[-1], **END | {"markersize": 4}, label="last step")
            axes.set_title(f"layer {layer}", loc="left", fontsize=9.5)
            axes.set_xticks([])
            axes.set_yticks([])

        return inner

    return panels([draw(layer) for layer in chosen], height=2.1)


def orbit_parts(metrics: Metrics) -> Drawing:
    """Returns the orbit of largest amplitude as the classifier sees it: the series and its trend, windowed, its spectrum."""
    orbit = metrics["limits"]["orbit"]

    def line(*names: str, y: str, over: Callable[[Axes], None]) -> Callable[[Axes], None]:
        def inner(axes: Axes) -> None:
            for name, colour in zip(names, (LAYER_ENDS[0], "#D55E00"), strict=False):
                values = orbit[name]
                look: dict[str, Any] = {"color": colour, "linewidth": 1.4, "label": name if len(names) > 1 else "_"}
                if name == "spectrum":  # no series of steps: what turns often there is what is to be seen
                    axes.plot(*finite(range(1, len(values) + 1), values), **look)
                else:
                    over_steps(axes, range(1, len(values) + 1), values, name=name, **look)
            over(axes)
            axes.set_ylabel(y)

        return inner

    parts = [
        line("series", "trend", y="cosine to final step", over=linear_step_axis),
        line("windowed", y="rest, windowed", over=linear_step_axis),
        line("spectrum", y="magnitude", over=lambda axes: axes.set_xlabel("cycles in the window")),
    ]
    return panels(parts, height=2.5)


def together(metrics: Metrics) -> Drawing:
    """Returns how often one limit occurs on a token at some layer, given that another one does: rows are given."""
    values, labels = metrics["limits"]["together"], metrics["limits"]["labels"]

    def draw(axes: Axes) -> None:
        shown = [[math.nan if v is None else v for v in row] for row in values]
        mosaic(axes, shown, "cividis", low=0, high=1)
        for i, row in enumerate(shown):
            for j, value in enumerate(row):
                colour = INK if math.isnan(value) else "#ffffff" if value < 0.55 else "#000000"  # a cell left clear is the page
                word = "–" if math.isnan(value) else f"{value:.2f}"
                axes.text(j + 0.5, i + 0.5, word, ha="center", va="center", color=colour, fontsize=9)
        axes.set_xticks([i + 0.5 for i in range(len(labels))], labels)
        axes.set_yticks([i + 0.5 for i in range(len(labels))], labels)
        axes.set_xlabel("also seen")
        axes.set_ylabel("given")

    return panels([draw], columns=1, height=3.2)


def answers(metrics: Metrics) -> Drawing:
    """Returns what the steps say next: the share of examples already at the last answer and that flips, entropy, and change."""
    said, by_step = metrics["answers"], metrics["by_step"]
    flips = [None if value is None else 100 * value for value in said["flips"]]
    lines = {
        "examples (%)": {"at the final answer": [100 * value for value in said["final"]], "flips": flips},
        "entropy (nats)": {"_": by_step["answer_entropy"]["mean"]},
        "KL from step before (nats)": {"_": by_step["answer_change"]["mean"]},
        "change of the state": {"_": by_step["state_step_norm"]["mean"]},
    }

    def draw(label: str) -> Callable[[Axes], None]:
        def inner(axes: Axes) -> None:
            for (name, values), colour in zip(lines[label].items(), (LAYER_ENDS[0], "#D55E00"), strict=False):
                over_steps(
                    axes, range(1, len(values) + 1), values, color=colour, linewidth=1.6, label=name, name=name.strip("_") or label
                )
            if said.get("depth"):
                axes.axvline(said["depth"], color=INK, linewidth=0.9, linestyle=(0, (2, 2)))
            step_axis(axes, metrics["places"]["steps"])
            axes.set_ylabel(label)

        return inner

    return panels([draw(label) for label in lines], height=2.5)


def floorplan(metrics: Metrics) -> Drawing:
    """Returns the mean attention map of every layer of a few steps on one prompt: depth goes up, a space stands between steps,
    prelude and coda have a frame."""
    places, maps = Places(**metrics["floorplan"]["places"]), metrics["floorplan"]["maps"]
    if places.count == places.steps > 1:  # a core of one layer and nothing else: its steps stand side by side
        side_by_side = [(f"steps 1–{places.steps}", None, list(range(places.steps)))]
        return _plan(places, side_by_side, lambda place: [maps[place]], min(FLOOR_COLUMNS, places.steps))
    columns = min(FLOOR_COLUMNS, max(places.prelude, places.core, places.coda))
    return _plan(places, _stacks(places), lambda place: [maps[place]], columns)


def floorplan_heads(metrics: Metrics) -> Drawing:
    """Returns the attention maps of single heads on one prompt, a row per layer as run and a column per head: depth goes up."""
    heads = metrics["floorplan_heads"]
    places = Places(**heads["places"])
    return _plan(places, _stacks(places), lambda place: heads["maps"][place], len(heads["heads"]))


def _stacks(places: Places) -> list[Stack]:
    core = [[places.index("core", t, i) for i in range(places.core)] for t in range(places.steps)]
    steps: list[Stack] = [(f"step {t + 1}", None, layers) for t, layers in enumerate(core)]
    coda = [places.index("coda", 0, i) for i in range(places.coda)]
    return [("prelude", PRELUDE, list(range(places.prelude))), *steps, ("coda", CODA, coda)]


def _plan(places: Places, stacks: Sequence[Stack], maps_at: Callable[[int], Sequence[Sequence[Numbers]]], columns: int) -> Drawing:
    """Returns maps in rows of so many columns from the bottom up, the stacks and steps apart from one another."""
    drawn = [
        ("layers" if not places.core else name, frame, [one for place in each for one in maps_at(place)])
        for name, frame, each in stacks
        if each
    ]
    side = len(drawn[0][2][0])
    cell, gap = side + max(1, side // 8), max(2, side // 3)
    heights = [-(-len(each) // columns) * cell for _, _, each in drawn]
    sheet: list[list[float | None]] = [[None] * (columns * cell) for _ in range(sum(heights) + gap * (len(drawn) - 1))]

    def draw(axes: Axes) -> None:
        bottom = len(sheet)
        for (name, frame, each), height in zip(drawn, heights, strict=True):
            for n, one in enumerate(each):
                top, left = bottom - (n // columns + 1) * cell, n % columns * cell
                for i, row in enumerate(one):
                    sheet[top + i][left : left + i + 1] = row[: i + 1]
                if frame and places.core:
                    x, y = (left - 1, left + side + 1), (top - 1, top + side + 1)
                    axes.fill([x[0], x[1], x[1], x[0]], [y[0], y[0], y[1], y[1]], fill=False, edgecolor=frame, clip_on=False)
            axes.text(-gap / 2, bottom - height / 2, name, ha="right", va="center", color=INK, fontsize=9)
            bottom -= height + gap
        image = mosaic(axes, sheet, "viridis", low=0, power=0.5)
        axes.set_aspect("equal")
        axes.set_axis_off()
        _bar(axes, image, ticks=(0, 0.1, 0.5, 1))

    high = max(1.6, 0.86 * WIDTH * len(sheet) / len(sheet[0]))
    return panels([draw], columns=1, height=min(high, 9.0))


def prompt_path(metrics: Metrics) -> Drawing:
    """Returns the path of the whole prompt's state, every token at once, over the steps in the two directions it spreads most."""
    return state_paths([metrics["path"]["prompt"]], explained=metrics["path"]["prompt_explained"])


def spectrum(metrics: Metrics) -> Drawing:
    """Returns the leading eigenvalues of a step in the complex plane at each depth looked at, and how changes shrink by step."""
    spectra, changes = metrics["spectrum"], metrics["by_step"]["state_step_norm"]["mean"]
    sizes = metrics["by_step"]["state_norm"]["mean"]

    def plane(axes: Axes) -> None:
        turn = [math.tau * i / 90 for i in range(91)]
        axes.plot([math.cos(a) for a in turn], [math.sin(a) for a in turn], color=INK, linewidth=0.9, linestyle=(0, (2, 2)))
        for depth, values, line_style in zip(spectra["depths"], spectra["eigenvalues"], ("o", "s", "^"), strict=False):
            real = [z for z in values if None not in z]
            axes.plot(
                [z[0] for z in real], [z[1] for z in real],
                linestyle="none", marker=line_style, markersize=4.5, alpha=0.8, label=f"after {count(depth, 'step')}",
                color=shades(*STEP_ENDS, len(spectra["depths"]))[spectra["depths"].index(depth)],
            )  # fmt: skip
        axes.set_aspect("equal", adjustable="datalim")
        axes.set_xlabel("real part")
        axes.set_ylabel("imaginary part")

    def shrink(axes: Axes) -> None:
        real = [None if None in (a, n) or a < ROUNDING * n else a for a, n in zip(changes, sizes, strict=True)]
        factors = [None if None in (a, b) else b / a for a, b in pairwise(real)]
        over_steps(axes, range(2, len(changes) + 1), factors, color=LAYER_ENDS[0], linewidth=1.4, name="ratio")
        line_at_one(axes.axhline)
        axes.set_ylim(bottom=0)
        step_axis(axes, metrics["places"]["steps"])
        axes.set_ylabel("ratio of changes")

    return panels([plane, shrink])


STATE_FIGURES: dict[str, tuple[str, Callable[..., Drawing]]] = {
    # file: what the summary must hold, and the function that draws it
    "same-and-farthest": ("convergence", same_and_far),
    "pairs": ("pairs", pair_matrices),
    "cycles": ("path", cycles),
    "layer-paths": ("path", layer_paths),
    "prompt-path": ("path", prompt_path),
    "limits-together": ("limits", together),
    "spectrum": ("spectrum", spectrum),
    "answers": ("answers", answers),
    "floorplan": ("floorplan", floorplan),
    "floorplan-heads": ("floorplan_heads", floorplan_heads),
}
