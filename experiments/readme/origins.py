"""What docs/coverage.md says of rows that cannot be traced to a version of the code."""

from __future__ import annotations

from collections.abc import Iterator

from experiments.readme.rows import RESULTS, line, rows_of

OTHERS = ("analysis", "decode", "diffusion", "exits", "rl", "serving", "training")
STUDIES = ("asura", "halting", "hops", "inside", "longer", "ouroboros", "repeats", "sft", "stars")


def claims() -> Iterator[str]:
    """Yields a line for each file with rows that name no commit, and how many rows there are in all."""
    untold = every = changed = unsure = 0
    files = [file for study in STUDIES for file in sorted((RESULTS / study).rglob("*.jsonl"))]
    for name in (str(file.relative_to(RESULTS)) for file in files):
        rows = rows_of(name)
        without = [row for row in rows if not (row.get("origin") or {}).get("commit")]
        untold, every = untold + len(without), every + len(rows)
        told = [row["origin"].get("changed") for row in rows if row not in without]
        changed, unsure = changed + told.count(True), unsure + told.count(None)
        if without:
            yield line(name, str(len(without)), str(len(rows)))
    yield f"{untold} of the {every:,} rows name no commit"
    yield others()
    yield f"{changed} say that the code had changes which were not committed (`origin.changed`), and {unsure} cannot say"


def others() -> str:
    """Returns how many rows of benchmarks and further experiments name a commit, a device alone, or neither."""
    files = [file for folder in OTHERS for file in (RESULTS / folder).rglob("*.jsonl")]
    rows = [row for file in files for row in rows_of(str(file.relative_to(RESULTS)))]
    commits = [bool(row.get("commit") or (row.get("origin") or {}).get("commit")) for row in rows]
    devices = sum(bool(row.get("device")) for row, commit in zip(rows, commits, strict=True) if not commit)
    told = f"{sum(commits)} name a commit, {devices} a device alone and {len(rows) - sum(commits) - devices} neither"
    return f"of their {len(rows)} rows {told}"
