"""`loopwright evaluate`: a trained run at every depth, or the held-out loss of any text, as tables, files and figures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from rich.progress import Progress, TaskID

from loopwright.check.likelihood import need_likelihood
from loopwright.commands.console import console, progress
from loopwright.commands.device import find_device, find_dtype
from loopwright.commands.loading import open_model
from loopwright.commands.results import file_stem, keep_more, need_writable
from loopwright.commands.wait import tell_wait
from loopwright.data.batch import FirstRows, Splits
from loopwright.data.batch import Source as Rows
from loopwright.data.build import build_data
from loopwright.data.records import Files
from loopwright.data.tokenizer import Tokenizer
from loopwright.evaluate.heldout import HeldOut, held_out
from loopwright.evaluate.passages import read_passages
from loopwright.evaluate.sweep import SweepReport, grid, parse_depths, sweep
from loopwright.generate.readings import check_depths
from loopwright.model.looped import LoopedForCausalLM
from loopwright.plot.training import BY_DEPTH, length_by_depth_heatmap
from loopwright.recipes import recipe
from loopwright.run import RunFolder
from loopwright.settings import build_kind, suggest
from loopwright.source import Source, check_fit
from loopwright.threads import fitting_threads
from loopwright.train.depth import RULES
from loopwright.train.recipe import Recipe, make_recipe

CONTEXT = 512  # tokens of a passage, where nothing is said and the model has as many positions
FIELD = "text"  # of a JSON line, where nothing is said
ROWS = 500  # of a pass over a task's split, where nothing is said


def evaluate(
    source: str,
    *,
    depths: str | None = None,
    splits: Sequence[str] = (),
    checkpoint: str | None = None,
    data: str | None = None,
    rows: int | None = None,
    batch: int | None = None,
    decode: bool = True,
    device: str = "cpu",
    dtype: str = "float32",
    out: str | None = None,
    overwrite: bool = False,
) -> dict[str, SweepReport]:
    """Prints and saves a sweep over depth of each test split of a run (or of a model, on the data of a recipe); returns them."""
    asked = parse_depths(depths) if depths else None
    check_rows(rows, batch)
    opened = open_source(source, checkpoint)
    if data is None and not opened.path.exists():
        raise FileNotFoundError(f"evaluate: {source}: there is no such folder; allowed: the folder of a run")
    if opened.recipe is None and data is None:
        raise ValueError(
            f"evaluate: {source} holds no run (no recipe.yaml); a model needs --data RECIPE, to be measured on its data, or --text"
        )
    model, run, trained_with = find_model(opened, dtype, device, out)
    need_likelihood(model)
    chosen = recipe(data) if trained_with is None and data is not None else trained_with
    assert chosen is not None
    dataset = build_data(chosen.data if data is None else recipe(data).data, run.data)
    check_fit(dataset, model, opened.name, opened.tokenizer_folder)
    wanted, size = asked or usual_depths(chosen, model), ROWS if batch is None else batch
    measured, update = opened.name if opened.run is None else str(opened.folder), chosen_update(source, checkpoint)
    parts = {name: rows_of(dataset, name, rows) for name in split_names(dataset, splits)}
    files = {name: run.eval / f"{file_stem(name, rows=part[1], checkpoint=update, data=data)}.json" for name, part in parts.items()}
    for name, path in files.items():
        keep_more(
            path, SweepReport.load,
            depths=wanted, facts={"rows": len(parts[name][0]), "dtype": str(model.dtype).removeprefix("torch.")},
            source=None if out is None and opened.run is not None else measured, overwrite=overwrite,
        )  # fmt: skip
    printer, reports = console(), {}
    for name, (rows_there, _) in parts.items():
        reports[name] = _sweep(model, dataset, rows_there, name, wanted, size, decode, measured)
        printer.print(reports[name].table(printer.width))
        reports[name].save(files[name])
    few = next((count for _, count in parts.values() if count is not None), None)
    ending = file_stem("-".join(splits), rows=few, checkpoint=update, data=data)
    for path in draw(reports, chosen, run, ending):
        printer.print(f"figure: {path}", markup=False, soft_wrap=True)
    for path in files.values():
        printer.print(f"numbers: {path}", markup=False, soft_wrap=True)
    return reports


def evaluate_text(
    source: str,
    texts: Sequence[str],
    *,
    context: int | None = None,
    depths: str | None = None,
    checkpoint: str | None = None,
    tokenizer: str | None = None,
    field: str = FIELD,
    rows: int | None = None,
    batch: int | None = None,
    teacher_forced: bool = False,
    honest: int = 0,
    device: str = "cpu",
    dtype: str = "float32",
    out: str | None = None,
    overwrite: bool = False,
) -> dict[str, HeldOut]:
    """Prints and saves the held-out loss of a run or model on each text (FILE, or NAME=FILE; patterns allowed); returns them."""
    if honest < 0:
        raise ValueError(f"honest: {honest}; allowed: a number of tokens from 0")
    if context is not None and context < 2:
        raise ValueError(f"context: {context}; allowed: at least 2 tokens")
    check_rows(rows, batch)
    named, asked = name_texts(texts), parse_depths(depths) if depths else None
    for files in named.values():
        Files(files)  # names and endings; what cannot be used is told before a model is loaded
    opened = open_source(source, checkpoint)
    words = Tokenizer(find_tokenizer(opened, tokenizer))
    model, run, _ = find_model(opened, dtype, device, out)
    length, printer = fitting_context(model, context), console()
    verdict = need_likelihood(model, marked=teacher_forced or honest > 0)
    printer.print(f"causality: {'passed' if verdict.passed else 'FAILED'}; {verdict.detail}", markup=False)
    passages_by_name = {name: read_passages(name, files, words, length, field=field) for name, files in named.items()}
    chosen = {name: None if rows is None or rows >= len(passages) else rows for name, passages in passages_by_name.items()}
    if rows is not None:  # of all: the first ones would be those of few documents
        passages_by_name = {name: passages.drawn(rows) for name, passages in passages_by_name.items()}
    measured = opened.name if opened.run is None else str(opened.folder)
    kept = {
        name: run.eval / f"{file_stem(f'text-{name}', rows=chosen[name], checkpoint=chosen_update(source, checkpoint))}.json"
        for name in passages_by_name
    }
    for name, path in kept.items():
        facts = {"fingerprint": passages_by_name[name].fingerprint, "dtype": str(model.dtype).removeprefix("torch.")}
        keep_more(
            path, HeldOut.load,
            depths=check_depths(model.config, asked), facts=facts,
            source=None if out is None and opened.run is not None else measured, overwrite=overwrite,
        )  # fmt: skip
    reports = {}
    for name, passages in passages_by_name.items():
        with fitting_threads(model), progress() as bar:
            task = bar.add_task(name)
            if model.config.is_looped:
                tell_wait(model, max(asked) if asked else None, rows=batch or 1, length=length)

            def show(done: int, total: int, bar: Progress = bar, task: TaskID = task) -> None:
                bar.update(task, completed=done, total=total)

            reports[name] = held_out(
                model, passages,
                depths=asked, causality=verdict, honest=honest, batch_size=batch, source=measured, progress=show,
            )  # fmt: skip
        printer.print(reports[name].table(printer.width))
        reports[name].save(kept[name])
    for path in kept.values():
        printer.print(f"numbers: {path}", markup=False, soft_wrap=True)
    return reports


def fitting_context(model: LoopedForCausalLM, context: int | None) -> int:
    """Returns the tokens of a passage: those asked for where the model has as many positions, else the usual number."""
    room = model.config.max_position_embeddings
    if context is not None and context > room:
        raise ValueError(f"context: {context}; allowed: at most {room}, the positions of the model (max_position_embeddings)")
    return min(CONTEXT, room) if context is None else context


def check_rows(rows: int | None, batch: int | None) -> None:
    """Raises a ValueError where rows to measure, or of a pass, are fewer than one."""
    for name, value in {"rows": rows, "batch": batch}.items():
        if value is not None and value < 1:
            raise ValueError(f"{name}: {value}; allowed: at least 1")


def name_texts(texts: Sequence[str]) -> dict[str, str]:
    """Returns files by name: NAME=FILE as said, FILE under its own name without endings; two of one name are refused."""
    texts_by_name: dict[str, str] = {}
    for word in texts:
        name, _, path = word.partition("=") if re.match(r"[\w.-]+=", word) else (Path(word).name.split(".")[0], "", word)
        if not re.fullmatch(r"[\w.-]+", name):
            raise ValueError(f"text: {word!r} gives no name for its numbers; allowed: NAME=FILE, with letters, digits, _ and -")
        if name in texts_by_name:
            raise ValueError(f"text: two are called {name!r}; allowed: NAME=FILE, each name once")
        texts_by_name[name] = path
    return texts_by_name


def open_source(source: str, checkpoint: str | None) -> Source:
    """Returns what is to be measured: a model, or a run at one of its checkpoints."""
    opened = Source(source)
    opened.need_weights("evaluate")
    if checkpoint is None:
        return opened
    if opened.run is None:
        raise ValueError(f"evaluate: --checkpoint belongs to a run, and {source} holds none (no recipe.yaml)")
    return Source(source, checkpoint=checkpoint)


def find_tokenizer(source: Source, given: str | None) -> str | Path:
    """Returns where the tokenizer stands that is given (a folder or run, else a hub id), or that of what is measured."""
    if given is None:
        return source.tokenizer_folder()
    named = Source(given)
    return named.tokenizer_folder() if named.path.exists() else given


def chosen_update(source: str, checkpoint: str | None) -> str | None:
    """Returns the checkpoint that was chosen by hand, by its name or by its folder; None where a run speaks for its last one."""
    folder = Path(source)
    return str(int(folder.name)) if folder.parent.name == "checkpoints" and folder.name.isdecimal() else checkpoint


def find_model(source: Source, dtype: str, device: str, out: str | None) -> tuple[LoopedForCausalLM, RunFolder, Recipe | None]:
    """Returns the model of a source, where its numbers go, and the run's recipe if any."""
    trained_with = None if source.run is None or source.recipe is None else make_recipe(source.recipe, str(source.run.recipe))
    numbers = RunFolder(out or (f"runs/evaluate-{Path(source.name).name}" if source.run is None else source.run.path))
    need_writable("evaluate", numbers.eval, numbers.figures)
    model = open_model(source, find_dtype(dtype), find_device(device))
    if source.has_average:
        console().print("measured with the averaged weights, as in the run's own validation", markup=False)
    return model, numbers, trained_with


