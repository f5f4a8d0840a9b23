"""Rows as the repository keeps them, with single losses where models are compared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from experiments.kept import write as write_rows
from experiments.pages import Result, last_of_each
from experiments.sft.plan import BEYOND, TRAINED
from experiments.side_by_side import compared
from experiments.thin import rounded

DIGITS = 5


def thinned(rows: Iterable[Result]) -> Iterator[dict[str, Any]]:
    """Yields rows with less in them."""
    for row in rows:
        texts = {}
        for name, held in row["texts"].items():
            one = compared(held, (TRAINED, *BEYOND) if TRAINED in held["depth"] else (1,))
            texts[name] = {**one, "losses": rounded(one["losses"], DIGITS)}
        yield {**row, "texts": texts}


def write(out: Path, *paths: Path) -> None:
    """Writes the rows of files, a later one in the place of an earlier one of its name."""
    write_rows(out, thinned(last_of_each(*paths).values()))
