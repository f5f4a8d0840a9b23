"""What docs/coverage.md asks of where rows come from: which of them cannot be traced to a version of the code."""

from __future__ import annotations

from functools import cache
from typing import Any

from experiments.templates.rows import RESULTS, rows_of

STUDIES = ("asura", "halting", "hops", "inside", "longer", "ouroboros", "repeats", "sft", "stars")
OTHERS = ("analysis", "decode", "diffusion", "exits", "rl", "serving", "training")
LATE = "b99a220"  # of rows whose plan came with the next commit
# of files with rows that name no commit: the commits that brought these, and how many the log says were made at which
BROUGHT: dict[str, tuple[str, dict[str, int]]] = {
    "halting/runs.jsonl": ("69abceb", {"46f1319": 12}),
    "inside/again.jsonl": ("d4fb307", {}),
    "inside/first-token.jsonl": ("7514fec, d4fb307, 659e948, 80c66a3", {"3692b63": 24, "a6505e6": 4}),
    "inside/orbits.jsonl": ("659e948", {"3692b63": 6}),
    "inside/stages/stages.jsonl": ("d4fb307", {}),
    "inside/system.jsonl": ("7514fec, d4fb307, 659e948, 80c66a3", {"3692b63": 10, "a6505e6": 16}),
    "inside/training.jsonl": ("d4fb307", {}),
    "longer/cost-h200.jsonl": ("ec7292a", {}),
    "ouroboros/refiner-cpu.jsonl": ("b308168", {}),
    "repeats/runs.jsonl": ("09ef45d", {"2e65e6c": 25}),
    "stars/runs.jsonl": ("1335914, 09ef45d", {"2e65e6c": 28}),
}

Rows = list[dict[str, Any]]


@cache
def by_file(folders: tuple[str, ...] = STUDIES) -> dict[str, Rows]:
    """Returns the rows of every file of these folders."""
    files = (file for folder in folders for file in sorted((RESULTS / folder).rglob("*.jsonl")))
    return {name: rows_of(name) for name in (str(file.relative_to(RESULTS)) for file in files)}


def every() -> Rows:
    """Returns the rows of all studies."""
    return [row for rows in by_file().values() for row in rows]


def origin(row: dict[str, Any]) -> dict[str, Any]:
    """Returns what a row says of where it was made."""
    return row.get("origin") or {}


@cache
def untraced() -> dict[str, Rows]:
    """Returns the rows of each file that name no commit."""
    found = {name: [row for row in rows if not origin(row).get("commit")] for name, rows in by_file().items()}
    return {name: rows for name, rows in found.items() if rows}


def without() -> Rows:
    """Returns the rows of all studies that name no commit."""
    return [row for rows in untraced().values() for row in rows]


def told() -> int:
    """Returns of how many of them the log tells at which commit they were made."""
    return sum(sum(counts.values()) for _, counts in BROUGHT.values())


def made(name: str) -> str:
    """Returns at which commits the log says that those of a file were made: "46f1319 (12), not said (2)"."""
    _, counts = BROUGHT[name]
    silent = len(untraced()[name]) - sum(counts.values())
    return ", ".join(f"{commit} ({count})" for commit, count in (*counts.items(), ("not said", silent)) if count)


def changed(how: bool | None) -> int:
    """Returns how many of the other rows say that the code had changes which were not committed; None: cannot say."""
    return sum(origin(row).get("changed") is how for row in every() if origin(row).get("commit"))


def late() -> int:
    """Returns how many rows name the last commit but one of their plan."""
    return sum(origin(row).get("commit", "")[:7] == LATE for row in every() if origin(row).get("commit"))


def no_device() -> int:
    """Returns how many rows name no device, all of one study."""
    found = {name: sum(not (row.get("device") or origin(row).get("devices")) for row in rows) for name, rows in by_file().items()}
    if any(count for name, count in found.items() if not name.startswith("inside/")):
        raise ValueError("rows of other studies than inside name no device")
    return sum(found.values())


def others() -> tuple[int, int, int]:
    """Returns how many rows of benchmarks and further experiments there are, name a commit, and name a device alone."""
    rows = [row for found in by_file(OTHERS).values() for row in found]
    rest = [row for row in rows if not (row.get("commit") or origin(row).get("commit"))]
    return len(rows), len(rows) - len(rest), sum(bool(row.get("device")) for row in rest)