def usual_depths(chosen: Recipe, model: LoopedForCausalLM) -> list[int]:
    """Returns the depths a run is measured at when none are asked for: all up to twice the median, then on to 16 times it."""
    if not model.config.is_looped:
        return [1]
    median = build_kind(chosen.depth, RULES).median
    last = 16 * median
    if model.config.max_steps is not None and model.config.beyond_max_steps == "refuse":
        last = min(last, model.config.max_steps)
    return sorted({*range(1, min(2 * median, last) + 1), *(d for d in parse_depths(f"1:{last}:log"))})


def split_names(found: Splits, splits: Sequence[str]) -> list[str]:
    """Returns the splits asked for, all tests where none are; raises on a name that is none."""
    there = {**found.tests} or {"valid": found.valid}
    for name in splits:
        if name not in {**there, "valid": None}:
            raise ValueError(f"split: unknown {name!r}; {suggest(name, [*there, 'valid'])}")
    return list(splits) or list(there)


def rows_of(found: Splits, name: str, rows: int | None) -> tuple[Rows, int | None]:
    """Returns the rows of a split that are measured, and how many where they are not all."""
    source = found.valid if name == "valid" else found.tests[name]
    if rows is None or rows >= len(source):
        return source, None
    return FirstRows(source, rows), rows


