"""`python -m experiments.halting OUT --seeds 0,1,2`: trains the runs that are missing in OUT/runs.jsonl, several side by side, and
writes OUT/table.md and the figures.

--groups text --data DATA trains on text alone: DATA holds `corpus` (train-00, valid and test.jsonl.gz) and the tokenizer
`models/stories260K`; a copy of these files, 5.5 MB, is all that another machine needs beside the repository. --only columns/plain
trains those runs alone; --workers 0 trains none and writes tables and figures of the rows that are there.
"""

from __future__ import annotations

from pathlib import Path

from experiments.halting.figures import draw
from experiments.halting.plan import GROUPS
from experiments.halting.run import carry_out, tokenise
from experiments.halting.tables import read_rows, table
from experiments.pages import save_all
from experiments.study import Study


def write(folder: Path) -> None:
    """Writes what the rows say."""
    rows = read_rows(folder / "runs.jsonl")
    (folder / "table.md").write_text(table(rows))
    save_all(draw(rows), folder)


STUDY = Study(
    __doc__, carry_out, GROUPS,
    options={
        "--data": {"default": "../shared/data", "help": "the folder of corpus and models/stories260K, for text"},
        "--shards": {"default": "runs/shards", "help": "where token shards are kept"},
    },
    prepare=tokenise, file="runs.jsonl", end=write,
)  # fmt: skip


if __name__ == "__main__":
    STUDY.main()
