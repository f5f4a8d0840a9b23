"""loopwright.parts: the one place an author imports from has the class that every place asks for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import loopwright as lw
from loopwright import parts
from loopwright.registry import PLACES
from tests.own_kinds import table_of


@pytest.mark.parametrize("place", PLACES)
def test_the_class_that_a_place_asks_for_is_there(place: str) -> None:
    base = table_of(place).inherits
    assert base is object or getattr(parts, base.__name__) is base


def test_it_is_public() -> None:
    assert lw.parts is parts


def test_every_name_stands_on_its_page() -> None:
    page = (Path(__file__).parent.parent / "docs" / "extend.md").read_text()
    names = {name for name in vars(parts) if not name.startswith("_")}
    assert sorted(names - set(re.findall(r"\w+", page))) == []
