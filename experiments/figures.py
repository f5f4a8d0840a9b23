"""The figures of every study by name, from its committed rows: `study_figures("hops")["learning"].save("learning.png")`."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import import_module

from experiments import pages
from experiments.tables import RESULTS, Page
from loopwright.evaluation.exits import ExitReport
from loopwright.plot.drawing import Drawing
from loopwright.schema import check_choice

Drawings = dict[str, Drawing]
# the modules of studies whose page of rows has figures
PAGES = {
    "asura": "experiments.asura.tables",
    "hops": "experiments.hops.tables",
    "ouroboros": "experiments.ouroboros.tables",
    "repeats": "experiments.repeats.tables",
    "sft": "experiments.sft.tables",
    "stars": "experiments.stars.tables",
}


def study_figures(study: str) -> Drawings:
    """Returns the figures of a study by name."""
    if check_choice("figures", "study", study, (*PAGES, *OTHERS)) in OTHERS:
        return OTHERS[study]()
    page: Page = import_module(PAGES[study]).PAGE
    return dict(page.draw(page.read()))


def _exits() -> Drawings:
    paths = sorted(path for path in (RESULTS / "exits").glob("*.json"))
    return {path.stem: ExitReport.load(path).drawing() for path in paths}


def _halting() -> Drawings:
    from experiments.halting import figures, tables

    return figures.draw(tables.read_rows(RESULTS / "halting/runs.jsonl"))


def _inside() -> Drawings:
    from experiments.inside.random_init import figures

    return figures.draw_all(list(pages.last_of_each(RESULTS / "inside/random-init.jsonl").values()))


def _inside_stages() -> Drawings:
    from experiments.inside.stages import tables

    return tables.draw(tables.Rows(RESULTS / "inside/stages/stages.jsonl"))


def _inside_training() -> Drawings:
    from experiments.inside import train_tables

    return train_tables.draw(train_tables.read([str(RESULTS / "inside/training.jsonl")]), ["sandwich-4", "bare-4"])


def _longer() -> Drawings:
    from experiments.longer import run

    return run.draw([json.loads(line) for line in (RESULTS / "longer/runs.jsonl").read_text().splitlines()])


def _overview() -> Drawings:
    from experiments import overview

    return overview.draw_all()


def _rl() -> Drawings:
    from experiments.rl import figures

    return {"curves": figures.draw([json.loads(line) for line in (RESULTS / "rl/rows.jsonl").read_text().splitlines()])}


OTHERS: dict[str, Callable[[], Drawings]] = {
    "exits": _exits,
    "halting": _halting,
    "inside": _inside,
    "inside-stages": _inside_stages,
    "inside-training": _inside_training,
    "longer": _longer,
    "overview": _overview,
    "rl": _rl,
}
