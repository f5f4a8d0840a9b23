"""The figure of the page: exact match over updates, an arm each, at the least and the largest depth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from loopwright.plot.drawing import Axes, Curve, Drawing, figure, legend, lines

ARMS = {"grpo": "GRPO, last step", "rltt": "RLTT, all steps", "sft": "supervised"}
DEPTHS = {1: 1, 8: 4}  # depth → its column in a row's validations


def draw(rows: Sequence[Mapping[str, Any]]) -> Drawing:
    """Returns the figure: mean over seeds, with the least and the largest."""
    curves = {}
    for arm, words in ARMS.items():
        own = [row for row in rows if row["arm"] == arm]
        for depth, column in DEPTHS.items() if own else ():
            points = list(zip(*([100 * seen[column] for seen in row["valid"]] for row in own), strict=False))
            x = [seen[0] for seen in own[0]["valid"]][: len(points)]
            y, low, high = ([measure(point) for point in points] for measure in (mean, min, max))
            curves[f"{words}, depth {depth}"] = Curve(x=x, y=y, low=low, high=high)

    def onto(axes: Axes) -> None:
        lines(axes, curves)
        axes.set_xlabel("updates after the start")
        axes.set_ylabel("exact match (%)")
        axes.set_ylim(-3, 103)
        legend(axes)

    return figure(onto)
