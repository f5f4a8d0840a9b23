"""docs/systems.md names every item that the tests of this folder hold, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from tests.systems.items import Item, marked

PAGE = (Path(__file__).parents[2] / "docs" / "systems.md").read_text()


def listed(page: str) -> list[Item]:
    """Returns the items of a page: of each section, the list under "Equal to the original:" and the rows of its table."""
    found = []
    for section in page.split("\n## ")[1:]:
        system, body = section.split("\n", 1)
        if equal := re.search(r"^Equal to the original:\n\n((?:- .*\n)+)", body, re.MULTILINE):
            found += [Item(system, line.removeprefix("- "), differs=False) for line in equal[1].splitlines()]
        rows = re.findall(r"^\| (?!what \||---)(.*?) \|", body, re.MULTILINE)
        found += [Item(system, what, differs=True) for what in rows]
    return found


def test_the_page_names_what_the_tests_hold() -> None:
    assert sorted(listed(PAGE)) == sorted(set(marked()))


def test_a_row_without_a_test_is_seen() -> None:
    table = "| what | the original | here |\n|---|---|---|\n| three | a | b |\n"
    planted = f"{PAGE}\n\n## Planted\n\nEqual to the original:\n\n- one\n- two\n\n{table}"
    assert listed(planted)[-3:] == [Item("Planted", "one", False), Item("Planted", "two", False), Item("Planted", "three", True)]
