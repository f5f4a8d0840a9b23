"""Figures that put several models side by side, from saved numbers: curves with their spread (Figures 6, 29–31), and stage curves
(Figure 10)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from loopwright.analysis.figures import LABELS, draw_steps
from loopwright.analysis.summary import one_step
from loopwright.plot.drawing import Axes, Curve, Drawing, Numbers, finite, line_style, panels, plain_log, spread
from loopwright.plot.style import COLOURS

Metrics = Mapping[str, Any]
MOST_STEPS = 64  # of a line: with a line and a band per model in each of many panels the file grows with every point
LETTERS, KEY = 36, 6  # of a legend that fit below one panel, and what the line before a name takes of them
TITLE, TITLES = 9.5, 75  # the size of a title, and how many letters of that size fit above a row of panels
MARGIN = 0.05  # of the reach of the values, above and below


def side_by_side(
    groups: Mapping[str, Mapping[str, Curve]],
    *,
    y_label: str,
    x_label: str = "step",
    styles: Mapping[str, Mapping[str, Any]] | None = None,
    columns: int = 3,
    log: bool = False,
) -> Drawing:
    """Returns a panel per group with a line per model and its interval as a band, all panels on one y axis.

    `styles` gives lines their colour and dash by name (as matplotlib takes them); left out, each place has its own. On a
    logarithmic axis values of zero are left out.
    """
    if not groups or not all(groups.values()):
        raise ValueError(f"figure: {len(groups)} groups, some of no curve; allowed: a group or more, a curve or more in each")
    curves = [curve for group in groups.values() for curve in group.values()]
    limits = _limits((values for curve in curves for values in (curve.y, curve.low or (), curve.high or ())), log)

    def draw(title: str, group: Mapping[str, Curve]) -> Callable[[Axes], None]:
        def inner(axes: Axes) -> None:
            for place, (name, curve) in enumerate(group.items()):
                _line(axes, name, curve, {**line_style(place, marker=False), **(styles or {}).get(name, {})}, log)
            _frame(axes, title, limits, log, size)
            axes.set_xlabel(x_label)
            axes.set_ylabel(y_label)

        return inner

    beside = min(columns, len(groups))
    size = TITLE * min(1.0, TITLES / (beside * max(map(len, groups))))
    longest = max(len(name) for group in groups.values() for name in group)
    fitting = max(1, LETTERS * beside // (longest + KEY))
    return panels([draw(*item) for item in groups.items()], columns=columns, height=2.5, legend_columns=fitting)


def stages_of_models(
    models: Mapping[str, Metrics],
    name: str = "colsum",
    *,
    dense: Metrics | None = None,
    columns: int = 3,
) -> Drawing:
    """Returns a panel per model, by its summary: a number over relative depth, a line per step, a dense model's in each panel."""
    lacking = [title for title, metrics in models.items() if name not in metrics["by_place"]]
    if lacking or not models:
        raise ValueError(f"figure: {name!r} is in no summary of {', '.join(lacking) or 'none'}; allowed: models that have it")
    steps = (one_step(metrics, name, t) for metrics in models.values() for t in range(metrics["places"]["steps"]))
    beside = [dense["by_place"][name]["mean"]] if dense is not None and name in dense["by_place"] else []
    limits = _limits([*steps, *beside], log=False)

    def draw(title: str, metrics: Metrics) -> Callable[[Axes], None]:
        def inner(axes: Axes) -> None:
            draw_steps(metrics, name, dense, 0, axes)
            _frame(axes, title, limits, log=False)
            axes.set_ylabel(LABELS[name])

        return inner

    return panels([draw(*item) for item in models.items()], columns=columns, height=2.6)


def _line(axes: Axes, name: str, curve: Curve, style: Mapping[str, Any], log: bool) -> None:
    kept = spread(len(curve.x), MOST_STEPS)
    y = [_shown(curve.y[i], log) for i in kept]
    axes.plot(*finite([curve.x[i] for i in kept], y), label=name, linewidth=1.7, **style)
    if curve.low is not None and curve.high is not None:
        band = [(curve.x[i], _shown(curve.low[i], log), _shown(curve.high[i], log)) for i in kept]
        there = [(x, low, high) for x, low, high in band if low is not None and high is not None]
        x, low, high = ([each[i] for each in there] for i in range(3))
        axes.fill_between(x, low, high, color=style.get("color", COLOURS[0]), alpha=0.18, linewidth=0)


def _frame(axes: Axes, title: str, limits: tuple[float, float], log: bool, size: float = TITLE) -> None:
    axes.set_title(title, loc="left", fontsize=size)
    if log:
        plain_log(axes)
        axes.minorticks_off()
    axes.set_ylim(*limits)


def _shown(value: float | None, log: bool) -> float | None:
    return None if value is None or not math.isfinite(value) or (log and value <= 0) else value


def _limits(values: Iterable[Numbers], log: bool) -> tuple[float, float]:
    real = [shown for row in values for value in row if (shown := _shown(value, log)) is not None] or [1.0]
    low, high = min(real), max(real)
    if log:
        reach = (high / low) ** MARGIN if high > low else 2.0
        return low / reach, high * reach
    reach = MARGIN * (high - low) or 0.5
    return low - reach, high + reach
