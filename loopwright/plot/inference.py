"""Figures of inference: what early exits cost and give, how fast a model decodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from loopwright.plot.drawing import Axes, Curve, Drawing, depth_axis, figure, finite, legend, line_style, panels, plain_log
from loopwright.plot.style import INK


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
