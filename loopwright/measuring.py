"""What a verb measures: what is asked, opened and planned before the work, and the work itself. The one way to a number."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, partial
from pathlib import Path
from typing import Any, cast

import torch

from loopwright.checking.probes import Verdict
from loopwright.checkpoints.source import Source, check_fit
from loopwright.checkpoints.source import tokenizer as load_words
from loopwright.data.batch import BatchSource as Rows
from loopwright.data.batch import FirstRows, Splits
from loopwright.data.build import build_data
from loopwright.data.records import Files
from loopwright.data.tokenizer import NoTokenizer, Tokenizer
from loopwright.evaluation.by_depth import Progress, SweepReport, grid, parse_depths, sweep
from loopwright.evaluation.exits import ExitEvaluation, ExitReport, Measured, exit_specs, exit_words, exits_of, of_rows, of_text
from loopwright.evaluation.harness import check_names, evaluate_tasks, need_lm_eval, need_template
from loopwright.evaluation.likelihood import need_likelihood
from loopwright.evaluation.report import Reports
from loopwright.evaluation.starts import StartReport, gathered
from loopwright.evaluation.tasks import Asking, TaskEvaluation, TaskReport, task_names
from loopwright.evaluation.text import HeldOut, Passages, held_out, passage_length, read_passages
from loopwright.generation.exit_rules import write_exit
from loopwright.generation.readings import can_decode, check_depths
from loopwright.generation.stream import check_seeded
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.config import LoopedConfig
from loopwright.model.parts.state import started_at
from loopwright.plot.drawing import Drawing
from loopwright.plot.figures import BY_DEPTH, length_by_depth_heatmap
from loopwright.process import fitting_threads
from loopwright.recipes import recipe as find_recipe
from loopwright.schema import build_kind, check_whole, options_of, refuse_unknown, suggest
from loopwright.training.depth import RULES, DepthRule
from loopwright.training.report import Run

FIELD = "text"  # of a JSON line, where nothing is said
BATCH = 500  # rows of a pass over a task, where nothing is said

Model = LoopedForCausalLM | Run | str | Path
Data = Splits | Rows | Mapping[str, Any] | str
Texts = str | Path | Mapping[str, str | Path]


# what goes with what: an option beside one of these, and options that need one of these
APART = {
    "tasks": ("data", "splits", "decode", "text", "context", "field", "teacher_forced", "honest", "exit", "time", "state_seeds"),
    "text": ("data", "splits", "decode"),
    "exit": ("teacher_forced", "honest", "decode", "state_seeds"),
    "state_seeds": ("teacher_forced", "honest"),
}
BELONGING = {
    "text": ("context", "field", "teacher_forced", "honest"), "tasks": ("task_data", "shots", "asking"), "exit": ("time",),
    "text or tasks": ("tokenizer",),
}  # fmt: skip


@dataclass
class EvaluationOptions:
    """The options of `evaluate`, by its names, checked as far as can be before anything is opened."""

    depths: Any = None
    rows: int | None = None
    batch: int | None = None
    data: Any = None
    splits: str | Sequence[str] = ()
    decode: bool = True
    text: Texts | None = None
    tokenizer: str | Path | None = None
    context: int | None = None
    field: str | None = None
    teacher_forced: bool = False
    honest: int = 0
    exit: Any = ()
    time: bool = False
    state_seeds: int | None = None
    tasks: str | Sequence[str] | None = None
    task_data: str | Path | None = None
    shots: int | None = None
    asking: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        default = {each.name: each.default for each in fields(self)}
        given = [name for name in default if not _is_left(getattr(self, name), default[name])]
        for name, others in APART.items():
            if name in given and (wrong := [other for other in others if other in given]):
                raise ValueError(f"{name}: given with {', '.join(wrong)}, which does not go with it; leave one of the two out")
        for names, others in BELONGING.items():
            if not set(names.split(" or ")) & set(given) and (wrong := [other for other in others if other in given]):
                raise ValueError(f"{wrong[0]}: belongs to {names}, which is not given")
        for name in ("rows", "batch", "state_seeds"):
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name), 1)
        for name in ("honest", "shots"):
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name), 0)
        refuse_unknown("asking", self.asking or {}, options_of(Asking))
        self.splits = [self.splits] if isinstance(self.splits, str) else self.splits
        self.exit = exit_words([self.exit] if isinstance(self.exit, str) else self.exit)
        if isinstance(self.depths, int | str):
            self.depths = [self.depths] if isinstance(self.depths, int) else parse_depths(self.depths)
        elif self.depths is not None:
            self.depths = list(self.depths)
        if self.exit and self.depths is not None and len(self.depths) != 1:
            raise ValueError(f"depths: {self.depths} with exit; give one depth, the most steps that a token may take")
        for files in ({} if self.text is None else _named(self.text)).values():
            Files(str(files))  # names and endings; what cannot be used is told before a model is loaded

    @property
    def marked(self) -> bool:
        """Whether what is no likelihood is measured too, and marked."""
        return self.teacher_forced or self.honest > 0

    def depths_of(self, model: LoopedForCausalLM, rule: DepthRule | None) -> list[int]:
        """Returns the depths asked for; else the usual ones of a recipe's rule, or the model's own."""
        usual = None if rule is None or self.exit else usual_depths(rule, model)
        return check_depths(model.config, usual if self.depths is None else self.depths)


def _is_left(value: Any, default: Any) -> bool:
    """Returns whether an option is as it is where nobody gives it; data may be tensors, which are not to be compared."""
    return (
        value is default
        or (isinstance(value, str | list | tuple | dict) and not value)
        or (type(value) is int and value == default)
    )


@dataclass(frozen=True)
class Hooks:
    """Who is told of an evaluation."""

    on_start: Callable[[Measuring], object] | None = None
    on_report: Callable[[str, Any], object] | None = None
    on_progress: Callable[[str, int, int], object] | None = None

    def start(self, measuring: Measuring) -> None:
        """Tells what will be measured."""
        if self.on_start is not None:
            self.on_start(measuring)

    def told(self, name: str, report: Any) -> Any:
        """Returns a report that has been told."""
        if self.on_report is not None:
            self.on_report(name, report)
        return report

    def progress(self, name: str) -> Progress | None:
        """Returns what is called as the work on one report goes on."""
        return None if self.on_progress is None else partial(self.on_progress, name)


class Opened:
    """What a verb measures: a model, a run, or what is named. Weights are read when they are first asked for."""

    def __init__(
        self, given: Model, verb: str, device: str = "cpu", dtype: str | torch.dtype = "float32", checkpoint: str | None = None
    ) -> None:
        if not isinstance(given, LoopedForCausalLM | Run | str | Path):
            raise TypeError(f"model: must be a model, a run or what lw.load takes (got {type(given).__name__})")
        self._read: dict[str, Any] = {"dtype": dtype, "device": device}
        self._run = given if isinstance(given, Run) and checkpoint is None else None
        self._alive = given if isinstance(given, LoopedForCausalLM) else None if self._run is None else self._run.model
        self._named = None
        if not isinstance(given, LoopedForCausalLM):
            self._named = Source(given.folder.path if isinstance(given, Run) else given)
            self._named.need_weights(verb)
        self.name = type(given).__name__ if self._named is None else self._named.name
        if checkpoint is not None:
            if self._named is None or self._named.run is None:
                raise ValueError(f"checkpoint: {checkpoint} belongs to a run, and {self.name} holds none (no recipe.yaml)")
            self._named = Source(self._named.given, checkpoint=checkpoint)

    def need_folder(self) -> None:
        """Raises where what is named is no folder, and would be looked for on the hub for nothing."""
        if self._named is not None and not self._named.path.exists():
            raise FileNotFoundError(f"evaluate: {self.name}: there is no such folder; allowed: the folder of a run")

    @cached_property
    def model(self) -> LoopedForCausalLM:
        """The model."""
        if self._alive is not None or self._named is None:
            return cast(LoopedForCausalLM, self._alive)
        model = self._named.model(**self._read)
        for note in self._named.notes:
            warnings.warn(note, stacklevel=5)
        return model

    @property
    def bare(self) -> bool:
        """Whether it is a model alone, without a folder."""
        return self._named is None

    @property
    def config(self) -> LoopedConfig:
        """Its config."""
        return self.model.config if self._alive is not None or self._named is None else self._named.config

    @property
    def source(self) -> str:
        """Where the weights stand."""
        if self._run is not None:
            return str(self._run.checkpoint)
        return self.name if self._named is None or self._named.run is None else str(self._named.folder)

    @property
    def averaged(self) -> bool:
        """Whether the weights that were read are averages."""
        return self._alive is None and self._named is not None and self._named.has_average

    @property
    def recipe(self) -> dict[str, Any] | None:
        """The recipe of a run."""
        return None if self._named is None else self._named.recipe

    @property
    def rule(self) -> DepthRule | None:
        """The depths that a run was trained at."""
        return None if self.recipe is None else build_kind(self.recipe["depth"], RULES)

    def rows_of(self, data: Data | None) -> Splits:
        """Returns the data that is given, else what a run was trained on."""
        if data is not None:
            return splits_of(data)
        if self._run is not None:
            return self._run.splits
        assert self.recipe is not None and self._named is not None and self._named.run is not None
        return build_data(self.recipe["data"], self._named.run.data)

    def words(self) -> str | Path:
        """Returns where the tokenizer stands."""
        if self._named is None:
            raise NoTokenizer("tokenizer: a model alone has none; give tokenizer= (a folder or hub id)")
        return self._named.tokenizer_folder()


def usual_depths(rule: DepthRule, model: LoopedForCausalLM) -> list[int]:
    """Returns the depths that rows are measured at when none are asked for: all up to twice the median of a recipe's rule, then on
    to 16 times it."""
    if not model.config.is_looped:
        return [1]
    last = 16 * rule.median
    if model.config.max_steps is not None and model.config.beyond_max_steps == "refuse":
        last = min(last, model.config.max_steps)
    return sorted({*range(1, min(2 * rule.median, last) + 1), *parse_depths(f"1:{last}:log")})


@dataclass(frozen=True)
class Work:
    """One split, text or task that is about to be measured: the kind of its report, what that will say of itself (`facts`, by its
    fields), how many rows or passages were chosen where not all are, and rows and tokens of its largest pass."""

    report: type[SweepReport | HeldOut | StartReport | ExitReport | TaskReport]
    facts: Mapping[str, object]
    measure: Callable[[Progress | None], Any]
    few: int | None = None
    shape: tuple[int, int] = (1, 1)


@dataclass(frozen=True)
class Measuring:
    """What is about to be measured, all of it checked, for who must know before the work begins. `source` is where the weights
    stand, `averaged` says that they are averages; `rules` are those of early exits."""

    model: LoopedForCausalLM
    source: str
    averaged: bool
    depths: Sequence[int]
    causality: Verdict
    works: Mapping[str, Work]
    rules: Sequence[str] = ()


@dataclass(frozen=True)
class Evaluation(Reports[SweepReport | HeldOut | StartReport]):
    """Reports by split or text, as `loopwright evaluate` gives them; `trained` are the least, median and largest depth of a
    recipe's training, which figures show."""

    trained: tuple[int, int, int] | None = None

    def drawing(self) -> Drawing:
        """Returns exact match, or else the loss, over depth."""
        measure = min((report.measure for report in self.reports.values()), key=["loss", "exact"].index)
        curves = {name: report.curve(measure) for name, report in self.reports.items()}
        return BY_DEPTH[measure](curves, trained=self.trained)

    def heatmap(self, path: str | Path | None = None, *, style: str = "light", size: str = "page") -> Drawing:
        """Returns exact match as a grid, a row per split and a column per depth; arguments as for `plot`."""
        reports = {name: report for name, report in self.reports.items() if report.measure == "exact"}
        if not reports:
            raise ValueError(f"heatmap: no split has right and wrong answers (got {', '.join(self.reports)}); use plot")
        return length_by_depth_heatmap(**grid(cast(Any, reports)), trained_rows=["test"]).kept(path, style, size)

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

    def __repr__(self) -> str:
        return f"Evaluation({'; '.join(repr(report) for report in self.reports.values())})"


