"""Panels of states (Figures 2, 3, 5 and 7 of the paper): the path of one sum's state in its own first two principal directions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from experiments.stars.plan import KINDS, PLACES
from loopwright.plot.drawing import END, START, Axes, Drawing, blend, panels
from loopwright.plot.figures import EARLY, LATE

SHADES = 4  # of a path, from first to last
COLUMNS = 4
Labelled = Sequence[Mapping[str, Any]]  # the runs of a label


def with_path(labels: Mapping[str, Labelled]) -> dict[str, Mapping[str, Any]]:
    """Returns the path of each label's first seed that has one whose states are finite."""
    found = {}
    for label, runs in labels.items():
        own = next((run["path"] for run in runs if run.get("path") and run["path"]["points"]), None)
        if own is not None:
            found[label] = own
    return found


def path_panels(paths: Mapping[str, Mapping[str, Any]]) -> Drawing:
    """Returns a panel for each path: blue at first, orange at last, each direction to its own scale; below it the size of the
    state after the first step and the last, and the shares of the variance."""
    return panels([_panel(label, path) for label, path in paths.items()], columns=COLUMNS, height=2.4)


def named(found: Mapping[str, Mapping[str, Labelled]], group: str) -> Mapping[str, Labelled]:
    """Returns the runs of a group by what their panels are called: layer norms by name, and before layers around the loop the same
    model without them."""
    labels, bare = found[group], found.get("brief_norms", {})
    if group == "brief_norms":
        return {label if " " in label else f"{label} {KINDS[0]}": runs for label, runs in labels.items()}
    if group != "brief_static":
        return labels
    around: dict[str, Labelled] = {}
    for place in ("pre-sandwich", "post-sandwich"):
        around |= {f"{place} 0+core+0": bare[place]} if place in bare else {}
        around |= {label: runs for label, runs in labels.items() if label.startswith(f"{place} ") and "core" in label}
    return around | {label: runs for label, runs in labels.items() if label not in around}


def title(label: str) -> str:
    """Returns what is written over a panel: a placement of norms or a weight on a line of its own."""
    first, _, rest = label.partition(" ")
    return f"{first}\n{rest}" if rest and (first in PLACES or first.startswith("λ=")) else label


def short(points: Sequence[Sequence[float]]) -> list[tuple[float, ...]]:
    """Returns a path with each direction to a three-hundredth of its own reach: no axis is shown, and the file is half as large."""
    columns = list(zip(*points, strict=True))
    reach = [max(column) - min(column) or 1.0 for column in columns]
    return [tuple(round(300 * x / wide) for x, wide in zip(point, reach, strict=True)) for point in points]


def _panel(label: str, path: Mapping[str, Any]) -> Callable[[Axes], None]:
    points = short(path["points"])
    last = len(points) - 1
    shares = " + ".join(f"{100 * share:.0f}" for share in path["explained"])

    def draw(axes: Axes) -> None:
        cuts = [round(i * last / SHADES) for i in range(SHADES + 1)]
        for place, (first, end) in enumerate(pairwise(cuts)):
            piece = points[first : end + 1]
            axes.plot(*zip(*piece, strict=True), color=blend(EARLY, LATE, place / (SHADES - 1)), linewidth=1.2)
        axes.plot(*points[0], label="start", **START)
        axes.plot(*points[-1], label=f"after {last} steps", **END)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.margins(0.1)
        axes.set_title(title(label), loc="left", fontsize=8)
        axes.set_xlabel(f"size {path['size'][1]:,.0f} → {path['size'][-1]:,.0f}; {shares} % of variance", fontsize=8)

    return draw
