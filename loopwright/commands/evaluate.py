"""`loopwright evaluate`: a trained run at every depth, or the held-out loss of any text, as tables, files and figures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from rich.progress import Progress, TaskID

from loopwright.analysis.figures import Curve, accuracy_by_depth, length_by_depth_heatmap, loss_by_depth
from loopwright.commands.models import open_model
from loopwright.commands.words import console, find_device, find_dtype, progress
from loopwright.convert.source import Source
from loopwright.data.batch import FirstRows, Splits
from loopwright.data.build import build_data, check_vocab
from loopwright.data.records import Files
from loopwright.data.tokenizer import Tokenizer
from loopwright.evaluate.heldout import HeldOut, held_out, need_likelihood
from loopwright.evaluate.passages import read_passages
from loopwright.evaluate.sweep import SweepReport, grid, parse_depths, sweep
from loopwright.model.looped import LoopedForCausalLM
from loopwright.recipes.shelf import recipe
from loopwright.run import RunFolder
from loopwright.settings import build_kind, suggest
from loopwright.storage.files import write_whole
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
) -> dict[str, SweepReport]:
    """Prints and saves a sweep over depth of each test split of a run (or of a model, on the data of a recipe); returns them."""
    opened = open_source(source, checkpoint)
    if opened.recipe is None and data is None:
        raise ValueError(
            f"evaluate: {source} holds no run (no recipe.yaml); a model needs --data RECIPE, to be measured on its data, or --text"
        )
    asked = parse_depths(depths) if depths else None
    check_rows(rows, batch)
    model, run, own = find_model(opened, dtype, device, out)
    need_likelihood(model)
    chosen = recipe(data) if own is None and data is not None else own
    assert chosen is not None
    found = build_data(chosen.data if data is None else recipe(data).data, run.path / "data")
    check_vocab(found, model.config.vocab_size)
    wanted, size = asked or usual_depths(chosen, model), ROWS if batch is None else batch
    reports = {name: _sweep(model, found, name, wanted, rows, size, decode) for name in _named(found, splits)}
    printer = console()
    for name, report in reports.items():
        report.save(run.eval / f"{name}.json")
        printer.print(report.table())
    for path in draw(reports, chosen, run):
        printer.print(f"figure: {path}", markup=False)
    printer.print(f"numbers: {run.eval}", markup=False)
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
    model, run, _ = find_model(opened, dtype, device, out)
    length, printer = _fitting_context(model, context), console()
    verdict = need_likelihood(model, marked=teacher_forced or honest > 0)
    printer.print(f"causality: {'passed' if verdict.passed else 'FAILED'}; {verdict.detail}", markup=False)
    words = Tokenizer(tokenizer or opened.tokenizer_folder())
    found = {name: read_passages(name, files, words, length, field=field) for name, files in named.items()}
    if rows is not None:  # of all: the first ones would be those of few documents
        found = {name: passages.drawn(rows) for name, passages in found.items()}
    reports, measured = {}, opened.name if opened.run is None else str(opened.folder)
    for name, passages in found.items():
        with progress() as bar:
            task = bar.add_task(name)

            def show(done: int, total: int, bar: Progress = bar, task: TaskID = task) -> None:
                bar.update(task, completed=done, total=total)

            reports[name] = held_out(
                model, passages,
                depths=asked, causality=verdict, honest=honest, batch_size=batch, source=measured, progress=show,
            )  # fmt: skip
        reports[name].save(run.eval / f"text-{name}.json")
        printer.print(reports[name].table())
    printer.print(f"numbers: {run.eval}", markup=False)
    return reports


def _fitting_context(model: LoopedForCausalLM, context: int | None) -> int:
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
    found: dict[str, str] = {}
    for word in texts:
        name, _, path = word.partition("=") if re.match(r"[\w.-]+=", word) else (Path(word).name.split(".")[0], "", word)
        if not re.fullmatch(r"[\w.-]+", name):
            raise ValueError(f"text: {word!r} gives no name for its numbers; allowed: NAME=FILE, with letters, digits, _ and -")
        if name in found:
            raise ValueError(f"text: two are called {name!r}; allowed: NAME=FILE, each name once")
        found[name] = path
    return found


def open_source(source: str, checkpoint: str | None) -> Source:
    """Returns what is to be measured: a model, or a run at one of its checkpoints."""
    opened = Source(source)
    opened.need_weights("evaluate")
    if checkpoint is None:
        return opened
    if opened.run is None:
        raise ValueError(f"evaluate: --checkpoint belongs to a run, and {source} holds none (no recipe.yaml)")
    return Source(source, checkpoint=checkpoint)


def find_model(source: Source, dtype: str, device: str, out: str | None) -> tuple[LoopedForCausalLM, RunFolder, Recipe | None]:
    """Returns the model of a source, where its numbers go, and the run's recipe if any."""
    own = None if source.run is None or source.recipe is None else make_recipe(source.recipe, str(source.run.recipe))
    numbers = RunFolder(out or ("runs/evaluate" if source.run is None else source.run.path))
    blocked = next((path for path in (numbers.eval, *numbers.eval.parents) if path.exists() and not path.is_dir()), None)
    if blocked is not None:
        raise ValueError(f"out: {blocked} is a file; allowed: a folder, there or not")
    model = open_model(source, find_dtype(dtype), find_device(device))
    if source.has_average:
        console().print("measured with the averaged weights, as the run's own looks were", markup=False)
    return model, numbers, own


