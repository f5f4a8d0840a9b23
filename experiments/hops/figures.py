"""The study's figures: accuracy by number of hops, loss on the validation rows by update, accuracy by hops and depth."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from experiments.hops.plan import ARMS
from experiments.hops.reading import TRAINED, at_depth, at_own_depth
from experiments.pages import Result
from loopwright.plot.drawing import Axes, Curve, Drawing, figure, legend, line_style, log_axis, panels
from loopwright.plot.style import INK
from loopwright.plot.training import length_by_depth_heatmap

CHANCE = 25
SHOWN_HOPS = (1, 2, 4, 8, 12, 16, 24, 32)
SHOWN_DEPTHS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 32)

Arms = Mapping[str, Sequence[Result]]


def draw_all(arms: Arms) -> dict[str, Drawing]:
    """Returns every figure by its name."""
    if not arms:
        return {}
    grids = {f"depth-{arm.replace('⊗', 'x')}": by_depth(runs) for arm, runs in arms.items() if ARMS[arm][1] > 1}
    hops = panels([by_hops(arm, runs) for arm, runs in arms.items()], height=2.3)
    return {"hops": hops, "learning": learning(arms), **grids}


def by_hops(arm: str, runs: Sequence[Result]) -> Callable[[Axes], None]:
    """Returns what draws one arm: exact match by number of hops, a line per seed; what was trained is shaded."""

    def draw(axes: Axes) -> None:
        axes.axvspan(TRAINED[0], TRAINED[-1], color=INK, alpha=0.07, linewidth=0)
        axes.axhline(CHANCE, color=INK, linewidth=1, linestyle=(0, (2, 2)))
        for run in runs:
            exact = at_own_depth(run)
            line = line_style(run["seed"]) | {"markersize": 3}
            axes.plot(list(exact), [100 * value for value in exact.values()], label=f"seed {run['seed']}", linewidth=1.4, **line)
        axes.set_title(f"{arm}: {runs[0]['parameters'] / 1e6:.2f} M", loc="left")
        axes.set_xticks([1, 8, 16, 24, 32])
        axes.set_ylim(-3, 103)
        axes.set_xlabel("hops")
        axes.set_ylabel("exact (%)")

    return draw


def learning(arms: Arms) -> Drawing:
    """Returns the loss on the validation rows by update: the mean of each arm's seeds, and every seed faintly."""

    def draw(axes: Axes) -> None:
        curves = {}
        for place, (arm, runs) in enumerate(arms.items()):
            updates = [update + 1 for update, _ in runs[0]["valid"]]
            seeds = [[loss for _, loss in run["valid"]] for run in runs]
            mean = [sum(values) / len(values) for values in zip(*seeds, strict=True)]
            curves[arm] = Curve(updates, mean)
            for losses in seeds:
                axes.plot(updates, losses, linewidth=0.8, alpha=0.4, **line_style(place, marker=False))
            axes.plot(updates, mean, label=arm, linewidth=2, **line_style(place))
        log_axis(axes, curves)
        axes.set_xlabel("update")
        axes.set_ylabel("loss on the validation rows")
        legend(axes)

    return figure(draw)


def by_depth(runs: Sequence[Result]) -> Drawing:
    """Returns exact match as a grid: a row per number of hops, a column per depth, the mean over seeds; trained hops in bold."""
    rows = [f"{hops} hop{'s' * (hops > 1)}" for hops in SHOWN_HOPS]
    values = [[sum(at_depth(run, hops, depth) for run in runs) / len(runs) for depth in SHOWN_DEPTHS] for hops in SHOWN_HOPS]
    bold = [row for row, hops in zip(rows, SHOWN_HOPS, strict=True) if hops in TRAINED]
    return length_by_depth_heatmap(values, rows=rows, columns=SHOWN_DEPTHS, trained_rows=bold)
