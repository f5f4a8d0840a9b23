"""The study's figures: steps taken by what tokens want, what rules give at each mean depth; a panel per model, a line per rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from experiments.halting.shown import SHOWN, Shown
from experiments.halting.tables import Row, models_of, rules_of
from loopwright.plot.drawing import Axes, Drawing, line_style, panels
from loopwright.plot.style import INK

FEWEST = 20  # tokens that a need must have to be drawn
Seeds = Sequence[Mapping[str, Any]]


def draw(rows: Sequence[Row]) -> dict[str, Drawing]:
    """Returns both figures of every task that has rows, by name."""
    drawings = {}
    for task, shown in SHOWN.items():
        models = models_of(rows, task)
        if models:
            drawings[f"{task}-needs"] = panels([by_need(name, seeds, shown) for name, seeds in models.items()], height=2.6)
            drawings[f"{task}-depth"] = panels([by_depth(name, seeds, shown) for name, seeds in models.items()], height=2.6)
    return drawings


def by_need(name: str, seeds: Seeds, shown: Shown) -> Callable[[Axes], None]:
    """Returns what draws steps taken by what tokens want where every rule has the oracle's mean depth; means over seeds."""
    counts = seeds[0]["needs"]
    drawn = [need for need, count in enumerate(counts) if count >= FEWEST]

    places = [shown.first + need for need in drawn]

    def draw_panel(axes: Axes) -> None:
        axes.plot(
            places,
            over(seeds, lambda seed: seed["oracle"]["by_need"], drawn),
            color=INK,
            linewidth=1.4,
            linestyle=(0, (2, 2)),
            label="oracle",
        )
        for place, rule in enumerate(rules_of(seeds[0])):
            taken = over(seeds, lambda seed, rule=rule: seed["rules"][rule]["by_need"], drawn)
            style = line_style(place, marker=False) | {"linewidth": 1.2 if place else 2}
            axes.plot(places, taken, label=rule if place else "learned", **style)
        axes.set_title(name, loc="left")
        axes.locator_params(axis="x", integer=True)
        axes.set_xlabel(shown.groups)
        axes.set_ylabel("steps taken")

    return draw_panel


def by_depth(name: str, seeds: Seeds, shown: Shown) -> Callable[[Axes], None]:
    """Returns what draws what rules give over the mean depth; means over seeds."""
    grid = seeds[0]["grid"]

    def draw_panel(axes: Axes) -> None:
        steps = range(1, len(seeds[0]["fixed"]["loss"]) + 1)
        fixed = over(seeds, lambda seed: seed["fixed"][shown.gives], range(len(steps)))
        style: dict[str, Any] = {"color": INK, "linewidth": 1.4, "linestyle": (0, (2, 2))}
        axes.plot(steps, [shown.scale * value for value in fixed], label="fixed depth", **style)
        for place, rule in enumerate(rules_of(seeds[0])):
            known = [i for i in range(len(grid)) if all(seed["rules"][rule][shown.gives][i] is not None for seed in seeds)]
            given = over(seeds, lambda seed, rule=rule: seed["rules"][rule][shown.gives], known)
            style = line_style(place, marker=False) | {"linewidth": 1.2 if place else 2}
            axes.plot([grid[i] for i in known], [shown.scale * x for x in given], label=rule if place else "learned", **style)
        axes.set_title(name, loc="left")
        axes.set_xlabel("mean steps a token")
        axes.set_ylabel(shown.title)

    return draw_panel


def over(seeds: Seeds, values: Callable[[Mapping[str, Any]], Sequence[float]], places: Sequence[int]) -> list[float]:
    """Returns the means over seeds of some entries of a list."""
    lists = [values(seed) for seed in seeds]
    return [fmean(each[place] for each in lists) for place in places]