def usual_depths(chosen: Recipe, model: LoopedForCausalLM) -> list[int]:
    """Returns the depths a run is measured at when none are asked for: all up to twice the median, then on to 16 times it."""
    if not model.config.is_looped:
        return [1]
    median = build_kind(chosen.depth, RULES).median
    last = 16 * median
    if model.config.max_steps is not None and model.config.beyond_max_steps == "refuse":
        last = min(last, model.config.max_steps)
    return sorted({*range(1, min(2 * median, last) + 1), *(d for d in parse_depths(f"1:{last}:log"))})


def _named(found: Splits, splits: Sequence[str]) -> list[str]:
    there = {**found.tests} or {"valid": found.valid}
    for name in splits:
        if name not in {**there, "valid": None}:
            raise ValueError(f"split: unknown {name!r}; {suggest(name, [*there, 'valid'])}")
    return list(splits) or list(there)


def _sweep(
    model: LoopedForCausalLM, found: Splits, name: str, depths: list[int], rows: int | None, batch: int, decode: bool
) -> SweepReport:
    source = found.valid if name == "valid" else found.tests[name]
    if rows is not None:
        source = FirstRows(source, rows)
    decodable = found.exact and not found.in_place
    decoded = sorted({depths[0], depths[len(depths) // 2], depths[-1]}) if decode and decodable else []
    with progress() as bar:
        task = bar.add_task(name)
        return sweep(
            model, source,
            depths=depths, batch_size=batch, exact=found.exact, eos_id=found.eos_id, pad_id=found.pad_id, decode_depths=decoded,
            split=name, progress=lambda done, total: bar.update(task, completed=done, total=total),
        )  # fmt: skip


def draw(reports: dict[str, SweepReport], chosen: Recipe, run: RunFolder) -> list[Path]:
    """Draws what the reports say into the run's figures and returns the files."""
    rule = build_kind(chosen.depth, RULES)
    trained = rule.span
    exact = next(iter(reports.values())).exact[0] is not None
    name, figure = ("exact", accuracy_by_depth) if exact else ("loss", loss_by_depth)
    run.figures.mkdir(parents=True, exist_ok=True)
    files = {f"{name}-by-depth.svg": figure({split: Curve(**r.curve(name)) for split, r in reports.items()}, trained=trained)}
    if exact and len(reports) > 1:
        table = grid(reports)
        files["split-by-depth.svg"] = length_by_depth_heatmap(
            table["values"], rows=table["rows"], columns=table["columns"], trained_rows=["test"]
        )
    for file, svg in files.items():
        write_whole(run.figures / file, svg)
    return [run.figures / file for file in files]
