"""The study's figures: accuracy by number of hops, loss on the validation rows by update, accuracy by hops or swaps and depth, and
accuracy by steps for easy and hard rows with what exit rules take."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from experiments.hops.depth_tables import exit_means, models
from experiments.hops.plan import ARMS, HARDNESS, SWAPS_OWN
from experiments.hops.reading import TRAINED, at_depth, at_own_depth, at_own_rates, by_arm, exact_of
from experiments.pages import Result
from loopwright.plot.drawing import Axes, Curve, Drawing, depth_axis, figure, legend, line_style, log_axis, panels
from loopwright.plot.figures import length_by_depth_heatmap
from loopwright.plot.style import INK

CHANCE = 25
SHOWN_HOPS = (1, 2, 4, 8, 12, 16, 24, 32)
SHOWN_DEPTHS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 32)

RULE = "entropy:0.1"
# what is shown of test-time depth: title → group and model, at its own rate where more than one was tried
SHOWN = {
    "hops, 8 steps": ("compared", "1⊗8, as the recipe"),
    "hops, 4 to 12 steps": ("random", "1⊗8, depth 4 to 12"),
    "swaps, 8 steps": ("chain_rates", f"1⊗8, all in sight, rate {SWAPS_OWN:g}"),
    "swaps, 4 to 12 steps": ("chain", "1⊗8, all in sight, depth 4 to 12"),
    "window, 16 steps": ("chain", "1⊗16, window 2"),
    "window, 8 to 24 steps": ("chain", "1⊗16, window 2, depth 8 to 24"),
}
# open and of four forms and sizes, so that marks at nearly the same place are all seen
MARKS = {
    group: {
        "marker": form,
        "markersize": size,
        "markerfacecolor": "none",
        "markeredgewidth": 1.4,
        "linestyle": "none",
        "clip_on": False,
    }
    for group, form, size in zip(HARDNESS, "osD^", (10, 8, 5.5, 8), strict=True)
}
SWAPS = {"unit": "swap", "shown": (1, 2, 4, 8, 12, 16, 24, 32, 48, 64), "depths": (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)}
GRIDS = {"swaps-all": "swaps, 8 steps", "swaps-window": "window, 16 steps"}

Arms = Mapping[str, Sequence[Result]]


def draw_all(found: Sequence[Result]) -> dict[str, Drawing]:
    """Returns every figure by its name."""
    grids = {f"depth-{arm.replace('⊗', 'x')}": by_depth(runs) for arm, runs in at_own_rates(found).items() if ARMS[arm][1] > 1}
    return compared_figures(by_arm(run for run in found if run["group"] == "compared")) | grids | depth_figures(found)


def depth_figures(found: Sequence[Result]) -> dict[str, Drawing]:
    """Returns the figures of random depth, of swaps and of exits, for what was run."""
    arms = {name: runs for name, (group, label) in SHOWN.items() if (runs := models(found, group).get(label))}
    grids = {name: by_depth(arms[title], **SWAPS) for name, title in GRIDS.items() if title in arms}
    return grids | (
        {"test-time": panels([by_steps(name, runs) for name, runs in arms.items()], height=2.4, legend_columns=2)} if arms else {}
    )


def compared_figures(arms: Arms) -> dict[str, Drawing]:
    """Returns the figures of the arms side by side."""
    if not arms:
        return {}
    hops = panels([by_hops(arm, runs) for arm, runs in arms.items()], height=2.3)
    return {"hops": hops, "learning": learning(arms)}


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
        axes.set_ylabel("validation loss (nats)")
        legend(axes)

    return figure(draw)


def by_depth(
    runs: Sequence[Result], *, unit: str = "hop", shown: Sequence[int] = SHOWN_HOPS, depths: Sequence[int] = SHOWN_DEPTHS
) -> Drawing:
    """Returns exact match as a grid: a row per number of hops, a column per depth, the mean over seeds; trained hops in bold."""
    rows = [f"{hops} {unit}{'s' * (hops > 1)}" for hops in shown]
    values = [[sum(at_depth(run, hops, depth) for run in runs) / len(runs) for depth in depths] for hops in shown]
    bold = [row for row, hops in zip(rows, shown, strict=True) if hops in TRAINED]
    return length_by_depth_heatmap(values, rows=rows, columns=depths, trained_rows=bold)


def by_steps(name: str, runs: Sequence[Result]) -> Callable[[Axes], None]:
    """Returns what draws one model: exact match by steps for rows of each hardness, the mean over seeds, and open marks where a
    rule of the engine leaves: at its mean steps. Of a model whose exits were not measured the panel says so."""
    measured = all(run.get("exits") for run in runs)

    def draw(axes: Axes) -> None:
        depths = next(iter(runs[0]["tests"].values()))["depth"]
        axes.axvspan(*trained_depths(runs[0]), color=INK, alpha=0.07, linewidth=0)
        for place, group in enumerate(HARDNESS):
            exact = [100 * sum(exact_of(run, group, depth) for run in runs) / len(runs) for depth in depths]
            style = line_style(place, marker=False)
            axes.plot(depths, exact, label=group, linewidth=1.4, **style)
            if measured:
                steps, kept = exit_means(runs, RULE, group, max(runs[0]["exits"], key=int))
                axes.plot([steps], [100 * kept], label=f"{group}: leaves", color=style["color"], **MARKS[group])
        if not measured:
            axes.text(0.03, 0.55, "exits not\nmeasured", transform=axes.transAxes, fontsize="small")
        axes.set_title(name, loc="left")
        depth_axis(axes, {name: Curve(depths, [])})
        axes.set_ylim(-3, 103)
        axes.set_ylabel("exact (%)")

    return draw


def trained_depths(run: Result) -> tuple[float, float]:
    """Returns the least and the largest depth that a run was trained at, as its label says; around a fixed depth a narrow strip."""
    said = re.search(r"depth (\d+) to (\d+)", run["label"])
    steps = ARMS[run["arm"]][1]
    return (float(said[1]), float(said[2])) if said else (steps * 0.95, steps * 1.05)
