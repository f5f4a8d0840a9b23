"""The page of tools: each test that it names is there, and each row of its first table names one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "works-with.md").read_text()


def rows(title: str) -> list[list[str]]:
    """The rows of the table under a title, cell by cell."""
    lines = PAGE.split(f"## {title}")[1].split("\n## ")[0].splitlines()
    return [re.split(r"\s*\|\s*", line)[1:-1] for line in lines if line.startswith("| ")][1:]


HELD = rows("Held by tests")


@pytest.mark.parametrize("row", HELD, ids=lambda row: row[0])
def test_the_test_of_a_row_is_there(row: list[str]) -> None:
    file, name = row[-1].strip("`").split("::")
    assert re.search(rf"^def {name}\(", (ROOT / "tests" / file).read_text(), re.MULTILINE), row[-1]
    assert len(row) == 4


def test_there_are_rows_and_no_tool_stands_in_both_tables() -> None:
    assert len(HELD) > 20 and not {row[0] for row in HELD} & {row[0] for row in rows("Without a test")}
