"""Rows as the repository keeps them: single losses where models are compared, and what passages are, once for all rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from experiments.pages import Result, last_of_each
from experiments.sft.plan import BEYOND, TRAINED
from experiments.side_by_side import as_line, compared, rounded

PASSAGES = ("document_of", "targets_of")  # the same in every row of a text, which its fingerprint names
DIGITS = 5


def thinned(rows: Iterable[Result]) -> Iterator[dict[str, Any]]:
    """Yields rows with less in them; of those of one text the first says what its passages are."""
    said: set[str] = set()
    for row in rows:
        texts = {}
        for name, held in row["texts"].items():
            first = held["fingerprint"] not in said
            said.add(held["fingerprint"])
            one = compared(held, (TRAINED, *BEYOND) if TRAINED in held["depth"] else (1,))
            texts[name] = {key: value for key, value in one.items() if first or key not in PASSAGES}
            texts[name]["losses"] = rounded(one["losses"], DIGITS)
        yield {**row, "texts": texts}


def whole(rows: Iterable[Result]) -> Iterator[Result]:
    """Yields rows that all say what their passages are."""
    said: dict[str, dict[str, Any]] = {}
    for row in rows:
        for held in row["texts"].values():
            own = said.setdefault(held["fingerprint"], {key: held[key] for key in PASSAGES if key in held})
            held.update(own)
        yield row


def write(out: Path, *paths: Path) -> None:
    """Writes the rows of files, a later one in the place of an earlier one of its name."""
    lines = [as_line(row) for row in thinned(whole(last_of_each(*paths).values()))]
    out.write_text("".join(line + "\n" for line in lines))
    print(f"{out}: {len(lines)} rows, {out.stat().st_size:,} bytes")
