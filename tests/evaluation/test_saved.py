"""Reports as files: what is written comes back, and a file that holds something else is refused in one line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest

from loopwright.evaluation.report import Saved, columns_of


@dataclass(frozen=True)
class Counts(Saved):
    what: ClassVar[str] = "a report of counts"

    name: str
    rows: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Self:
        return cls(**columns_of(cls, data))


def test_what_is_written_comes_back(tmp_path: Path) -> None:
    report = Counts("a", ((1, 2), (3,)))
    path = report.save(tmp_path / "deep" / "counts.json")
    assert path.read_text() == '{"name":"a","rows":[[1,2],[3]]}\n' and Counts.load(path) == report


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"name": "a"}', '"a"'])
def test_something_else_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ValueError, match=r"x\.json: not a report of counts \(.+\)") as error:
        Counts.load(tmp_path / "x.json")
    assert "\n" not in str(error.value)


def test_an_unknown_field_is_left_out_and_a_number_that_is_none_is_not_written(tmp_path: Path) -> None:
    assert columns_of(Counts, {"name": "a", "rows": [[1]], "later": 3}) == {"name": "a", "rows": ((1,),)}
    with pytest.raises(ValueError, match="Out of range float"):
        Counts("a", ((float("nan"),),)).save(tmp_path / "x.json")  # type: ignore[arg-type]
    assert not (tmp_path / "x.json").exists()
