"""What docs/halting.md says: the rows of its tables."""

from __future__ import annotations

from collections.abc import Iterator

from experiments.halting.plan import TASKS
from experiments.halting.tables import against, along, at_target, by_mean_depth, models_of
from experiments.readme.rows import rows_of


def claims() -> Iterator[str]:
    """Yields every row of the tables that are shown there."""
    rows = rows_of("halting/runs.jsonl")
    for task in TASKS:
        models = models_of(rows, task)
        for text in (at_target(models), against(models), along(models), by_mean_depth(models)) if models else ():
            yield from (line for line in text.splitlines() if line.startswith("| ") and any(letter.isdigit() for letter in line))
