"""What docs/halting.md says: the rows of its tables."""

from __future__ import annotations

from collections.abc import Iterator

from experiments.halting.shown import SHOWN
from experiments.halting.tables import models_of, tables_of
from experiments.readme.rows import rows_of


def claims() -> Iterator[str]:
    """Yields every row of the tables that are shown there."""
    rows = rows_of("halting/runs.jsonl")
    for task in SHOWN:
        models = models_of(rows, task)
        for text in tables_of(task, models) if models else ():
            yield from (line for line in text.splitlines() if line.startswith("| ") and any(letter.isdigit() for letter in line))
