"""Comparisons on text of a looped model with one that is not looped, in two figures: equal FLOPs, and equal parameters.

    python -m experiments.overview experiments/results/overview

A line is the loop's loss less that of its rival on `test`, with the interval over seeds. All come from rows of the studies, by
the same functions that docs/when-to-loop.md asks. Left out are ASURA at other depths, retrofits at one rate for
all, and runs on text read 16 times that were not stopped early.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.asura.plan import WHOLE
from experiments.ouroboros.plan import AT_DEPTH, AT_ONE, CORES, ONCE_EQUAL, ONCE_LONGER, looping
from experiments.repeats.plan import FRESH, LONGER, STOPPED
from experiments.seeds import Pooled, pooled
from experiments.sft.wide import EQUAL as WIDE_EQUAL
from experiments.sft.wide import LONGER as WIDE_LONGER
from experiments.templates import asura, cores, repeats, sft, whole_text
from loopwright.plot.drawing import Axes, Drawing, figure
from loopwright.plot.style import COLOURS, INK

LOOKS = {"lower": ("loop ahead, decided", COLOURS[0], "o"), "higher": ("loop behind, decided", COLOURS[1], "s")}
UNDECIDED, ALONE = ("undecided", COLOURS[2], "D"), ("one seed", INK, "o")
LOOPS = ("ASURA", "Huginn-like")
FOUR, SIXTEEN = "text read 4 times", "text read 16 times, stopped early"
ALL_TEXT = "all of the text read four times"
PLACES = {AT_DEPTH: "placed for its depth", AT_ONE: "from layer 8"}
WIDE = "retrofit, 6 layers looped, all weights trained"


@dataclass(frozen=True)
class Line:
    """One comparison: its name, the loop's loss less its rival's, and the interval over seeds. `alone`: of one seed, with the
    interval over documents."""

    name: str
    difference: float
    low: float
    high: float
    verdict: str
    alone: bool

    @classmethod
    def of(cls, name: str, found: Pooled | None) -> Line:
        """Returns the line of a difference that was measured."""
        assert found is not None, name
        alone = len(found.seeds) == 1
        low, high = (found.low, found.high) if alone else found.over_seeds
        return cls(name, found.difference, low, high, found.verdict, alone)

    @property
    def look(self) -> tuple[str, str, str]:
        """What the legend calls it, its colour and its marker."""
        return ALONE if self.alone else LOOKS.get(self.verdict, UNDECIDED)


def scratch(rival: str) -> Iterator[Line]:
    """Yields models trained from the start on text beside plain layers."""
    for name, label in (("ASURA", WHOLE), ("bare loop", asura.NAIVE)):
        for size, found in zip(asura.sizes(), asura.both(label, rival), strict=True):
            yield Line.of(f"{name}, {size} size, one rate for all", found)
    if rival == asura.FLOPS:
        yield Line.of("ASURA, middle size, all of the text", asura.at_better_rates())
    for name in LOOPS:
        yield Line.of(f"{name}, own rates, text read once", repeats.beside(name, rival, 1))
        yield Line.of(f"{name}, own rates, text read four times", repeats.beside(name, rival, 4))
        yield Line.of(f"{name}, {SIXTEEN}", repeats.beside(name, rival, STOPPED, early=True))
        yield Line.of(f"{name}, {ALL_TEXT}", whole_text.against(name, rival))


def updates() -> Iterator[Line]:
    """Yields looped models beside four plain layers whose FLOPs go into more updates."""
    for name in LOOPS:
        for rival, text in ((LONGER, "the same text"), (FRESH, "more text")):
            yield Line.of(f"{name}, against more updates on {text}", repeats.beside(name, rival, 1))
        yield Line.of(f"{name}, against more updates, {FOUR}", repeats.beside(name, LONGER, 4))
        yield Line.of(f"{name}, against more updates, {SIXTEEN}", repeats.beside(name, LONGER, STOPPED, early=True))


def retrofits(once: str, wide_once: str) -> Iterator[Line]:
    """Yields retrofits of SmolLM2 beside the same layers run once, those with adapters and that of a wide core."""
    for how, told in PLACES.items():
        for size in CORES:
            found = pooled(cores.runs()[looping(size, how)], cores.runs()[once], "test")
            yield Line.of(f"retrofit, {size} layer{'s' * (size > 1)} looped, {told}", found)
    yield Line.of(WIDE, sft.beside(wide_once))


def equal_flops() -> list[Line]:
    """Returns the comparisons at equal or nearly equal FLOPs, those of training where layers run once got more updates."""
    return [*scratch(asura.FLOPS), *updates(), *retrofits(ONCE_LONGER, WIDE_LONGER)]


def equal_parameters() -> list[Line]:
    """Returns those at equal or nearly equal parameters and equal text, where the loop has more FLOPs."""
    return [*scratch(asura.PARAMETERS), *retrofits(ONCE_EQUAL, WIDE_EQUAL)]


def draw(lines: Sequence[Line]) -> Drawing:
    """Returns one line of a figure for each comparison, its name above it."""

    def on(axes: Axes) -> None:
        for place, line in enumerate(lines):
            word, colour, marker = line.look
            axes.annotate(line.name, (0, place - 0.36), xycoords=("axes fraction", "data"), xytext=(3, 0),
                          textcoords="offset points", fontsize=9, va="center")  # fmt: skip
            axes.vlines(0, place - 0.18, place + 0.22, color=INK, linewidth=1, zorder=0)  # not through the names
            axes.hlines(place, line.low, line.high, color=colour, linewidth=1.6)
            filled = "none" if line.alone else colour
            axes.plot(line.difference, place, marker, color=colour, markerfacecolor=filled, markersize=5, label=word)
        axes.set_ylim(len(lines) - 0.45, -0.8)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.grid(False)
        axes.set_xlabel("loss of the loop less that of its rival (nats); left of 0 the loop is ahead")
        found = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
        shown = {word: found[word] for word, _, _ in (*LOOKS.values(), UNDECIDED, ALONE) if word in found}
        axes.figure.legend(shown.values(), shown, loc="outside lower center", frameon=False, ncols=2)

    return figure(on, height=1.1 + 0.4 * len(lines))


FIGURES: dict[str, Callable[[], list[Line]]] = {"equal-flops": equal_flops, "equal-parameters": equal_parameters}


def spent_by(arm: str) -> float:
    """Returns the FLOPs of a training on text that is read once."""
    row = repeats.kept()[arm, 1][0]
    return row["tokens"] * row["flops"]


def dearer() -> str:
    """Returns how many times the FLOPs of their rivals the loops of the second figure have."""
    scratched = [each for label in (WHOLE, asura.NAIVE) for each in asura.times(label, asura.PARAMETERS, "flops")]
    scratched += [spent_by(arm) / spent_by(asura.PARAMETERS) for arm in LOOPS]
    cut = [cores.training(looping(size, how)) / cores.training(ONCE_EQUAL) for how in PLACES for size in CORES]
    cost = [*scratched, *cut, sft.cost()]
    return f"{min(cost):.1f} to {max(cost):.1f} times the FLOPs"


def more_updates() -> list[float]:
    """Returns how many times the FLOPs of the loops the four plain layers with more updates have."""
    return [spent_by(LONGER) / spent_by(arm) for arm in LOOPS]


def named(lines: Iterable[Line], verdict: str) -> list[str]:
    """Returns the names of the comparisons with seeds that have a verdict."""
    return [line.name for line in lines if not line.alone and line.verdict == verdict]


def draw_all() -> dict[str, Drawing]:
    """Returns both figures by name."""
    return {name: draw(lines()) for name, lines in FIGURES.items()}


def main() -> None:
    """Writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the figures go")
    folder = parser.parse_args().folder
    for name, drawing in draw_all().items():
        print(drawing.save(folder / f"{name}.svg"))


if __name__ == "__main__":
    main()
