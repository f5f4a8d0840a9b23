"""Figures from plain numbers, in one style; `save` writes any of them as SVG or PNG, light or dark, for a page, column or slide."""

from __future__ import annotations

from loopwright.plot.drawing import Curve, Drawing, figure, panels
from loopwright.plot.inference import TradeOff, exit_trade_off, throughput_by_batch
from loopwright.plot.style import SIZES, STYLES
from loopwright.plot.training import (
    Radius,
    accuracy_by_depth,
    length_by_depth_heatmap,
    loss_by_depth,
    loss_curves,
    radius_bars,
    radius_by_depth,
    state_paths,
)

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
