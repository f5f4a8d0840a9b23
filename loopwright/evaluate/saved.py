"""Reports that are kept as JSON files: written whole, read back, and refused in one line where a file holds something else."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, ClassVar, Self

from loopwright.storage.files import write_whole


class Saved:
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


def columns_of(report: type, data: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a report in plain data, lists as tuples, and those of lists too."""

    def tuples(value: Any) -> Any:
        return tuple(map(tuples, value)) if isinstance(value, list | tuple) else value

    known = {field.name for field in fields(report)}
    return {name: tuples(value) for name, value in data.items() if name in known}
