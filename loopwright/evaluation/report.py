"""What reports share: JSON files that are written whole and refused in one line where they hold something else, a figure each,
and numbers as cells of tables."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

from rich.console import Group
from torch import Tensor

from loopwright.plot import Shown
from loopwright.plot.drawing import Curve, Drawing, Plotted
from loopwright.plot.figures import BY_DEPTH
from loopwright.storage.files import write_whole

if TYPE_CHECKING:
    from rich.table import Table

DIGITS = 6  # of a number in a report

Column = tuple[float | None, ...]  # a number per depth; None where it is not finite or does not apply
Progress = Callable[[int, int], object]  # called with batches done and batches in all


class Saved(Plotted, Shown):
    """A report, that is a dataclass of plain fields. `what` names it where a file holds none; `of` makes one of a file's data."""

    what: ClassVar[str]

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Self:
        """Returns the report that plain data describes."""
        return cls(**columns_of(cls, data))

    def written(self) -> dict[str, Any]:
        """Returns what is written."""
        return asdict(self)  # type: ignore[call-overload]  # every report is a dataclass

    def save(self, path: str | Path) -> Path:
        """Writes the report as JSON and returns where."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(self.written(), allow_nan=False, separators=(",", ":")) + "\n")
        return path

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Returns the report that a file holds."""
        try:
            return cls.of(json.loads(Path(path).read_text()))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{path}: not {cls.what} ({error})") from None


class ByDepth(Saved):
    """A report with a column per measure over depth, and the ends of its interval beside it."""

    depth: tuple[int, ...]

    @property
    def measure(self) -> str:
        """What the figure shows: "exact" or "loss"."""
        return "loss"

    @property
    def name(self) -> str:
        """What the report is of."""
        raise NotImplementedError

    def curve(self, measure: str = "") -> Curve:
        """Returns a measure over depth, that of the figure where none is named."""
        measure = measure or self.measure
        y, low, high = (list(getattr(self, f"{measure}{end}")) for end in ("", "_low", "_high"))
        return Curve(list(self.depth), y, low, high)

    def drawing(self) -> Drawing:
        """Returns exact match over depth, or else the loss."""
        return BY_DEPTH[self.measure]({self.name: self.curve()})


def columns_of(report: type, data: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a report in plain data, lists as tuples, and those of lists too."""

    def tuples(value: Any) -> Any:
        if not isinstance(value, list | tuple):
            return value
        return tuple(map(tuples, value)) if {list, tuple} & set(map(type, value)) else tuple(value)  # numbers: a thousand at once

    known = {field.name for field in fields(report)}
    return {name: tuples(value) for name, value in data.items() if name in known}


Report = TypeVar("Report", bound=Any)


@dataclass(frozen=True)
class Reports(Plotted, Shown, Generic[Report]):
    """Reports by the name of a split, a text or a task."""

    reports: Mapping[str, Report]

    def __getitem__(self, name: str) -> Report:
        if name not in self.reports:
            raise KeyError(f"{name!r} was not measured; there are {', '.join(self.reports)}")
        return self.reports[name]

    def table(self, width: int | None = None) -> Group:
        """Returns the tables, for rich to print."""
        return Group(*(report.table(width) for report in self.reports.values()))


# numbers and tables


def column(values: Tensor, *, digits: int = DIGITS) -> Column:
    """Returns plain numbers at few digits, so that the file is small and says what the report says."""
    return tuple(float(f"{x:.{digits}g}") if math.isfinite(x) else None for x in values.double().tolist())


def number(value: float | None, form: str = ".4g") -> str:
    """Returns a number as a cell shows it."""
    return "not finite" if value is None else f"{value:{form}}"


def percent(share: float | None, form: str = ".2f") -> str:
    """Returns a share as a cell shows it."""
    return "–" if share is None else f"{100 * share:{form}} %"


def ends(low: float | None, high: float | None, between: str = "–") -> str:
    """Returns the ends of an interval in brackets; nothing where it has none: of one unit, or of numbers that are not finite."""
    return "" if low is None or high is None else f" ({number(low)}{between}{number(high)})"


def over(units: int, unit: str) -> str:
    """Returns what the intervals of a table are about."""
    return f"intervals over {units:,} {unit}{'' if units == 1 else 's'}"


def number_table(heads: Sequence[str], rows: Sequence[Sequence[str]], width: int | None, *, bold: Sequence[bool] = ()) -> Table:
    """Returns a rich table of numbers that loses no digit: where the window is too narrow, intervals stand below their values."""
    from rich.table import Table

    for mark, broken in ((" (", "\n("), (" / ", " /\n"), (" to ", " to\n"), ("–", "–\n")):
        if width is None or sum(_widths(heads, rows)) + 3 * len(heads) + 1 <= width:
            break
        rows = [[cell.replace(mark, broken) for cell in row] for row in rows]
    table = Table(title_justify="left", title_style="bold", caption_justify="left")
    for head, least in zip(heads, _widths(heads, rows), strict=True):
        table.add_column(head, justify="right", min_width=least)  # else rich would cut cells before it breaks heads
    for place, row in enumerate(rows):
        table.add_row(*row, style="bold" if place < len(bold) and bold[place] else None)
    return table


def _widths(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[int]:
    """What each column needs where heads break at blanks and cells at line ends."""
    widest = [max(map(len, head.split())) for head in heads]
    for row in rows:
        widest = [max(width, *map(len, cell.split("\n"))) for width, cell in zip(widest, row, strict=True)]
    return widest
