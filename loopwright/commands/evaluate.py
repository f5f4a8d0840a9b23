"""`loopwright evaluate`: a trained run at every depth, as a table, a file and a figure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from loopwright.analysis.figures import Curve, accuracy_by_depth, length_by_depth_heatmap, loss_by_depth
from loopwright.commands.words import console, find_device, find_dtype, progress
from loopwright.convert.load import load
from loopwright.data.batch import FirstRows, Splits
from loopwright.data.build import build_data, check_vocab
from loopwright.evaluate.sweep import SweepReport, grid, parse_depths, sweep
from loopwright.model.looped import LoopedForCausalLM
from loopwright.recipes.shelf import recipe
from loopwright.run import RunFolder, write_whole
from loopwright.settings import build_kind, suggest
from loopwright.train.average import load_average
from loopwright.train.checkpoint import find_checkpoint
from loopwright.train.depth import RULES
from loopwright.train.recipe import Recipe, read_recipe


def evaluate(
    source: str,
    *,
    depths: str | None = None,
    splits: Sequence[str] = (),
    checkpoint: str = "last",
    data: str | None = None,
    rows: int | None = None,
    batch: int = 500,
    decode: bool = True,
    device: str = "cpu",
    dtype: str = "float32",
    out: str | None = None,
) -> dict[str, SweepReport]:
    """Prints and saves a sweep over depth of each test split of a run (or of a model, on the data of a recipe); returns them."""
    run = RunFolder(source)
    if run.recipe.is_file():
        chosen = read_recipe(run.recipe)
        folder: Path = find_checkpoint(run.checkpoints, checkpoint).folder
    elif data is None:
        raise ValueError(
            f"evaluate: {source} holds no run (no recipe.yaml); a model needs --data RECIPE, to be measured on its data"
        )
    else:
        chosen, folder = recipe(data), Path(source)
        run = RunFolder(out or "runs/evaluate")
    if out is not None:
        run = RunFolder(out)
    model = load(folder, dtype=find_dtype(dtype), device=find_device(device))
    if (folder / "average.safetensors").is_file():
        load_average(folder, model)
        console().print("measured with the averaged weights, as the run's own looks were", markup=False)
    found = build_data(chosen.data if data is None else recipe(data).data, run.path / "data")
    check_vocab(found, model.config.vocab_size)
    asked = parse_depths(depths) if depths else usual_depths(chosen, model)
    reports = {name: _sweep(model, found, name, asked, rows, batch, decode) for name in _named(found, splits)}
    printer = console()
    for name, report in reports.items():
        report.save(run.eval / f"{name}.json")
        printer.print(report.table())
    for path in draw(reports, chosen, run):
        printer.print(f"figure: {path}", markup=False)
    printer.print(f"numbers: {run.eval}", markup=False)
    return reports


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
