"""What docs/coverage.md says of rows that cannot be traced to a version of the code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

from experiments.readme.rows import RESULTS, line, rows_of

OTHERS = ("analysis", "decode", "diffusion", "exits", "rl", "serving", "training")
LATE = "b99a220ec75c0685d776a74584c6e09551173597"  # of rows whose plan came with the next commit
STUDIES = ("asura", "halting", "hops", "inside", "longer", "ouroboros", "repeats", "sft", "stars")


@cache
def rows_by_file(folders: tuple[str, ...]) -> dict[str, list[dict[str, Any]]]:
    """Returns the rows of every file of these folders."""
    names = [str(file.relative_to(RESULTS)) for folder in folders for file in sorted((RESULTS / folder).rglob("*.jsonl"))]
    return {name: rows_of(name) for name in names}


def claims() -> Iterator[str]:
    """Yields a line for each file with rows that name no commit, and how many rows there are in all."""
    untold = every = changed = unsure = 0
    for name, rows in rows_by_file(STUDIES).items():
        without = [row for row in rows if not (row.get("origin") or {}).get("commit")]
        untold, every = untold + len(without), every + len(rows)
        told = [row["origin"].get("changed") for row in rows if row not in without]
        changed, unsure = changed + told.count(True), unsure + told.count(None)
        if without:
            yield line(name, str(len(without)), str(len(rows)))
    yield f"{untold} of the {every:,} rows name no commit"
    yield others()
    yield from held()
    yield f"{changed} say that the code had changes which were not committed (`origin.changed`), and {unsure} cannot say"


def held() -> Iterator[str]:
    """Yields what rows hold of their recipe, how many name no device, and how many name the last commit but one of their plan."""
    rows = [row for each in rows_by_file(STUDIES).values() for row in each]
    kinds = Counter(next((kind for kind in ("recipe", "changes", "laid_over") if kind in row), "name") for row in rows)
    named = kinds["laid_over"] + kinds["name"]
    told = f"Of all rows {kinds['recipe']} hold their recipe and {kinds['changes']} what they change in one; the other {named}"
    yield f"{told} (of `repeats`, `sft` and `inside` most)"
    yield f"turns into the recipe, {kinds['laid_over']} of these with what was laid over it"
    without = [row for row in rows if not (row.get("device") or (row.get("origin") or {}).get("devices"))]
    yield f"{len(without)} rows of `inside` name no device"
    yield f"{sum((row.get('origin') or {}).get('commit', '') == LATE for row in rows)} rows name {LATE[:7]}"


def others() -> str:
    """Returns how many rows of benchmarks and further experiments name a commit, a device alone, or neither."""
    rows = [row for each in rows_by_file(OTHERS).values() for row in each]
    commits = [bool(row.get("commit") or (row.get("origin") or {}).get("commit")) for row in rows]
    devices = sum(bool(row.get("device")) for row, commit in zip(rows, commits, strict=True) if not commit)
    told = f"{sum(commits)} name a commit, {devices} a device alone and {len(rows) - sum(commits) - devices} neither"
    return f"of their {len(rows)} rows {told}"
