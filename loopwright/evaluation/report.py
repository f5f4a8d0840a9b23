"""Reports that are kept as JSON files: written whole, read back, and refused in one line where a file holds something else. Each
has a figure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

from rich.console import Group

from loopwright.plot import Shown
from loopwright.plot.drawing import Curve, Drawing, Plotted
from loopwright.plot.figures import BY_DEPTH
from loopwright.storage.files import write_whole


class Saved(Plotted, Shown):
    """A report, that is a dataclass of plain fields. `what` names it where a file holds none; `of` makes one of a file's data."""

    what: ClassVar[str]

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Self:
        """Returns the report that plain data describes."""
        raise NotImplementedError

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
