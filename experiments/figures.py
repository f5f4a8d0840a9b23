"""The figures of every study by name, from its committed rows: `study_figures("hops")["learning"].save("learning.png")`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from experiments import pages
from loopwright.evaluation.exits import ExitReport
from loopwright.plot.drawing import Drawing
from loopwright.schema import check_choice

RESULTS = Path(__file__).parent / "results"

Drawings = dict[str, Drawing]


def study_figures(study: str) -> Drawings:
    """Returns the figures of a study by name."""
    return STUDIES[check_choice("figures", "study", study, STUDIES)]()


def _asura() -> Drawings:
    from experiments.asura import figures, pairing, plan, tables

    found = pages.results([str(RESULTS / "asura/runs.jsonl")], tables.rows())
    sizes = {size: pages.by_label(run for run in found if run["size"] == size) for size in plan.SIZES}
    return figures.draw_all({size: pairing.arranged(labels) for size, labels in sizes.items() if labels})


def _exits() -> Drawings:
    paths = sorted(path for path in (RESULTS / "exits").glob("*.json"))
    return {path.stem: ExitReport.load(path).drawing() for path in paths}


def _halting() -> Drawings:
    from experiments.halting import figures, tables

    return figures.draw(tables.read_rows(RESULTS / "halting/runs.jsonl"))


def _hops() -> Drawings:
    from experiments.hops import figures, tables

    found = pages.results([str(RESULTS / "hops/runs.jsonl")], tables.planned())
    return figures.draw_all(found)


def _inside() -> Drawings:
    from experiments.inside.random_init import page

    rows = list(pages.last_of_each(RESULTS / "inside/random-init.jsonl").values())
    return {name: draw(rows) for name, (_, draw) in page.FIGURES.items()}


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


def _ouroboros() -> Drawings:
    from experiments.ouroboros import figures, tables

    runs = pages.by_label(pages.results([str(RESULTS / "ouroboros/runs.jsonl")], tables.planned()))
    return figures.draw_all(runs, tables.shares_to(runs, tables.FULL), tables.all_pairs(runs))


def _repeats() -> Drawings:
    from experiments.repeats import figures, plan, run, tables

    found = pages.results([str(RESULTS / "repeats/runs.jsonl")], plan.rates(), run.counts)
    return figures.draw_all(found, tables.chosen(found))


def _rl() -> Drawings:
    from experiments.rl import figures

    return {"curves": figures.draw([json.loads(line) for line in (RESULTS / "rl/rows.jsonl").read_text().splitlines()])}


def _sft() -> Drawings:
    from experiments.sft import tables

    return tables.draw(tables.read(RESULTS / "sft/rows.jsonl"))


def _stars() -> Drawings:
    from experiments.stars import tables

    return tables.draw_all(tables.read([str(RESULTS / "stars/runs.jsonl")]))


STUDIES: dict[str, Callable[[], Drawings]] = {
    "asura": _asura,
    "exits": _exits,
    "halting": _halting,
    "hops": _hops,
    "inside": _inside,
    "inside-stages": _inside_stages,
    "inside-training": _inside_training,
    "longer": _longer,
    "ouroboros": _ouroboros,
    "overview": _overview,
    "repeats": _repeats,
    "rl": _rl,
    "sft": _sft,
    "stars": _stars,
}
