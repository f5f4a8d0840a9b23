"""What the claims are made with: rows of a file, words for numbers."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from experiments.templates.words import WORDS

RESULTS = Path(__file__).parents[1] / "results"


def rows_of(path: str) -> list[dict[str, Any]]:
    """Returns the rows of a file of results."""
    return [json.loads(line) for line in (RESULTS / path).read_text().splitlines()]


def only(path: str, **wanted: Any) -> dict[str, Any]:
    """Returns the one row of a file that has these values."""
    found = [row for row in rows_of(path) if all(row.get(key) == value for key, value in wanted.items())]
    if len(found) != 1:
        raise ValueError(f"{path}: {len(found)} rows have {wanted}; allowed: one")
    return found[0]


def of(count: int, all_of: int) -> str:
    """Returns "two of three"."""
    return f"{WORDS[count]} of {WORDS[all_of]}"


def when(so: bool, text: str) -> str:
    """Returns a text if the rows bear it out; marks it otherwise, so that no page holds it."""
    return text if so else f"not so: {text}"


def line(*cells: str) -> str:
    """Returns a row of a table."""
    return f"| {' | '.join(cells)} |"


def from_to(values: Iterable[float], digits: int = 3) -> str:
    """Returns from where to where the sizes of numbers go: "0.021 to 0.058"."""
    found = [*map(abs, values)]
    return f"{min(found):.{digits}f} to {max(found):.{digits}f}"
