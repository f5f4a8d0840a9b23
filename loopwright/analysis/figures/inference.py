"""Figures of inference: what early exits cost and give, how fast a model decodes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from loopwright.analysis.figures.drawing import INK, Axes, Curve, depth_axis, figure, finite, legend, line_style, plain_log


def exit_trade_off(
    rules: Mapping[str, Curve],
    *,
    fixed: Curve,
    oracle: Curve,
    random: Curve,
    label: str = "loss (nats a token)",
    scale: float = 1,
    path: str | Path | None = None,
) -> str:
    """Returns loss (or exact match) over mean steps: a line per exit rule, fixed depths, the oracle, and crosses where the same
    shares of tokens leave at random."""

    def draw(axes: Axes) -> None:
        axes.plot(
            *finite(fixed.x, fixed.y, scale), color=INK, linewidth=1.4, linestyle=(0, (2, 2)), marker=".", label="fixed depth"
        )
        axes.plot(*finite(oracle.x, oracle.y, scale), color=INK, linewidth=1, alpha=0.5, label="oracle")
        axes.plot(*finite(random.x, random.y, scale), "x", color=INK, alpha=0.35, markersize=4, label="random depth")
        for place, (name, curve) in enumerate(rules.items()):
            axes.plot(*finite(curve.x, curve.y, scale), label=name, linewidth=1.8, **line_style(place))
        axes.set_xlabel("mean steps a token")
        axes.set_ylabel(label)
        legend(axes)

    return figure(draw, path)


def throughput_by_batch(speeds: Mapping[str, Curve], bounds: Mapping[str, Curve], *, path: str | Path | None = None) -> str:
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

    return figure(draw, path)
