"""Depth at test time, of the looped models that were trained on all of the text: tables and a drawing from their rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from experiments.asura.run import TEXTS
from experiments.halting.reading import SIMPLE
from experiments.leaving.reading import FIXED, MEANS, leaving
from experiments.leaving.tables import THIRDS, in_part, in_thirds
from experiments.pages import Result
from experiments.repeats.plan import ARMS, PARAMETERS, TESTED, WHOLE
from experiments.seeds import mean_loss, reports
from loopwright.plot.drawing import Axes, Drawing, line_style, panels
from loopwright.plot.style import INK

Chosen = Mapping[tuple[str, int], Sequence[Result]]
TIMES, RANDOM = 4, "Huginn-like"  # the arm whose depth in training is random
TRAINED = int(ARMS[RANDOM][0]["depth"])  # its mean depth in training, at which it stands beside others
SMALL = 0.001  # nats: up to here a difference is drawn on a straight scale, from here on by powers of ten
NAMES = {arm: label for label, arm in WHOLE.items()}


def deep_runs(kept: Chosen, arm: str) -> list[Result]:
    """Returns an arm's runs on all of the text as if they had been measured at several depths alone."""
    return [run | run["deep"] for run in kept.get((NAMES[arm], TIMES), []) if "deep" in run]


def easy_to_hard(kept: Chosen) -> dict[str, frozenset[int]]:
    """Returns the documents of `test` in three parts, by the loss that four plain layers have on each."""
    return in_thirds(reports(kept[NAMES[PARAMETERS], TIMES], "test"), 1)


def behind(runs: Sequence[Result], text: str, depth: int, documents: Collection[int] | None = None) -> list[float]:
    """Returns by how much a depth is behind the trained one, seed by seed, on all documents where none are named."""
    part = runs if documents is None else in_part(runs, text, documents)
    return [mean_loss([each], depth) - mean_loss([each], TRAINED) for each in reports(part, text)]


def hard_less_easy(kept: Chosen, runs: Sequence[Result], depth: int) -> list[float]:
    """Returns how much more hard documents of `test` lose at a depth than easy ones, seed by seed."""
    parts = easy_to_hard(kept)
    easy, hard = (behind(runs, "test", depth, parts[name]) for name in (THIRDS[0], THIRDS[-1]))
    return [one - other for one, other in zip(hard, easy, strict=True)]


def drawn(kept: Chosen) -> Mapping[str, Drawing]:
    """Returns the loss by depth, and what exit rules give beside fixed depths of as many steps."""
    runs = deep_runs(kept, RANDOM)
    return {"test-time": panels([by_depth(runs), of_rules(runs, "test")], height=3.2)} if runs else {}


def by_depth(runs: Sequence[Result]) -> Callable[[Axes], None]:
    """Returns what draws both texts: means over seeds, less the loss at the mean depth of training."""

    def draw(axes: Axes) -> None:
        for place, text in enumerate(TEXTS):
            found = reports(runs, text)
            losses = [mean_loss(found, depth) - mean_loss(found, TRAINED) for depth in TESTED[RANDOM]]
            axes.plot(TESTED[RANDOM], losses, label=f"fixed depth, {text}", **line_style(place))
        axes.set_xscale("log", base=2)
        axes.set_xticks([1, 2, 4, 8, 16], ["1", "2", "4", "8", "16"])
        axes.minorticks_off()
        axes.set_xlabel("depth")
        axes.set_ylabel(f"loss less that of depth {TRAINED}")

    return draw


def of_rules(runs: Sequence[Result], text: str) -> Callable[[Axes], None]:
    """Returns what draws each rule less the fixed depth of as many steps: means over seeds."""
    fixed = reports([leaving(run, FIXED) for run in runs], text)

    def draw(axes: Axes) -> None:
        for place, rule in enumerate(SIMPLE, start=len(TEXTS)):
            left = reports([leaving(run, rule) for run in runs], text)
            losses = [mean_loss(left, mean) - mean_loss(fixed, mean) for mean in MEANS]
            axes.plot(MEANS, losses, label=rule, **line_style(place) | {"markerfacecolor": "none", "markeredgewidth": 1.4})
        axes.axhline(0, color=INK, linewidth=0.6)
        axes.set_yscale("symlog", linthresh=SMALL)
        marks = (-SMALL, 0, SMALL, 10 * SMALL, 100 * SMALL)
        axes.set_yticks(marks, [f"{mark:g}".replace("-", "−") for mark in marks])
        axes.minorticks_off()
        axes.set_ylim(-2 * SMALL, 300 * SMALL)
        axes.set_xticks(MEANS, [str(mean) for mean in MEANS])
        axes.set_title(text, loc="left")
        axes.set_xlabel("mean steps")
        axes.set_ylabel("rule less fixed depth")

    return draw
