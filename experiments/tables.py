"""The page of a study's rows, the same for every study: arms with their numbers, arms against one another, what was not run.

What a study adds is data: what stands in a column, which arms are compared. What a page of docs/ says of them is in its template.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from experiments.halting.reading import SIMPLE
from experiments.leaving.reading import FIXED, MEANS, leaving
from experiments.pages import (
    Result,
    asked_tables,
    by_seed,
    difference,
    missing_part,
    number,
    percent,
    results,
    save_all,
    signed,
    table,
)
from experiments.seeds import RULE, over_seeds, pooled
from experiments.side_by_side import Run
from loopwright.plot.drawing import Drawing

RESULTS = Path(__file__).parent / "results"
DIGITS = 4  # of numbers that a column says nothing else of

Runs = Sequence[Result]
Arms = Mapping[str, Runs]
Columns = Mapping[str, Callable[[Result], Any]]
Pair = tuple[str, str, Runs, Runs]  # both names, then the runs of both


@dataclass(frozen=True)
class Page:
    """What a page of rows is made of, from committed files of `results/` where no other is given."""

    title: str
    files: tuple[str, ...]
    parts: Callable[[list[Result]], Mapping[str, str]]  # heading → table
    planned: Callable[[list[Result]], Iterable[Run]]
    draw: Callable[[list[Result]], Mapping[str, Drawing]] = lambda found: {}
    counts: Callable[[Result], bool] = bool
    name: str = "table.md"
    about: tuple[str, ...] = (RULE,)

    def read(self, paths: Sequence[str] = ()) -> list[Result]:
        """Returns the rows in the order of the plan."""
        found = results(paths or [str(RESULTS / file) for file in self.files], (), self.counts)
        place = {run.name: number for number, run in enumerate(self.planned(found))}
        return sorted(found, key=lambda run: place.get(run["name"], len(place)))

    def text(self, found: list[Result], made_by: str) -> str:
        """Returns the whole page."""
        lines = [f"# {self.title}", f"`python -m {made_by}` made this page from {', '.join(self.files)}.", *self.about]
        for heading, part in self.parts(found).items():
            lines += [f"## {heading}", part]
        return "\n\n".join([*lines, *missing_part(found, self.planned(found))]) + "\n"

    def main(self, about: str | None, made_by: str) -> None:
        """Writes the page and its figures from the rows that the command line names."""
        sources, folder = asked_tables(about)
        found = self.read(sources)
        (folder / self.name).write_text(self.text(found, made_by))
        for path in [folder / self.name, *save_all(self.draw(found), folder)]:
            print(path)


def arm_table(arms: Arms, columns: Columns, name: str = "arm") -> str:
    """Returns the numbers of every arm, seeds side by side; what is the same of all seeds stands once."""
    head = [name, "seeds", *columns]
    return table(head, (
        [label, ", ".join(str(run["seed"]) for run in runs), *(beside(map(value, runs)) for value in columns.values())]
        for label, runs in ((label, sorted(runs, key=of("seed"))) for label, runs in arms.items()) if runs
    ))  # fmt: skip


def beside(values: Iterable[Any]) -> str:
    """Returns values seed by seed, one alone where all are the same."""
    said = [told(value) for value in values]
    return said[0] if len(set(said)) == 1 else " / ".join(said)


def told(value: Any) -> str:
    """Returns a value as a cell tells it."""
    if isinstance(value, float):
        return "–" if math.isnan(value) else f"{'−' * (value < 0)}{abs(value):.{DIGITS}g}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def of(*keys: Any) -> Callable[[Result], Any]:
    """Returns what reads an entry of a row, such as `of("losses", -1)`; none where a row lacks it."""

    def read(run: Result) -> Any:
        value: Any = run
        for key in keys:
            if not value or (isinstance(value, Mapping) and key not in value):
                return None
            value = value[key]
        return value

    return read


def columns_of(*names: str) -> dict[str, Callable[[Result], Any]]:
    """Returns columns that are entries of a row by their own names."""
    return {name: of(name) for name in names}


def loss_columns(texts: Iterable[str], depths: Iterable[int | None] = (None,)) -> dict[str, Callable[[Result], Any]]:
    """Returns a column for each text and depth; without a depth that of the last one measured."""

    def loss(text: str, depth: int | None, run: Result) -> Any:
        held = run["texts"].get(text)
        if held is None or depth not in (None, *held["depth"]):
            return None
        value = held["loss"][-1 if depth is None else held["depth"].index(depth)]
        return None if value is None else number(value)

    return {
        text if depth is None else f"{text}, depth {depth}": partial(loss, text, depth) for text in texts for depth in depths
    }  # fmt: skip


def named_pairs(arms: Arms, names: Iterable[tuple[str, str]]) -> Iterator[Pair]:
    """Yields the pairs of arms that were both run."""
    yield from ((first, second, arms[first], arms[second]) for first, second in names if arms.get(first) and arms.get(second))


def pair_table(pairs: Iterable[Pair], texts: Sequence[str], depths: Sequence[int | None] = (None,)) -> str:
    """Returns losses of arms less those of others on each text: at each equal depth, and (None) both at their best."""
    lines = []
    for first, second, runs, others in pairs:
        for text in texts:
            for depth in depths:
                if found := pooled(runs, others, text, depth):
                    several = len(found.seeds) > 1
                    low, high = found.over_seeds
                    told = [signed(found.difference, found.low, found.high)]
                    told += [f"{difference(low)} to {difference(high)}" if several else "–", by_seed(found.of_seeds)]
                    told.append(percent(fmean(found.won), 0))
                    told.append(found.verdict if several else f"{found.verdict}, one seed")
                    lines.append([first, second, text, ", ".join(map(str, dict.fromkeys(found.depths))), *told])
    head = ["first", "second", "text", "depths", "difference of losses (95 %, documents)", "95 % over seeds", "by seed"]
    return table([*head, "passages won", "the first's loss is"], lines)


def points_table(
    pairs: Iterable[Pair], what: str, value: Callable[[Result], float], other: Callable[[Result], float] | None = None
) -> str:
    """Returns a number of arms less that of others, or less another number of them, paired by seed."""
    lines = []
    for first, second, runs, others in pairs:
        there = {run["seed"]: run for run in others}
        points = [value(run) - (other or value)(there[run["seed"]]) for run in runs if run["seed"] in there]
        if points:
            low, high = over_seeds(points)
            verdict = ("decided" if low > 0 or high < 0 else "undecided") if len(points) > 1 else "one seed"
            mean = f"{number(fmean(points), 2)} ({number(low, 2)} to {number(high, 2)})"
            lines.append([first, second, " / ".join(number(each, 2) for each in points), mean, verdict])
    return table(["first", "second", f"{what}, by seed", "mean (95 % over seeds)", ""], lines)


def exit_table(runs: Runs, text: str) -> str:
    """Returns exit rules less fixed depths of as many steps on average, and each rule at the limit that it has unasked."""
    if not runs:
        return table(["rule"], [])
    fixed = [leaving(run, FIXED) for run in runs]
    against = ((rule, FIXED, [leaving(run, rule) for run in runs], fixed) for rule in SIMPLE)
    own = ([beside(run["exits"][text][rule]["own"][place] for run in runs) for place in (0, 1)] for rule in SIMPLE)
    unasked = ([rule, *cells] for rule, cells in zip(SIMPLE, own, strict=True))
    return pair_table(against, (text,), MEANS) + "\n\n" + table(["rule, at its own limit", "mean steps", "loss"], unasked)
