"""Lines over steps: an orbit is drawn as what it is, and an axis of many steps has room for the first."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from loopwright.plot.drawing import LAST_NAMED, Axes, Numbers, finite, whole_ticks
from loopwright.plot.style import INK

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