def _sweep(
    model: LoopedForCausalLM, found: Splits, source: Rows, name: str, depths: list[int], batch: int, decode: bool, weights: str
) -> SweepReport:
    if model.config.is_looped:
        tell_wait(model, max(depths), rows=min(batch, len(source)), length=source.batch([0]).input_ids.shape[1])
    decodable = found.exact and not found.in_place
    decoded = sorted({depths[0], depths[len(depths) // 2], depths[-1]}) if decode and decodable else []
    with fitting_threads(model), progress() as bar:
        task = bar.add_task(name)
        return sweep(
            model, source,
            depths=depths, batch_size=batch, exact=found.exact, eos_id=found.eos_id, pad_id=found.pad_id, decode_depths=decoded,
            split=name, source_name=weights, progress=lambda done, total: bar.update(task, completed=done, total=total),
        )  # fmt: skip


def draw(reports: dict[str, SweepReport], chosen: Recipe, run: RunFolder, ending: str = "") -> list[Path]:
    """Draws what the reports say into the run's figures, under names with this ending, and returns the files."""
    rule = build_kind(chosen.depth, RULES)
    trained = rule.span
    measure = next(iter(reports.values())).measure
    curves = {split: report.curve(measure) for split, report in reports.items()}
    files = {f"{measure}-by-depth": BY_DEPTH[measure](curves, trained=trained)}
    if measure == "exact" and len(reports) > 1:
        files["split-by-depth"] = length_by_depth_heatmap(**grid(reports), trained_rows=["test"])
    return [drawing.save(run.figures / f"{'-'.join(filter(None, (name, ending)))}.svg") for name, drawing in files.items()]
