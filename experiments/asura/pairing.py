"""Which ASURA row a row is compared with: the one that read the same batches at the same schedule.

Rows drew their batches from the first five training files or from all twelve. Two rows of one seed read the same batches only where
both drew from as many files.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from experiments.asura.plan import TWELVE, WHOLE
from experiments.pages import Result

FIVE = ("e0855cb", "19df31b")  # commits whose rows read the first five training files; later ones say how many
SCHEDULE = re.compile(r", rate \S+, warm-up \d+$")
FIVE_FILES = ", five files"
Labels = Mapping[str, Sequence[Result]]


def files_of(run: Result) -> int:
    """Returns how many training files a row drew its batches from."""
    if "files" in run:
        return int(run["files"])
    return 5 if run["origin"]["commit"].startswith(FIVE) else 12


def whole_of(run: Result, labels: Labels) -> Result | None:
    """Returns the ASURA row with the seed, the training files and the schedule of a row, if there is one."""
    schedule = SCHEDULE.search(run["label"])
    names = [f"{WHOLE}{schedule.group()}"] if schedule else [WHOLE, f"{WHOLE}{TWELVE}"]
    rivals = (each for name in names for each in labels.get(name, []) if each["seed"] == run["seed"])
    return next((each for each in rivals if files_of(each) == files_of(run)), None)


def wholes(runs: Sequence[Result], labels: Labels) -> list[Result]:
    """Returns the ASURA rows that rows are compared with, where there are any."""
    return [whole for run in runs if (whole := whole_of(run, labels)) is not None]


def arranged(labels: Labels) -> dict[str, list[Result]]:
    """Returns each part with the rows that stand for it, a seed once. A row made again on twelve files takes the place of the one
    on five, which is then shown by itself. ASURA keeps both names."""
    found: dict[str, list[Result]] = {}
    for label, runs in labels.items():
        base = label.removesuffix(TWELVE)
        if base not in (label, WHOLE) and base in labels:
            continue  # its rows stand under the part's own name
        again = {run["seed"]: run for run in labels.get(f"{label}{TWELVE}", []) if label != WHOLE}
        replaced = [run for run in runs if run["seed"] in again]
        standing = [*again.values(), *(run for run in runs if run["seed"] not in again)]
        for name, rows in ((label, standing), (f"{label}{FIVE_FILES}", replaced)):
            if rows:
                found[name] = sorted(rows, key=lambda run: run["seed"])
    return found