def by_depth(opened: Opened, asked: EvaluationOptions, hooks: Hooks) -> Evaluation | ExitEvaluation:
    """Measures texts, or rows of data: by depth, by exit rules, or from several starts."""
    if asked.text is None and asked.data is None and opened.recipe is None:
        opened.need_folder()
        raise ValueError(
            f"evaluate: {opened.name} holds no run (no recipe.yaml) with data of its own; give data= (--data RECIPE: rows with "
            "answers) or text= (--text: files of running text)"
        )
    if asked.state_seeds is not None:
        check_seeded(opened.config, "state_seeds", asked.state_seeds)
    length = passage_length(opened.config.max_position_embeddings, asked.context)
    words = None if asked.text is None else Tokenizer(opened.words() if asked.tokenizer is None else tokenizer_of(asked.tokenizer))
    model = opened.model
    causality = need_likelihood(model, opened.name, marked=asked.marked)
    with fitting_threads(model):
        rule = None
        if words is not None and asked.text is not None:
            field, texts = asked.field or FIELD, _named(asked.text)
            parts = {name: read_passages(name, files, words, length, field=field) for name, files in texts.items()}
            depths = asked.depths_of(model, None)
            works = _text_works(opened, parts, asked, depths, causality)
        else:
            dataset = opened.rows_of(asked.data)
            check_fit(dataset, model, opened.name, opened.words)
            rule = opened.rule or (build_kind(find_recipe(asked.data).depth, RULES) if isinstance(asked.data, str) else None)
            depths = asked.depths_of(model, rule)
            works = _row_works(opened, dataset, asked, depths, causality)
        if asked.state_seeds is not None:
            works = {name: _from_starts(opened, work, asked.state_seeds) for name, work in works.items()}
        rules = [write_exit(spec) for spec in exit_specs(asked.exit, model)]
        hooks.start(Measuring(model, opened.source, opened.averaged, depths, causality, works, rules))
        reports = {name: hooks.told(name, work.measure(hooks.progress(name))) for name, work in works.items()}
    return ExitEvaluation(reports) if asked.exit else Evaluation(reports, None if rule is None else rule.span)


