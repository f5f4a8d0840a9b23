"""What a study's page is made of: results read back in the order of its plan, what was not run, numbers and tables in Markdown."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.kept import whole
from experiments.side_by_side import Run
from loopwright.plot.drawing import Drawing

Result = dict[str, Any]


def asked_tables(about: str | None) -> tuple[list[str], Path]:
    """Returns the files of rows and the folder, which is made, that a study's `tables` is called with."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="+", help="files of rows, as the study's run wrote them")
    parser.add_argument("folder", type=Path, help="where table.md and the figures go")
    asked = parser.parse_args()
    for path in asked.rows:
        if not Path(path).is_file():
            parser.error(f"{path}: there is no such file of rows; give runs.jsonl of the study, then the folder for the page")
    asked.folder.mkdir(parents=True, exist_ok=True)
    return asked.rows, asked.folder


def results(paths: Iterable[str], planned: Iterable[Run], counts: Callable[[Result], bool] = bool) -> list[Result]:
    """Returns the results of all files that count in the order of the plan; those it does not name come last."""
    place = {run.name: number for number, run in enumerate(planned)}
    rows = [row for path in paths for row in whole(map(json.loads, Path(path).read_text().splitlines()))]
    found = [row for row in rows if counts(row)]
    names = [run["name"] for run in found]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"results: {twice[0]!r} is there {names.count(twice[0])} times; allowed: once")
    return sorted(found, key=lambda run: place.get(run["name"], len(place)))


def last_of_each(*paths: str | Path) -> dict[str, Result]:
    """Returns the results of files by name, a later one in the place of an earlier one."""
    return {row["name"]: row for path in paths for row in whole(map(json.loads, Path(path).read_text().splitlines()))}


def by_label(found: Iterable[Result]) -> dict[str, list[Result]]:
    """Returns the results of each label, seeds in order."""
    groups: dict[str, list[Result]] = {}
    for run in found:
        groups.setdefault(run["label"], []).append(run)
    return {label: sorted(runs, key=lambda run: run["seed"]) for label, runs in groups.items()}


def not_run(found: Iterable[Result], planned: Iterable[Run]) -> list[str]:
    """Returns what the plan names and the results lack, the seeds of a row together: "main/gate only: seeds 1, 2"."""
    done = {run["name"] for run in found}
    missing: dict[str, list[str]] = {}
    for run in planned:
        if run.name not in done:
            row, seed = run.name.rsplit("/", 1)
            missing.setdefault(row, []).append(seed)
    return [f"{row}: seed{'s' * (len(seeds) > 1)} {', '.join(seeds)}" for row, seeds in missing.items()]


def missing_part(found: Iterable[Result], planned: Iterable[Run]) -> list[str]:
    """Returns the part of a page that says what was not run."""
    lines = [f"- {line}" for line in not_run(found, planned)]
    return ["## Not run", "\n".join(lines) or "All rows of the plan were run."]


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Returns a Markdown table; without a line a sentence that says so."""
    lines = list(lines)
    if not lines:
        return "No row of this table was run."
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *lines])


def number(value: float | None, digits: int = 3) -> str:
    """Returns a number, or a dash where there is none."""
    return "–" if value is None or not math.isfinite(value) else _minus(f"{value:z.{digits}f}")


def difference(value: float, digits: int = 4) -> str:
    """Returns a difference with its sign."""
    return _minus(f"{value:+z.{digits}f}")


def signed(value: float, low: float, high: float) -> str:
    """Returns a difference and its interval."""
    return f"{difference(value)} ({difference(low)} to {difference(high)})"


def by_seed(values: Sequence[float]) -> str:
    """Returns differences, seed by seed."""
    return " / ".join(map(difference, values))


def percent(value: float | None, digits: int = 1) -> str:
    """Returns a share in percent."""
    return "–" if value is None or not math.isfinite(value) else _minus(f"{100 * value:z.{digits}f} %")


def words(items: Sequence[object]) -> str:
    """Returns a list as it is said: "1, 2 and 4"."""
    said = [str(item) for item in items]
    return said[0] if len(said) == 1 else f"{', '.join(said[:-1])} and {said[-1]}"


def _minus(text: str) -> str:
    return text.replace("-", "−")


def save_all(drawings: Mapping[str, Drawing], folder: Path) -> list[Path]:
    """Writes figures as SVG by their names, and returns where they are."""
    return [drawing.save(folder / f"{name}.svg") for name, drawing in drawings.items()]
