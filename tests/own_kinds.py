"""Registering kinds in a test: every table, and the note of the files that parts came from, is afterwards as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

from loopwright import registry as imports
from loopwright.registry import PLACES
from loopwright.schema import Kinds


def table_of(place: str) -> Kinds:
    """Returns the table of a place."""
    module, name = PLACES[place]
    return getattr(import_module(module), name)


@contextmanager
def own_kinds() -> Iterator[None]:
    """The tables and the noted files of the block's own."""
    tables, files = {place: dict(table_of(place)) for place in PLACES}, dict(imports._FILES)
    try:
        yield
    finally:
        for place, kinds in tables.items():
            table_of(place).clear()
            table_of(place).update(kinds)
        imports._FILES.clear()
        imports._FILES.update(files)
