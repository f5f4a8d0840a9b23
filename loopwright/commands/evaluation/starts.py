"""`loopwright evaluate --state-seeds`: the splits of a run, or texts, from several starts of the state; as table and file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from loopwright.commands.console import console
from loopwright.commands.evaluation.evaluate import (
    check_rows,
    chosen_update,
    find_model,
    find_tokenizer,
    name_texts,
    open_source,
    usual_depths,
)
from loopwright.commands.results import file_stem, keep_more
from loopwright.data.build import build_data
from loopwright.evaluate.starts import StartReport
from loopwright.evaluate.sweep import parse_depths
from loopwright.generate.readings import check_depths
from loopwright.generate.stream import check_seeded
from loopwright.recipes import recipe
from loopwright.source import check_fit
from loopwright.verbs import evaluate


def evaluate_starts(
    source: str,
    state_seeds: int,
    *,
    texts: Sequence[str] = (),
    context: int | None = None,
    depths: str | None = None,
    splits: Sequence[str] = (),
    checkpoint: str | None = None,
    data: str | None = None,
    tokenizer: str | None = None,
    rows: int | None = None,
    batch: int | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    out: str | None = None,
    overwrite: bool = False,
) -> dict[str, StartReport]:
    """Prints and saves how far each split or text depends on the start; returns the reports."""
    check_rows(rows, batch)
    asked, named = parse_depths(depths) if depths else None, name_texts(texts)
    opened = open_source(source, checkpoint)
    check_seeded(opened.config, "state_seeds", state_seeds)
    words = find_tokenizer(opened, tokenizer) if named else None
    model, run, trained_with = find_model(opened, dtype, device, out)
    measured: dict[str, Any] = {"text": named, "tokenizer": words, "context": context}
    if not named:
        chosen = recipe(data) if data is not None else trained_with
        if chosen is None:
            raise ValueError(f"evaluate: {source} holds no run (no recipe.yaml); a model needs --data RECIPE or --text")
        measured = {"data": build_data(chosen.data, run.data), "splits": splits}
        check_fit(measured["data"], model, opened.name, opened.tokenizer_folder)
        asked = asked or usual_depths(trained_with or chosen, model)
    update, name = chosen_update(source, checkpoint), opened.name if opened.run is None else str(opened.folder)
    found: Any = evaluate(model, state_seeds=state_seeds, depths=asked, rows=rows, batch=batch, **measured)
    printer = console()
    for split, report in found.reports.items():
        path = run.eval / f"{file_stem(f'starts-{split}', rows=rows, checkpoint=update, data=data)}.json"
        keep_more(
            path, StartReport.load,
            depths=check_depths(model.config, asked), facts={"seeds": report.seeds, "dtype": report.dtype},
            source=None if out is None and opened.run is not None else name, overwrite=overwrite,
        )  # fmt: skip
        printer.print(report.table(printer.width))
        printer.print(f"numbers: {report.save(path)}", markup=False, soft_wrap=True)
    return dict(found.reports)
