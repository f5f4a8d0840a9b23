"""Files of rows as the repository keeps them: each name once, and what the passages of a text are once for all rows.

    python -m experiments.kept experiments/results/repeats/runs.jsonl NEW.jsonl …

adds the rows of other files to the first, each in the place of an earlier one of its name. Every row comes out as
`experiments.thin` says; without other files the first is written again by itself.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from experiments.side_by_side import as_line
from loopwright.storage.files import write_whole

PASSAGES = ("document_of", "targets_of")  # the same in every row of a text, which its fingerprint names
ELSEWHERE = ("stopped", "deep")  # where a row tells of its model at another time, or at other depths, as well


def whole(rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yields rows that all say what their passages are."""
    said: dict[str, dict[str, Any]] = {}
    for row in rows:
        for held in _held(row):
            own = {key: held[key] for key in PASSAGES if key in held}
            held.update(own or said.get(held["fingerprint"], {}))
            said.setdefault(held["fingerprint"], own)
        yield row


def said_once(rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yields rows of which, of each text, the first alone says what its passages are."""
    said: dict[str, dict[str, Any]] = {}
    for row in rows:
        for held in _held(row):
            own = {key: held[key] for key in PASSAGES if key in held}
            first = said.setdefault(held["fingerprint"], own)
            for key in own if first == own and first is not own else ():
                del held[key]
        yield row


def _held(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields what a row has of each text whose passages have losses of their own."""
    for part in (row, *(row.get(name) or {} for name in ELSEWHERE)):
        texts = (*part.get("texts", {}).values(), *((part["held_out"],) if "held_out" in part else ()))
        yield from (held for held in texts if "fingerprint" in held and "losses" in held)


def write(out: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Writes rows, and says how many there are."""
    lines = [as_line(row) for row in said_once(rows)]
    write_whole(out, "".join(line + "\n" for line in lines))
    print(f"{out}: {len(lines)} rows, {out.stat().st_size:,} bytes")


def repeated(path: Path) -> str | None:
    """Returns a name that several rows of a file have, if there is one."""
    names = [json.loads(line)["name"] for line in path.read_text().splitlines()] if path.is_file() else []
    return next((name for name in names if names.count(name) > 1), None)


def main() -> None:
    """Reads the command line and adds the rows."""
    from experiments.pages import last_of_each

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kept", type=Path, help="the file that is kept")
    parser.add_argument("new", type=Path, nargs="*", help="files of rows to add")
    asked = parser.parse_args()
    if twice := repeated(asked.kept):
        sys.exit(f"{asked.kept}: {twice!r} names several rows, of which only the last would be kept; give each a name of its own")
    write(asked.kept, last_of_each(asked.kept, *asked.new).values())


if __name__ == "__main__":
    main()
