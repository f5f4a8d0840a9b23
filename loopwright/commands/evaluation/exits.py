"""`loopwright evaluate --exit`: what early exits cost and give, as table, file and figure; `--time` also runs them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.progress import Progress

from loopwright.check.likelihood import need_likelihood
from loopwright.commands.console import console, progress
from loopwright.commands.evaluation.evaluate import (
    FIELD,
    ROWS,
    check_rows,
    chosen_update,
    find_model,
    find_tokenizer,
    fitting_context,
    name_texts,
    open_source,
    rows_of,
    split_names,
)
from loopwright.commands.results import file_stem, keep_more
from loopwright.commands.wait import tell_wait
from loopwright.data.build import build_data
from loopwright.data.records import Files
from loopwright.data.tokenizer import Tokenizer
from loopwright.evaluate.early_exit import ExitReport, early_exits
from loopwright.evaluate.exit_rows import Measured, exit_specs, exit_words, of_rows, of_text
from loopwright.evaluate.exit_times import BATCHES, clock_of, exit_times, prompts_of
from loopwright.evaluate.passages import read_passages
from loopwright.evaluate.sweep import parse_depths
from loopwright.generate.exit_rules import write_exit
from loopwright.model.looped import LoopedForCausalLM
from loopwright.recipes import recipe
from loopwright.source import Source, check_fit
from loopwright.threads import fitting_threads
from loopwright.train.recipe import Recipe


def evaluate_exits(
    source: str,
    exits: Sequence[str],
    *,
    texts: Sequence[str] = (),
    context: int | None = None,
    depths: str | None = None,
    splits: Sequence[str] = (),
    checkpoint: str | None = None,
    data: str | None = None,
    tokenizer: str | None = None,
    field: str = FIELD,
    rows: int | None = None,
    batch: int | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    out: str | None = None,
    overwrite: bool = False,
    timed: bool = False,
) -> dict[str, ExitReport]:
    """Prints, draws and saves what exit rules cost and give on each text, or each test split of a run; returns the reports."""
    check_rows(rows, batch)
    asked = parse_depths(depths) if depths else None
    if asked is not None and len(asked) > 1:
        raise ValueError(f"depths: {depths!r} with --exit; allowed: one depth, the most steps that a token may take")
    words = exit_words(exits)
    named = name_texts(texts)
    for files in named.values():
        Files(files)
    opened = open_source(source, checkpoint)
    encoder = Tokenizer(find_tokenizer(opened, tokenizer)) if named else None
    model, run, trained_with = find_model(opened, dtype, device, out)
    need_likelihood(model)
    depth = model.config.check_depth(asked[0] if asked else None)
    specs = exit_specs(words, model)
    if encoder is not None:
        length = fitting_context(model, context)
        passages = {name: read_passages(name, files, encoder, length, field=field) for name, files in named.items()}
        parts = {f"text-{name}": of_text(model, found, rows, batch) for name, found in passages.items()}
    else:
        parts = _of_splits(model, trained_with, run.data, opened, data, splits, rows, batch)
    measured, update = opened.name if opened.run is None else str(opened.folder), chosen_update(source, checkpoint)
    stems = {n: file_stem(f"exits-{n}", rows=part.few, checkpoint=update, data=data) for n, part in parts.items()}
    for name, part in parts.items():
        facts = {
            "rows": len(part.units), "fingerprint": part.fingerprint, "dtype": str(model.dtype).removeprefix("torch."),
            "steps": depth, "timed": timed,
        }  # fmt: skip
        keep_more(
            run.eval / f"{stems[name]}.json", ExitReport.load,
            depths=range(1, depth + 1), rules=[write_exit(spec) for spec in specs], facts=facts,
            source=None if out is None and opened.run is not None else measured, overwrite=overwrite,
        )  # fmt: skip
    printer, reports = console(), {}
    for name, part in parts.items():
        with fitting_threads(model), progress() as bar:
            task = bar.add_task(name)
            tell_wait(model, depth, rows=len(part.batches[0]), length=part.length)
            reports[name] = early_exits(
                model, part.pairs(), specs,
                name=name, depth=depth, units=part.units, unit=part.unit, exact=part.exact, total=len(part.batches),
                fingerprint=part.fingerprint, source=measured,
                progress=lambda done, total, bar=bar, task=task: bar.update(task, completed=done, total=total),
            )  # fmt: skip
            if timed:
                reports[name] = with_times(model, reports[name], part, specs, bar)
        printer.print(reports[name].table(printer.width))
        if timed:
            printer.print(reports[name].time_table(printer.width))
        numbers, figure = reports[name].save(run.eval / f"{stems[name]}.json"), run.figures / f"{stems[name]}.svg"
        reports[name].plot(figure)
        printer.print(f"numbers: {numbers}\nfigure: {figure}", markup=False, soft_wrap=True)
    return reports


def with_times(
    model: LoopedForCausalLM, report: ExitReport, part: Measured, specs: Sequence[Mapping[str, Any]], bar: Progress
) -> ExitReport:
    """Returns a report with the times of its rules, measured on the first rows of what the loss was measured on."""
    task = bar.add_task(f"{report.name}, timed")
    prompts, new = prompts_of(part.batch_of(range(min(max(BATCHES), len(part.units)))), answers=part.exact)
    times = exit_times(
        model, prompts, new, specs, report.steps, tell=lambda done, total: bar.update(task, completed=done, total=total)
    )
    return replace(report, times=times, clock=clock_of(model))


def _of_splits(
    model: LoopedForCausalLM, own: Recipe | None, folder: Path, opened: Source, data: str | None, splits: Sequence[str],
    rows: int | None, batch: int | None,
) -> dict[str, Measured]:  # fmt: skip
    if own is None and data is None:
        raise ValueError(f"evaluate: {opened.name} holds no run (no recipe.yaml); a model needs --data RECIPE or --text")
    spec = recipe(data).data if data is not None else own.data if own is not None else {}
    dataset = build_data(spec, folder)
    check_fit(dataset, model, opened.name, opened.tokenizer_folder)
    parts = {}
    for name in split_names(dataset, splits):
        there, few = rows_of(dataset, name, rows)
        size = ROWS if batch is None else batch
        parts[name] = of_rows(there, size, exact=dataset.exact, few=few)
    return parts
