"""Figures of where states go, from a saved summary: fixed points, all pairs of depths, paths, orbits, answers, attention maps."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from loopwright.analysis.drawing import INK, Axes, finite, mosaic, panels, shades
from loopwright.analysis.figures_stages import LABELS, LAYER_ENDS, STEP_ENDS
from loopwright.analysis.places import Places
from loopwright.analysis.summary import grid

Metrics = Mapping[str, Any]
MOST_CELLS = 64  # of a matrix's side: larger ones are thinned, or the file grows with their square


def same_and_far(metrics: Metrics, *, layer: int = 0, path: str | Path | None = None) -> str:
    """Returns one layer against its own fixed point and against the farthest layer's: where both meet, the fixed point is
    degenerate."""

    def draw(kind: str) -> Callable[[Axes], None]:
        def inner(axes: Axes) -> None:
            for name, label, colour in (
                (f"fixed_{kind}", "its own", LAYER_ENDS[0]),
                (f"far_{kind}", "the farthest layer's", LAYER_ENDS[1]),
            ):
                values = [row[layer] for row in grid(metrics, name)]
                axes.plot(*finite(range(1, len(values) + 1), values), color=colour, linewidth=1.8, label=label)
            axes.set_xlabel("step")
            axes.set_ylabel(LABELS[f"fixed_{kind}"])

        return inner

    return panels([draw("cosine"), draw("norm")], path)


def pair_matrices(metrics: Metrics, *, path: str | Path | None = None) -> str:
    """Returns every pair of realised depths: how alike the residuals are, and how far apart the attention maps."""
    drawn = (("attention", "attention distance", "viridis_r"), ("residual", "residual cosine", "viridis"))
    return panels([lambda axes, each=each: _matrix(axes, metrics["pairs"][each[0]], *each[1:]) for each in drawn], path, height=3.1)


def _matrix(axes: Axes, values: Sequence[Sequence[float | None]], title: str, colours: str) -> None:
    every = -(-len(values) // MOST_CELLS)
    shown = [[math.nan if v is None else v for v in row[::every]] for row in values[::every]]
    image = mosaic(axes, shown, colours)
    axes.set_aspect("equal")
    axes.set_title(title, loc="left", fontsize=9, fontweight="normal")
    axes.set_xlabel("layer as run" + (f", 1 of {every}" if every > 1 else ""))
    _bar(axes, image)


def _bar(axes: Axes, image: Any) -> None:
    bar = axes.figure.colorbar(image, ax=axes, pad=0.02, aspect=25, shrink=0.8)
    bar.outline.set_visible(False)


def cycles(metrics: Metrics, *, path: str | Path | None = None) -> str:
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
                label = f"layer {layer}" if layer in (0, layers - 1) else "_"
                at = [step[layer] for step in window]
                axes.plot(
                    [p[0] for p in at], [p[1] for p in at], linestyle="none", marker="o", markersize=3, color=colour, label=label
                )
            axes.set_title(f"steps {start + 1}–{start + len(window)}", loc="left", fontsize=9.5)
            for (low, high), scale in zip(limits, (axes.set_xlim, axes.set_ylim), strict=True):
                margin = 0.08 * (high - low) or 1
                scale(low - margin, high + margin)
            axes.set_xticks([])
            axes.set_yticks([])

        return inner

    return panels([draw(start) for start in starts], path, height=2.6)


def layer_paths(metrics: Metrics, *, path: str | Path | None = None) -> str:
    """Returns the last token's path over the steps at each of up to eight layers, in that layer's own two directions."""
    paths = metrics["path"]["layers"]
    chosen = sorted({round(i * (len(paths) - 1) / 7) for i in range(8)}) if len(paths) > 8 else range(len(paths))

    def draw(layer: int) -> Callable[[Axes], None]:
        def inner(axes: Axes) -> None:
            points = paths[layer]
            for colour, a, b in zip(shades(*STEP_ENDS, len(points) - 1), points, points[1:], strict=False):
                axes.plot([a[0], b[0]], [a[1], b[1]], color=colour, linewidth=1.2)
            axes.set_title(f"layer {layer}", loc="left", fontsize=9.5)
            axes.set_xticks([])
            axes.set_yticks([])

        return inner

    return panels([draw(layer) for layer in chosen], path, columns=4, height=1.9)


def orbit_parts(metrics: Metrics, *, path: str | Path | None = None) -> str:
    """Returns the orbit of largest amplitude as the classifier sees it: the series and its trend, windowed, its spectrum."""
    orbit = metrics["limits"]["orbit"]

    def line(*names: str, x: str, y: str) -> Callable[[Axes], None]:
        def inner(axes: Axes) -> None:
            for name, colour in zip(names, (LAYER_ENDS[0], "#D55E00"), strict=False):
                values = orbit[name]
                label = name if len(names) > 1 else "_"
                axes.plot(*finite(range(1, len(values) + 1), values), color=colour, linewidth=1.4, label=label)
            axes.set_xlabel(x)
            axes.set_ylabel(y)

        return inner

    parts = [
        line("series", "trend", x="step", y="cosine to last step"),
        line("windowed", x="step", y="rest, windowed"),
        line("spectrum", x="cycles in the window", y="magnitude"),
    ]
    return panels(parts, path, height=2.5)


def together(metrics: Metrics, *, path: str | Path | None = None) -> str:
    """Returns how often one limit occurs on a token at some layer, given that another one does: rows are given."""
    values, labels = metrics["limits"]["together"], metrics["limits"]["labels"]

    def draw(axes: Axes) -> None:
        shown = [[math.nan if v is None else v for v in row] for row in values]
        mosaic(axes, shown, "cividis", low=0, high=1)
        for i, row in enumerate(shown):
            for j, value in enumerate(row):
                word = "–" if math.isnan(value) else f"{value:.2f}"
                axes.text(
                    j + 0.5, i + 0.5, word, ha="center", va="center", color="#ffffff" if value < 0.55 else "#000000", fontsize=9
                )
        axes.set_xticks([i + 0.5 for i in range(len(labels))], labels)
        axes.set_yticks([i + 0.5 for i in range(len(labels))], labels)
        axes.set_xlabel("also seen")
        axes.set_ylabel("given")

    return panels([draw], path, columns=1, height=3.2)


def answers(metrics: Metrics, *, path: str | Path | None = None) -> str:
    """Returns what the steps say next: the share of examples already at the last answer and that flips, entropy, and change."""
    said, by_step = metrics["answers"], metrics["by_step"]
    flips = [None if value is None else 100 * value for value in said["flips"]]
    lines = {
        "examples (%)": {"at the last answer": [100 * value for value in said["final"]], "flips": flips},
        "entropy (nats)": {"_": by_step["answer_entropy"]["mean"]},
        "KL from last step (nats)": {"_": by_step["answer_change"]["mean"]},
    }

    def draw(label: str) -> Callable[[Axes], None]:
        def inner(axes: Axes) -> None:
            for (name, values), colour in zip(lines[label].items(), (LAYER_ENDS[0], "#D55E00"), strict=False):
                axes.plot(*finite(range(1, len(values) + 1), values), color=colour, linewidth=1.6, label=name)
            if said.get("depth"):
                axes.axvline(said["depth"], color=INK, linewidth=0.9, linestyle=(0, (2, 2)))
            axes.set_xlabel("step")
            axes.set_ylabel(label)

        return inner

    return panels([draw(label) for label in lines], path, height=2.5)


def floorplan(metrics: Metrics, *, path: str | Path | None = None) -> str:
    """Returns the mean attention map of every layer of a few steps on one prompt, a row per step, the first at the bottom."""
    maps = metrics["floorplan"]
    places = Places(**maps["places"])
    rows: list[list[int]] = [list(range(places.prelude))] if places.prelude else []
    rows += [[places.index("core", t, i) for i in range(places.core)] for t in range(places.steps)]
    rows += [[places.index("coda", 0, i) for i in range(places.coda)]] if places.coda else []
    columns = max(map(len, rows))
    order = [row[i] if i < len(row) else None for row in reversed(rows) for i in range(columns)]

    def draw(place: int | None) -> Callable[[Axes], None]:
        def inner(axes: Axes) -> None:
            if place is None:
                axes.set_axis_off()
                return
            mosaic(axes, maps["maps"][place], "viridis", low=0)
            axes.set_aspect("equal")
            stack, step, layer = places.name(place)
            axes.set_title(f"step {step + 1}, {layer}" if stack == "core" else f"{stack} {layer}", fontsize=6, fontweight="normal")
            axes.set_xticks([])
            axes.set_yticks([])

        return inner

    return panels([draw(place) for place in order], path, columns=columns, height=1.05)


FIGURES: dict[str, tuple[str, Callable[..., str]]] = {
    # file: what the summary must hold, and the function that draws it
    "same-and-farthest": ("convergence", same_and_far),
    "pairs": ("pairs", pair_matrices),
    "cycles": ("path", cycles),
    "layer-paths": ("path", layer_paths),
    "limits-together": ("limits", together),
    "answers": ("answers", answers),
    "floorplan": ("floorplan", floorplan),
}