def _text_works(
    opened: Opened, texts: Mapping[str, Passages], asked: EvaluationOptions, depths: Sequence[int], causality: Verdict
) -> dict[str, Work]:
    """Returns held-out losses to be measured, or exits on texts."""
    if asked.exit:
        parts = {name: of_text(opened.model, passages, asked.rows, asked.batch) for name, passages in texts.items()}
        return _exit_works(opened, parts, asked, depths[-1], causality)

    def work(passages: Passages) -> Work:
        few = None if asked.rows is None or asked.rows >= len(passages) else asked.rows
        chosen = passages if few is None else passages.drawn(few)  # of all: the first ones would be those of few documents
        return Work(
            HeldOut, {"fingerprint": chosen.fingerprint},
            lambda progress: held_out(
                opened.model, chosen,
                depths=depths, causality=causality, marked=asked.marked, honest=asked.honest, batch_size=asked.batch,
                source=opened.source, progress=progress,
            ),
            few, (asked.batch or 1, chosen.context),
        )  # fmt: skip

    return {name: work(passages) for name, passages in texts.items()}


def _row_works(
    opened: Opened, dataset: Splits, asked: EvaluationOptions, depths: Sequence[int], causality: Verdict
) -> dict[str, Work]:  # fmt: skip
    """Returns sweeps over depth to be measured, or exits on rows with answers."""
    parts, size = parts_of(dataset, asked.splits, asked.rows), asked.batch or BATCH
    if asked.exit:
        measured = {name: of_rows(part, size, exact=dataset.exact, few=_few(part)) for name, part in parts.items()}
        return _exit_works(opened, measured, asked, depths[-1], causality)
    decodes = asked.decode and asked.state_seeds is None and dataset.exact and not dataset.in_place
    decoded = sorted({depths[0], depths[len(depths) // 2], depths[-1]}) if decodes else []

    def work(name: str, part: Rows) -> Work:
        starts = range(0, len(part), size) if decoded else ()
        one = all(can_decode(part.batch(range(first, min(first + size, len(part))))) for first in starts)
        return Work(
            SweepReport, {"rows": len(part)},
            lambda progress: sweep(
                opened.model, part,
                depths=depths, batch_size=size, exact=dataset.exact, eos_id=dataset.eos_id, pad_id=dataset.pad_id,
                decode_depths=decoded if one else [], causality=causality, split=name, source_name=opened.source, progress=progress,
            ),
            _few(part), (min(size, len(part)), part.batch([0]).input_ids.shape[1]),
        )  # fmt: skip

    return {name: work(name, part) for name, part in parts.items()}


def _exit_works(
    opened: Opened, parts: Mapping[str, Measured], asked: EvaluationOptions, depth: int, causality: Verdict
) -> dict[str, Work]:  # fmt: skip
    """Returns what exit rules cost and give, to be measured on each part."""
    specs = exit_specs(asked.exit, opened.model)

    def work(name: str, part: Measured) -> Work:
        facts = {"rows": len(part.units), "fingerprint": part.fingerprint, "steps": depth, "timed": asked.time}
        return Work(
            ExitReport, facts,
            lambda progress: exits_of(
                opened.model, part, specs,
                name=name, depth=depth, timed=asked.time, causality=causality, source=opened.source, progress=progress,
            ),
            part.few, (len(part.batches[0]), part.length),
        )  # fmt: skip

    return {name: work(name, part) for name, part in parts.items()}


def _from_starts(opened: Opened, work: Work, count: int) -> Work:
    """Returns the same from the starts of seeds 0, 1, 2 …"""

    def measure(progress: Progress | None) -> StartReport:
        found = []
        for seed in range(count):
            with started_at(opened.model.state, seed):
                found.append(work.measure(progress))
        return gathered(found, range(count), opened.source)

    return Work(StartReport, {"seeds": tuple(range(count))}, measure, work.few, work.shape)


def by_task(opened: Opened, asked: EvaluationOptions, hooks: Hooks) -> TaskEvaluation:
    """Measures tasks of lm-eval."""
    assert asked.tasks is not None
    names, how = task_names(asked.tasks), Asking(**asked.asking or {})
    need_lm_eval()
    check_names(names, asked.task_data)  # before a model is opened
    words = load_words(opened.words() if asked.tokenizer is None else asked.tokenizer)
    need_template(words, how)
    model = opened.model
    causality, depths = need_likelihood(model, opened.name), asked.depths_of(model, None)

    def measure(progress: Progress | None) -> dict[str, TaskReport]:
        return evaluate_tasks(
            model, words, names, depths,
            folder=asked.task_data, shots=asked.shots, limit=asked.rows, batch=asked.batch, asking=how, causality=causality,
            source=opened.source, progress=progress,
        )  # fmt: skip

    work = Work(TaskReport, {"asking": str(how)}, measure, asked.rows)
    hooks.start(Measuring(model, opened.source, opened.averaged, depths, causality, dict.fromkeys(names, work)))
    with fitting_threads(model):
        found = measure(hooks.progress(", ".join(names)))
    return TaskEvaluation({name: hooks.told(name, report) for name, report in found.items()})


def splits_of(data: Any) -> Splits:
    """Returns the splits that data are, or that a name or a spec of data means."""
    if isinstance(data, Splits):
        return data
    if isinstance(data, str):
        return build_data(find_recipe(data).data)
    if isinstance(data, Mapping):
        return build_data(data)
    if callable(getattr(data, "batch", None)):
        return Splits(data, data, {"test": data})
    raise TypeError(f"data: {type(data).__name__}; give lw.splits(…), lw.TokenRows(…), {{'kind': …}} or the name of a recipe")


def parts_of(found: Splits, splits: Sequence[str], rows: int | None) -> dict[str, Rows]:
    """Returns the rows of the splits asked for, all tests where none are; of each the first ones where so many are asked for."""
    there = {**found.tests} or {"valid": found.valid}
    for name in splits:
        if name not in {**there, "valid": None}:
            raise ValueError(f"split: unknown {name!r}; {suggest(name, [*there, 'valid'])}")
    parts = {name: found.valid if name == "valid" else found.tests[name] for name in splits or there}
    return {name: part if rows is None or rows >= len(part) else FirstRows(part, rows) for name, part in parts.items()}


def _few(part: Rows) -> int | None:
    """Returns how many rows of a split were chosen, where not all are."""
    return len(part) if isinstance(part, FirstRows) else None


def _named(text: Texts) -> dict[str, str | Path]:
    return dict(text) if isinstance(text, Mapping) else {Path(text).name.split(".")[0]: text}


def tokenizer_of(given: str | Path) -> str | Path:
    """Returns where a tokenizer stands that is named by a folder or a run, else by a hub id."""
    named = Source(given)
    return named.tokenizer_folder() if named.path.exists() else given
