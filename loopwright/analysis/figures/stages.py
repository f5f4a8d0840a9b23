"""Figures of what the layers do, from a saved summary: over realised depth, step by step over the block, layer by layer over steps.

Colours are the grouping's own: steps go from blue to red, layers from violet to green, a dense model is dashed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from loopwright.analysis.summary import STAGES, grid, one_step
from loopwright.analysis.trace.places import Places
from loopwright.plot.drawing import Axes, Drawing, finite, panels, shades, spread, whole_ticks
from loopwright.plot.steps import linear_step_axis, over_steps, step_axis
from loopwright.plot.style import EARLY, FIRST_LAYER, INK, LAST_LAYER, LATE

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
    return panels([partial(_realised, metrics, name, steps) for name in _there(metrics, names)], columns=1, height=2.3)


def by_step(
    metrics: Metrics,
    names: Sequence[str] = MORE_STAGES,
    *,
    dense: Metrics | None = None,
    first: int = 0,
) -> Drawing:
    """Returns values over relative depth (prelude, core, coda in percent), a line per step from the `first` on; a dense model's
    beside them."""
    return panels([partial(draw_steps, metrics, name, dense, first) for name in _there(metrics, names)])


def by_layer(metrics: Metrics, names: Sequence[str] = STAGES) -> Drawing:
    """Returns values over the steps, a line per layer of the core; the band is one standard deviation over examples."""
    return panels([partial(_by_layer, metrics, name, True) for name in _there(metrics, names)])


def fading(metrics: Metrics, names: Sequence[str]) -> Drawing:
    """Returns values that soon die away over the steps, a line per layer of the core, on an axis with room for the first steps."""
    return panels([partial(_by_layer, metrics, name, False) for name in _there(metrics, names)])


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
    return panels([partial(_halves, metrics, name, dense) for name in _there(metrics, names)])


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
            there = [(t, m, s[layer]) for t, m, s in zip(x, values, std, strict=True) if m is not None and s[layer] is not None]
            least, most = (0.0, 1.0) if name in SHARES else (-math.inf, math.inf)  # no share lies beyond
            low, high = ([min(max(m + sign * s, least), most) for _, m, s in there] for sign in (-1, 1))
            axes.fill_between([t for t, _, _ in there], low, high, color=colour, alpha=0.12, linewidth=0)
    _name_values(axes, name)


def _gate(metrics: Metrics, axes: Axes) -> None:
    numbers = metrics["by_step"]["state_gate"]
    kept = spread(len(numbers["mean"]), MOST_STEPS)
    mean, std, x = [numbers["mean"][t] for t in kept], [numbers["std"][t] for t in kept], [t + 1 for t in kept]
    linear_step_axis(axes)
    over_steps(axes, x, mean, color=FIRST_LAYER, label="_", name="gate")
    there = [(t, m, s) for t, m, s in zip(x, mean, std, strict=True) if m is not None and s is not None]
    low, high = ([m + sign * s for _, m, s in there] for sign in (-1, 1))
    axes.fill_between([t for t, _, _ in there], low, high, color=FIRST_LAYER, alpha=0.12, linewidth=0)
    axes.set_ylabel("how far the gate is open")


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


def _there(metrics: Metrics, names: Sequence[str]) -> list[str]:
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
