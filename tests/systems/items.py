"""Marks of the items of a published system. docs/systems.md lists them; test_page.py compares the page with the marks."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import NamedTuple, TypeVar

Test = TypeVar("Test", bound=Callable[..., None])


class Item(NamedTuple):
    """What a test compares with the source of a system: the section and the name it has on docs/systems.md."""

    system: str
    what: str
    differs: bool


def same(system: str, what: str) -> Callable[[Test], Test]:
    """Marks a test that holds: here as in the original."""
    return _marked(Item(system, what, differs=False))


def differs(system: str, what: str) -> Callable[[Test], Test]:
    """Marks a test that holds a difference from the original: a row of the system's table, whose first cell is `what`."""
    return _marked(Item(system, what, differs=True))


def _marked(item: Item) -> Callable[[Test], Test]:
    def mark(test: Test) -> Test:
        test.__dict__.setdefault("items", []).append(item)
        return test

    return mark


def marked() -> list[Item]:
    """Returns the items of every test of this folder, in the order of its files."""
    folder = Path(__file__).parent
    modules = [import_module(f"{__package__}.{path.stem}") for path in sorted(folder.glob("test_*.py"))]
    tests = [value for module in modules for name, value in vars(module).items() if name.startswith("test_")]
    return [item for test in tests for item in getattr(test, "items", [])]
