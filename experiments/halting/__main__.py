"""`python -m experiments.halting OUT --seeds 0,1,2`: trains the runs that are missing in OUT/runs.jsonl, several side by side, and
writes OUT/table.md and the figures.

--groups text --data DATA trains on text alone: DATA holds `corpus` (train-00, valid and test.jsonl.gz) and the tokenizer
`models/stories260K`; a copy of these files, 5.5 MB, is all that another machine needs beside the repository. --only columns/plain
trains those runs alone; --workers 0 trains none and writes tables and figures of the rows that are there.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from experiments.halting.figures import draw
from experiments.halting.plan import GROUPS
from experiments.halting.run import carry_out, tokenise
from experiments.halting.tables import read_rows, table
from experiments.pages import save_all
from experiments.side_by_side import arguments, asked_for, grouped, run_all


def main() -> None:
    """Reads the command line, trains what it asks for, and writes what the rows say."""
    parser = arguments(__doc__)
    parser.add_argument("--data", default="../shared/data", help="the folder of corpus and models/stories260K, for text")
    parser.add_argument("--shards", default="runs/shards", help="where token shards are kept")
    options = parser.parse_args()
    folder = Path(options.out)
    folder.mkdir(parents=True, exist_ok=True)
    if options.workers:
        runs, given = asked_for(options, grouped(options, GROUPS)), {"data": options.data, "shards": options.shards}
        tokenise(runs, **given, extra=tuple(options.change))
        run_all(
            runs, partial(carry_out, **given, extra=tuple(options.change)), str(folder / "runs.jsonl"),
            workers=options.workers, seconds=options.seconds,
        )  # fmt: skip
    rows = read_rows(folder / "runs.jsonl")
    (folder / "table.md").write_text(table(rows))
    save_all(draw(rows), folder)


if __name__ == "__main__":
    main()
