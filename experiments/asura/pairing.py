"""Which ASURA row a row is compared with: one that read the same batches, as soon as there is one.

Rows drew their batches from the first five training files or from all twelve. Two rows of one seed read the same batches only where
both drew from as many files, and learned alike only at the same schedule.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from experiments.asura.plan import TWELVE, WHOLE
from experiments.pages import Result
from experiments.seeds import Pooled, pooled

FIVE = ("e0855cb", "19df31b")  # commits whose rows read the first five training files; later ones say how many
NUMBERS = {5: "five", 12: "twelve"}
SCHEDULE = re.compile(r", rate \S+, warm-up \d+$")
FIVE_FILES = ", five files"
Labels = Mapping[str, Sequence[Result]]


def files_of(run: Result) -> str:
    """Returns how many training files a row drew its batches from."""
    if "files" in run:
        return NUMBERS.get(run["files"], str(run["files"]))
    return "five" if run["origin"]["commit"].startswith(FIVE) else "twelve"


def whole_of(run: Result, labels: Labels) -> Result | None:
    """Returns the ASURA row of the same seed that a row is compared with: that of its own schedule if there is one, else that which
    read as many files, else the one there is."""
    schedule = SCHEDULE.search(run["label"])
    named = [f"{WHOLE}{schedule.group()}"] if schedule else []
    order = (*named, WHOLE, f"{WHOLE}{TWELVE}")
    rivals = [each for label in order for each in labels.get(label, []) if each["seed"] == run["seed"]]
    return min(rivals, key=lambda each: (each["label"] not in named, files_of(each) != files_of(run)), default=None)


def wholes(runs: Sequence[Result], labels: Labels) -> list[Result]:
    """Returns the ASURA rows that rows are compared with, where there are any."""
    return [whole for run in runs if (whole := whole_of(run, labels)) is not None]


def less_whole(runs: Sequence[Result], labels: Labels, text: str) -> Pooled | None:
    """Returns the difference of a row from ASURA on a text, each seed beside the ASURA row that it is compared with."""
    return pooled(runs, wholes(runs, labels), text)


def alike(run: Result, labels: Labels) -> bool:
    """Whether a row is compared with an ASURA row that read as many files."""
    whole = whole_of(run, labels)
    return whole is not None and files_of(whole) == files_of(run)


def arranged(labels: Labels) -> dict[str, list[Result]]:
    """Returns each part with the rows that stand for it, a seed once. A row made again on twelve files takes the place of the one
    on five, which is then shown by itself; without an ASURA row on twelve files it is the new one. ASURA keeps both names."""
    found: dict[str, list[Result]] = {}
    for label, runs in labels.items():
        again = {run["seed"]: run for run in labels.get(f"{label}{TWELVE}", []) if label != WHOLE and alike(run, labels)}
        base = label.removesuffix(TWELVE)
        if base not in (label, WHOLE) and base in labels:
            runs = [run for run in runs if not alike(run, labels)]
        replaced = [run for run in runs if run["seed"] in again]
        standing = [*again.values(), *(run for run in runs if run["seed"] not in again)]
        for name, rows in ((label, standing), (f"{label}{FIVE_FILES}", replaced)):
            if rows:
                found[name] = sorted(rows, key=lambda run: run["seed"])
    return found
