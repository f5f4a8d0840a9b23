"""Figures from plain numbers, in one style; `save` writes any of them as SVG or PNG, light or dark, for a page, column or slide.
Results show themselves as tables in a notebook (`Shown`).
"""

from __future__ import annotations

import io
from typing import Any

from loopwright.plot.drawing import Curve, Drawing, figure, panels
from loopwright.plot.figures import (
    Radius,
    TradeOff,
    accuracy_by_depth,
    exit_trade_off,
    length_by_depth_heatmap,
    loss_by_depth,
    loss_curves,
    radius_bars,
    radius_by_depth,
    state_paths,
    throughput_by_batch,
)
from loopwright.plot.style import SIZES, STYLES

__all__ = [
    "SIZES",
    "STYLES",
    "Curve",
    "Drawing",
    "Radius",
    "TradeOff",
    "accuracy_by_depth",
    "exit_trade_off",
    "figure",
    "length_by_depth_heatmap",
    "loss_by_depth",
    "loss_curves",
    "panels",
    "radius_bars",
    "radius_by_depth",
    "state_paths",
    "throughput_by_batch",
]


WIDTH = 110  # columns of a table in a notebook


class Shown:
    """A result that is a table, in a notebook too."""

    def table(self) -> Any:
        """Returns the result for rich to print."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        return html_of(self.table())


def html_of(renderable: Any) -> str:
    """Returns what rich would print as HTML for a notebook's cell; text in it is escaped."""
    from loopwright.process import Screen  # rich, which nothing but a notebook needs here

    console = Screen(record=True, file=io.StringIO(), width=WIDTH, force_jupyter=False)
    console.print(renderable)
    return console.export_html(inline_styles=True, code_format='<pre style="line-height:1.25">{code}</pre>')
