"""How tables and figures tell each task: what a rule gives, what a token wants, what intervals are drawn over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from experiments.halting.reading import SIMPLE


@dataclass(frozen=True)
class Shown:
    """`gives` is what a rule gives, by its name in the rows; `at_target` the same at the oracle's mean depth; `write` makes a cell
    of its values over seeds, and `scale` multiplies it in figures; `depths` are those of its table. The learned rule is compared
    with `others`, at mean depths `along` too; `beside` stands beside them at the oracle's mean depth. `first` is the number that a
    figure gives the first group of tokens."""

    gives: str
    at_target: str
    title: str
    scale: float
    write: Callable[[Sequence[float | None]], str]
    wants: str
    groups: str
    over: str
    depths: tuple[float, ...]
    along: tuple[float, ...]
    others: tuple[str, ...]
    beside: tuple[str, ...] = ()
    first: int = 0


def percent(values: Sequence[float | None]) -> str:
    """Returns the mean in per cent; a dash where a value is missing."""
    known = [value for value in values if value is not None]
    return f"{100 * fmean(known):.1f}" if len(known) == len(values) else "–"


def number(values: Sequence[float | None], digits: int = 2) -> str:
    """Returns the mean; a dash where a value is missing."""
    known = [value for value in values if value is not None]
    return f"{fmean(known):.{digits}f}" if len(known) == len(values) else "–"


def nats(values: Sequence[float | None]) -> str:
    """Returns the mean of losses; a dash where a value is missing."""
    return number(values, 4)


SHOWN = {
    "columns": Shown(
        "exact", "exact_at_target", "exact match (%)", 100, percent, "steps needed", "steps needed", "rows",
        (2.0, 3.0, 4.0, 6.0), (2.0, 3.0, 4.0), SIMPLE,
    ),
    "text": Shown(
        "loss", "at_target", "loss (nats a token)", 1, nats, "nats gained by depth", "tenth, by gain from depth", "text",
        (1.5, 2.0, 3.0, 4.0, 5.0), (2.0, 3.0, 4.0), ("fixed", *SIMPLE), ("oracle",), 1,
    ),
}  # fmt: skip
