"""The verbs from Python: train, evaluate and compare, with objects in the place of names."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from rich.console import Group

from loopwright.check.likelihood import need_likelihood
from loopwright.data.batch import FirstRows, Splits
from loopwright.data.batch import Source as Rows
from loopwright.data.build import build_data
from loopwright.data.tokenizer import NoTokenizer, Tokenizer
from loopwright.evaluate.exit_rows import ExitEvaluation, exit_words, exits_of, of_rows, of_text
from loopwright.evaluate.harness import evaluate_tasks
from loopwright.evaluate.heldout import HeldOut, held_out
from loopwright.evaluate.paired import Paired, compare_rows, paired_table
from loopwright.evaluate.paired import compare as compare_texts
from loopwright.evaluate.passages import Passages, passage_length, read_passages
from loopwright.evaluate.starts import StartReport, gathered
from loopwright.evaluate.sweep import SweepReport, grid, parse_depths, sweep
from loopwright.evaluate.tasks import Asking, TaskEvaluation, task_names
from loopwright.generate.stream import check_seeded
from loopwright.model.looped import LoopedForCausalLM
from loopwright.model.parts.state import started_at
from loopwright.notebook import html_of
from loopwright.plot.drawing import Drawing, Plotted
from loopwright.plot.training import BY_DEPTH, length_by_depth_heatmap
from loopwright.recipes import find
from loopwright.recipes import recipe as find_recipe
from loopwright.settings import merge, options_of, refuse_unknown
from loopwright.source import Source, check_fit
from loopwright.source import tokenizer as load_words
from loopwright.threads import fitting_threads
from loopwright.train.loop import train as run_training
from loopwright.train.recipe import Recipe, make_recipe
from loopwright.train.reporting.progress import Silent, Terminal
from loopwright.train.state import Objects, Run
from loopwright.values import check_whole

BATCH = 500  # rows of a pass over a task, where nothing is said

Model = LoopedForCausalLM | Run | str | Path
Data = Splits | Rows | Mapping[str, Any] | str
Texts = str | Path | Mapping[str, str | Path]


def train(
    recipe: Recipe | Mapping[str, Any] | str | Path,
    *,
    model: LoopedForCausalLM | Mapping[str, Any] | None = None,
    data: Splits | Mapping[str, Any] | None = None,
    objective: Any = None,
    on_update: Callable[[dict[str, Any]], object] | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    progress: bool = True,
) -> Run:
    """Trains and returns the run: its model, its folder, its log.

    Args:
        recipe: the name of a shipped recipe, a YAML file, a dict or an `lw.Recipe`.
        model, data, objective: objects instead of the recipe's kinds, or `{"kind": …}`. Data comes from `lw.splits`. An
            objective is called with (model, rollout) and returns (loss, metrics).
        on_update: called with each update's row of the log; if it returns True, the run stops there and is saved.
        out: the run folder; default: runs/NAME of the recipe.
        resume: continue the run in the folder, bit for bit; pass the same objects again.
        progress: print a bar, or a line now and then, on stderr.
    """
    parts = {"model": model, "data": data, "objective": objective}
    specs = {name: dict(part) for name, part in parts.items() if isinstance(part, Mapping)}
    objects = {name: part for name, part in parts.items() if part is not None and name not in specs}
    _check_objects(objects, on_update)
    placeholders = {name: {"kind": "given", "what": f"the {name} ({_told(part)})"} for name, part in objects.items()}
    plain, name = _plain(recipe)
    chosen = make_recipe({**plain, **specs, **placeholders})
    folder = Path(out) if out is not None else Path("runs") / name
    reporter = Terminal(folder.name) if progress else Silent()
    return run_training(
        chosen, folder,
        resume=resume, reporter=reporter, given=Objects(**objects), on_update=on_update, within=fitting_threads,
    )  # fmt: skip


@dataclass(frozen=True)
class Evaluation(Plotted):
    """Reports by split or text, as `loopwright evaluate` gives them."""

    reports: Mapping[str, SweepReport | HeldOut | StartReport]

    def __getitem__(self, name: str) -> SweepReport | HeldOut | StartReport:
        if name not in self.reports:
            raise KeyError(f"{name!r} was not measured; there are {', '.join(self.reports)}")
        return self.reports[name]

    def table(self, width: int | None = None) -> Group:
        """Returns the tables, for rich to print."""
        return Group(*(report.table(width) for report in self.reports.values()))

    def drawing(self) -> Drawing:
        """Returns exact match, or else the loss, over depth."""
        measure = min((report.measure for report in self.reports.values()), key=["loss", "exact"].index)
        return BY_DEPTH[measure]({name: report.curve(measure) for name, report in self.reports.items()})

    def heatmap(self, path: str | Path | None = None, *, style: str = "light", size: str = "page") -> Drawing:
        """Returns exact match as a grid, a row per split and a column per depth; arguments as for `plot`."""
        reports = {name: report for name, report in self.reports.items() if report.measure == "exact"}
        if not reports:
            raise ValueError(f"heatmap: no split has right and wrong answers (got {', '.join(self.reports)}); use plot")
        return length_by_depth_heatmap(**grid(cast(Any, reports))).kept(path, style, size)

    def to_dict(self) -> dict[str, list[dict[str, Any]]]:
        """Returns the numbers as plain data: for each split or text, a row per depth."""
        names = ("loss", "loss_low", "loss_high", "perplexity", "bits_per_byte", "exact", "exact_low", "exact_high")
        return {
            split: [
                {"depth": depth, **{name: getattr(report, name)[i] for name in names if name in report.__dataclass_fields__}}
                for i, depth in enumerate(report.depth)
            ]
            for split, report in self.reports.items()
        }

    def to_pandas(self) -> Any:
        """Returns the rows of `to_dict` as a pandas DataFrame with a column for the split; pandas must be installed."""
        import pandas

        return pandas.DataFrame([{"split": split, **row} for split, rows in self.to_dict().items() for row in rows])

    def __repr__(self) -> str:
        return f"Evaluation({'; '.join(repr(report) for report in self.reports.values())})"

    def _repr_html_(self) -> str:
        return html_of(self.table())


def evaluate(
    model: Model,
    *,
    depths: int | str | Iterable[int] | None = None,
    data: Data | None = None,
    text: Texts | None = None,
    tokenizer: str | Path | None = None,
    splits: str | Sequence[str] = (),
    rows: int | None = None,
    batch: int | None = None,
    context: int | None = None,
    exit: str | Sequence[str] = (),
    tasks: str | Sequence[str] = (),
    task_data: str | Path | None = None,
    shots: int | None = None,
    asking: Mapping[str, Any] | None = None,
    state_seeds: int | None = None,
) -> Evaluation | ExitEvaluation | TaskEvaluation:
    """Measures a model at several depths from one pass, or what exit rules would cost and give. Nothing is written.

    Args:
        model: a model, a run of `lw.train`, or anything that `lw.load` opens.
        depths: numbers, or words such as "1:8" and "1:64:log"; default: the model's own depth.
        data: `lw.splits`, rows of one, `{"kind": …}` or a recipe's name; default: the data that a run was trained on.
        text: a file of running text or JSON lines (patterns allowed), or several by name; gives the held-out loss.
        tokenizer: a folder or hub id; default: that of the model's folder or run.
        splits: which of the data's test splits, or "valid"; default: all tests.
        rows: how many rows of a split (the first ones), or passages drawn from a text; default: all.
        batch: rows in a pass.
        context: tokens in a passage of text.
        exit: rules by which tokens leave the loop early, as `evaluate --exit` takes them ("entropy:0.1", "all"); `depths` is then
            one depth, the most steps of a token.
        tasks: names of lm-eval's tasks, in the place of data and text; `task_data` is a folder with their questions (default: the
            hub), `shots` the examples before each (default: the task's own number), `rows` the first questions of each;
            `asking` how they are put: {"chat": True} in the chat template, "system" a message before it, "max_new_tokens" the
            longest answer.
        state_seeds: with data or text: measure from so many starts of a state that is noise, and give mean, least and largest.
    """
    if state_seeds is not None:
        if exit or tasks:
            raise ValueError("state_seeds: given with exit or tasks; allowed: data or text")
        rest = {"tokenizer": tokenizer, "splits": splits, "rows": rows, "batch": batch, "context": context}
        return _from_starts(_open(model), state_seeds, {"depths": depths, "data": data, "text": text, **rest})
    rules = exit_words([exit] if isinstance(exit, str) else exit)
    depths = [depths] if isinstance(depths, int) else parse_depths(depths) if isinstance(depths, str) else depths
    splits = [splits] if isinstance(splits, str) else splits
    _check_numbers(rows=rows, batch=batch)
    if context is not None and text is None:
        raise ValueError(f"context: {context} belongs to text=, and none is given")
    if not tasks and (task_data is not None or shots is not None or asking):
        raise ValueError("evaluate: task_data, shots and asking belong to tasks=, which is not given")
    if tasks:
        if data is not None or text is not None or splits or context is not None or rules:
            raise ValueError("tasks: given with data, text, splits, context or exit, none of which belong to it")
        return _tasks(_open(model), tasks, depths, tokenizer, asking, folder=task_data, shots=shots, limit=rows, batch=batch)
    opened = _open(model)
    if (data is None) == (text is None) and not (data is None and opened.data is not None):
        raise ValueError("evaluate: give data= (rows with answers) or text= (files of running text), one of them")
    if rules and depths is not None and len(depths := list(depths)) != 1:
        raise ValueError(f"depths: {depths} with exit; give one depth, the most steps that a token may take")
    with fitting_threads(opened.model):
        if text is not None:
            length = passage_length(opened.model.config.max_position_embeddings, context)
            words = Tokenizer(tokenizer if tokenizer is not None else opened.words())
            texts = {name: read_passages(name, files, words, length) for name, files in _named(text).items()}
            return _on_texts(opened, texts, rules, depths, rows, batch)
        dataset = opened.data() if data is None and opened.data is not None else _splits(data)
        check_fit(dataset, opened.model, opened.name, opened.words)
        return _on_rows(opened, dataset, _parts(dataset, splits, rows), rules, depths, batch)


def _on_texts(
    opened: _Opened, texts: Mapping[str, Passages], rules: Sequence[Mapping[str, Any]], depths: Any,
    rows: int | None, batch: int | None,
) -> Evaluation | ExitEvaluation:  # fmt: skip
    """Returns what running text gives: held-out losses, or exits."""
    if rules:
        parts = {name: of_text(opened.model, passages, rows, batch) for name, passages in texts.items()}
        return exits_of(opened.model, parts, rules, depths, source=opened.name)
    chosen = {name: passages if rows is None else passages.drawn(rows) for name, passages in texts.items()}
    options = {"depths": depths, "batch_size": batch, "source": opened.name}
    return Evaluation({name: held_out(opened.model, passages, **options) for name, passages in chosen.items()})


def _on_rows(
    opened: _Opened, dataset: Splits, parts: Mapping[str, Rows], rules: Sequence[Mapping[str, Any]], depths: Any,
    batch: int | None,
) -> Evaluation | ExitEvaluation:  # fmt: skip
    """Returns what rows with answers give: a sweep over depth, or exits."""
    if rules:
        measured = {n: of_rows(part, batch or BATCH, exact=dataset.exact) for n, part in parts.items()}
        return exits_of(opened.model, measured, rules, depths, source=opened.name)
    return Evaluation({
        name: sweep(
            opened.model, part,
            depths=depths, batch_size=batch or BATCH, exact=dataset.exact, eos_id=dataset.eos_id, pad_id=dataset.pad_id,
            split=name, source_name=opened.name,
        )
        for name, part in parts.items()
    })  # fmt: skip


def _from_starts(opened: _Opened, count: int, options: dict[str, Any]) -> Evaluation:
    """The same from the starts of seeds 0, 1, 2 …"""
    check_whole("state_seeds", count, 1)
    check_seeded(opened.model.config, "state_seeds", count)
    if options["data"] is None and options["text"] is None and opened.data is not None:
        options["data"] = opened.data()
    if options["text"] is not None and options["tokenizer"] is None:
        options["tokenizer"] = opened.words()
    if options["depths"] is not None and not isinstance(options["depths"], int | str):
        options["depths"] = list(options["depths"])
    found = []
    for seed in range(count):
        with started_at(opened.model.state, seed):
            found.append(cast(Any, evaluate(opened.model, **options)).reports)
    return Evaluation({name: gathered([each[name] for each in found], range(count), opened.name) for name in found[0]})


def _tasks(
    opened: Any, tasks: str | Sequence[str], depths: Any, tokenizer: Any, asking: Mapping[str, Any] | None, **options: Any
) -> TaskEvaluation:
    refuse_unknown("asking", asking or {}, options_of(Asking))
    options["asking"] = Asking(**asking or {})
    names = task_names(tasks)
    words = load_words(tokenizer if tokenizer is not None else opened.words())
    need_likelihood(opened.model)
    with fitting_threads(opened.model):
        return TaskEvaluation(evaluate_tasks(opened.model, words, names, depths, source=opened.name, **options))


@dataclass(frozen=True)
class Comparison:
    """Two models on the same rows or passages, paired: differences of the first minus the second, with 95 % intervals."""

    first: str
    second: str
    results: tuple[Paired, ...]

    def table(self, width: int | None = None) -> Any:
        """Returns the results as a rich table."""
        return paired_table(self.results, self.first, self.second, width)

    def to_dict(self) -> dict[str, Any]:
        """Returns the results as plain data."""
        rows = [{**vars(result), "depths": list(result.depths), "decided": result.decided} for result in self.results]
        return {"first": self.first, "second": self.second, "results": rows}

    def __repr__(self) -> str:
        words = (
            f"{r.text} {r.measure} {r.difference:+.4g} ({r.difference_low:.4g} to {r.difference_high:.4g})" for r in self.results
        )
        return f"Comparison({self.first!r} - {self.second!r}: {'; '.join(words)})"

    def _repr_html_(self) -> str:
        return html_of(self.table())


def compare(
    first: Model,
    second: Model,
    *,
    depths: int | Sequence[int | None] | None = None,
    data: Data | None = None,
    text: Texts | None = None,
    tokenizer: str | Path | None = None,
    splits: str | Sequence[str] = (),
    rows: int | None = None,
    batch: int | None = None,
    context: int | None = None,
    device: str = "cpu",
) -> Comparison:
    """Compares two models row by row on the same data, or passage by passage on the same text; options as for `evaluate`.

    `depths` is one depth for both, or a pair; default: each model's own. A model that is named, not given, is opened on `device`.
    """
    splits = [splits] if isinstance(splits, str) else splits
    _check_numbers(rows=rows, batch=batch)
    if data is not None and text is not None:
        raise ValueError("compare: give data= or text=, one of them")
    one, two = _open(first, "compare", device), _open(second, "compare", device)
    pair = tuple(depths) if isinstance(depths, Sequence) else (depths, depths)
    if len(pair) != 2:
        raise ValueError(f"depths: {pair}; give one depth for both, or a pair")
    configs = [opened.model.config for opened in (one, two)]
    # a dense model has one depth, which is shown as 1
    at = [c.check_depth(depth if c.is_looped or depth != 1 else None) for c, depth in zip(configs, pair, strict=True)]
    if text is not None:
        options: dict[str, Any] = {"text": text, "rows": rows, "batch": batch, "context": context}
        words = tokenizer if tokenizer is not None else _shared_words(one, two)
        reports = [evaluate(o.model, depths=[d], tokenizer=words, **options) for o, d in zip((one, two), at, strict=True)]
        results = [compare_texts(cast(HeldOut, reports[0][name]), cast(HeldOut, reports[1][name])) for name in reports[0].reports]
        return Comparison(one.name, two.name, tuple(results))
    chosen = one.data() if data is None and one.data is not None else None if data is None else _splits(data)
    if chosen is None:
        raise ValueError("compare: give data= (rows with answers) or text= (files of running text)")
    for opened in (one, two):
        check_fit(chosen, opened.model, opened.name, opened.words)
    with fitting_threads(one.model):
        results = compare_rows(
            one.model, two.model, _parts(chosen, splits, rows),
            depths=(at[0], at[1]), exact=chosen.exact, batch_size=batch or BATCH, names=(one.name, two.name),
        )  # fmt: skip
    return Comparison(one.name, two.name, tuple(results))


# what the arguments mean


@dataclass(frozen=True)
class _Opened:
    model: LoopedForCausalLM
    name: str
    data: Callable[[], Splits] | None
    words: Callable[[], str | Path]


def _open(model: Model, verb: str = "evaluate", device: str = "cpu") -> _Opened:
    if isinstance(model, LoopedForCausalLM):
        return _Opened(model, type(model).__name__, None, _no_words)
    if not isinstance(model, Run | str | Path):
        raise TypeError(f"model: must be a model, a run or what lw.load takes (got {type(model).__name__})")
    if isinstance(model, Run):
        return _Opened(model.model, str(model.folder.path), lambda: model.splits, Source(model.checkpoint).tokenizer_folder)
    source = Source(model)
    source.need_weights(verb)
    recipe, run = source.recipe, source.run
    data = None
    if recipe is not None and run is not None:
        data = lambda: build_data(recipe["data"], run.data)  # noqa: E731  (asked for only where nothing else is given)
    opened = source.model(device=device)
    for note in source.notes:
        warnings.warn(note, stacklevel=3)
    return _Opened(opened, source.name, data, source.tokenizer_folder)


def _check_objects(objects: Mapping[str, Any], on_update: object) -> None:
    wanted = {"model": (LoopedForCausalLM, "lw.build, lw.load or lw.retrofit"), "data": (Splits, "lw.splits")}
    for name, (kind, source) in wanted.items():
        if name in objects and not isinstance(objects[name], kind):
            got = type(objects[name]).__name__
            raise TypeError(f"{name}: must come from {source}, or be a {{'kind': …}} as in a recipe (got {got})")
    for name, part in {"objective": objects.get("objective"), "on_update": on_update}.items():
        if part is not None and not callable(part):
            raise TypeError(f"{name}: must be callable (got {type(part).__name__})")


def _told(part: Any) -> str:
    """Returns what the recipe says of an object; of data enough to notice that a resumed run has been given another."""
    if not isinstance(part, Splits):
        return type(part).__name__
    rows = len(part.train)
    ends = [part.train.batch([place]).input_ids for place in (0, rows - 1)]
    digest = hashlib.sha256(b"".join(ids.numpy().tobytes() for ids in ends)).hexdigest()[:8]
    return f"Splits of {rows} rows, {digest}"


def _check_numbers(**numbers: int | None) -> None:
    for name, value in numbers.items():
        if value is not None:
            check_whole(name, value, 1)


def _shared_words(one: _Opened, two: _Opened) -> str | Path:
    """Returns the tokenizer of two models, which must be one: losses per token of different tokens are not comparable."""
    words = one.words()
    if two.words is not _no_words and Tokenizer(words).fingerprint != Tokenizer(two.words()).fingerprint:
        raise ValueError(
            f"compare: {one.name} and {two.name} have different tokenizers, so their losses per token cannot be compared; "
            "where both were trained with one, give it: --tokenizer, or tokenizer= in Python"
        )
    return words


def _no_words() -> str:
    raise NoTokenizer("tokenizer: a model alone has none; give tokenizer= (a folder or hub id)")


def _plain(recipe: Recipe | Mapping[str, Any] | str | Path) -> tuple[dict[str, Any], str]:
    """Returns a recipe as plain data, and the name of its run folder."""
    if isinstance(recipe, Recipe):
        return recipe.data_of(), "run"
    if isinstance(recipe, Mapping):
        return merge({}, recipe), "run"
    return find_recipe(str(recipe)).data_of(), find(str(recipe)).stem


def _splits(data: Any) -> Splits:
    if isinstance(data, Splits):
        return data
    if isinstance(data, str):
        return build_data(find_recipe(data).data)
    if isinstance(data, Mapping):
        return build_data(data)
    if callable(getattr(data, "batch", None)):
        return Splits(data, data, {"test": data})
    raise TypeError(f"data: {type(data).__name__}; give lw.splits(…), lw.TokenRows(…), {{'kind': …}} or the name of a recipe")


def _parts(found: Splits, splits: Sequence[str], rows: int | None) -> dict[str, Rows]:
    there = {**found.tests} or {"valid": found.valid}
    unknown = [name for name in splits if name not in {**there, "valid": None}]
    if unknown:
        raise ValueError(f"split: unknown {unknown[0]!r}; allowed: {', '.join({**there, 'valid': None})}")
    parts = {name: found.valid if name == "valid" else found.tests[name] for name in splits or there}
    return parts if rows is None else {name: FirstRows(part, rows) for name, part in parts.items()}


def _named(text: Texts) -> dict[str, str | Path]:
    return dict(text) if isinstance(text, Mapping) else {Path(text).name.split(".")[0]: text}
