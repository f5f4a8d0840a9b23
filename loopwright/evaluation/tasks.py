"""Tasks with questions: their reports by depth, which tasks lm-eval knows, and questions from local files.

lm-eval's names are read from its files without importing it: its own index takes a minute to build. A file of questions is called
TASK_SPLIT.jsonl, TASK.jsonl where it is the split that is measured, each also with .gz. TASK is the name of a task or part of one:
`gsm8k_test.jsonl` serves gsm8k and gsm8k_cot, `math500.jsonl` hendrycks_math500.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch

from loopwright.data.records import Files
from loopwright.evaluation.by_depth import rate_lines
from loopwright.evaluation.report import Column, Reports, Saved, column, columns_of, number_table
from loopwright.metrics.intervals import mean_interval, wilson_interval
from loopwright.metrics.score import DepthRates, depth_rates
from loopwright.plot.drawing import Curve, Drawing
from loopwright.plot.figures import accuracy_by_depth, loss_by_depth
from loopwright.schema import check_whole

if TYPE_CHECKING:
    from rich.table import Table


# what a task may make of the mean of its questions' numbers; the one that gives the task's own value is the one it used
MEANS: tuple[Callable[[float], float], ...] = (
    lambda mean: mean,
    lambda mean: math.exp(-mean),  # perplexity, of log-likelihoods
    lambda mean: -mean / math.log(2),  # bits
)
AS_THEY_STAND = "as they stand"  # how questions are put where nothing is said
DIGITS = 12  # numbers are compared with lm-eval's own


@dataclass(frozen=True)
class Asking:
    """How questions are put to a model: in the tokenizer's chat template, after a system message, with so many tokens to answer.

    Left as it is, a question is plain text and an answer as long as the task allows.
    """

    chat: bool = False
    system: str | None = None
    max_new_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.system is not None and not self.chat:
            raise ValueError(
                "system: a system message belongs to the chat template; give --chat too (asking: chat), or leave --system out"
            )
        if self.system is not None and not self.system.strip():
            raise ValueError("system: the system message is empty; leave it out, or give a text")
        if self.max_new_tokens is not None:
            check_whole("max_new_tokens", self.max_new_tokens, 1)

    def __str__(self) -> str:
        """In words."""
        parts = ["in the chat template"] if self.chat else []
        parts += [f"after the system message {self.system!r}"] if self.system is not None else []
        parts += [f"answers of at most {self.max_new_tokens:,} tokens"] if self.max_new_tokens is not None else []
        return ", ".join(parts) or AS_THEY_STAND


@dataclass(frozen=True)
class MetricColumn:
    """One metric by depth, with the ends of its 95 % interval: Wilson's where each question is right or wrong, else by Student's
    t over questions; None where the task makes something else of its questions than a mean."""

    value: Column
    low: Column
    high: Column
    share: bool  # of questions that are right


@dataclass(frozen=True)
class TaskReport(Saved):
    """One task at every depth. `right` says of each question whether it was answered right, by depth, as the metric `judged_by`
    has it; "" where no metric says so. `data` is where the questions stood, `shots` the examples before each, `cut` how many
    questions lost the beginning of their prompt because it was longer than the model's positions; `chat`, `system` and
    `max_new_tokens` are those of `Asking`."""

    what: ClassVar[str] = "a report of a task"

    task: str
    questions: int
    depth: tuple[int, ...]
    metrics: Mapping[str, MetricColumn]
    judged_by: str = ""
    right: tuple[tuple[bool, ...], ...] = ()
    rates: tuple[DepthRates, ...] = ()
    shots: int = 0
    data: str = ""
    source: str = ""
    dtype: str = ""
    cut: int = 0
    chat: bool = False
    system: str | None = None
    max_new_tokens: int | None = None

    @property
    def asking(self) -> str:
        """How the questions were put, in words."""
        return str(Asking(self.chat, self.system, self.max_new_tokens))

    def __repr__(self) -> str:
        """What was measured; `table` shows the numbers."""
        return f"TaskReport({self.task!r}: {self.questions:,} questions at {len(self.depth)} depths, {', '.join(self.metrics)})"

    @property
    def drawn(self) -> str:
        """The metric of the figure: that by which answers are right or wrong, else the first with an interval."""
        return self.judged_by or next((name for name, m in self.metrics.items() if None not in m.low), "")

    def curve(self) -> Curve:
        """Returns the metric of the figure over depth."""
        metric = self.metrics[self.drawn]
        return Curve(list(self.depth), list(metric.value), list(metric.low), list(metric.high))

    def drawing(self) -> Drawing:
        """Returns the metric by which answers are right or wrong over depth, else the first with an interval."""
        if not self.drawn:
            raise ValueError(f"plot: no metric of {self.task} has an interval to draw (got {', '.join(self.metrics)})")
        return next(iter(draw_tasks({self.task: self}).values()))

    def table(self, width: int | None = None) -> Table:
        """Returns every metric by depth as a rich table for a window of this width."""
        rows = [[str(depth), *(_cell(m, i) for m in self.metrics.values())] for i, depth in enumerate(self.depth)]
        table = number_table(["depth", *self.metrics], rows, width)
        examples = f", {self.shots} examples before each" if self.shots else ""
        asked = "" if self.asking == AS_THEY_STAND else f", {self.asking}"
        table.title = f"{self.task}: {self.questions:,} questions{examples}{asked} ({self.data})"
        cut = [f"{self.cut:,} of {self.questions:,} prompts were too long and lost their beginning"] if self.cut else []
        table.caption = "\n".join([*cut, *rate_lines(self.rates)])
        table.caption_style = "none"
        return table

    def to_dict(self) -> list[dict[str, Any]]:
        """Returns the numbers as plain data, a row per depth."""
        rows: list[dict[str, Any]] = []
        for i, depth in enumerate(self.depth):
            rows.append({"depth": depth})
            for name, m in self.metrics.items():
                rows[-1] |= {name: m.value[i], f"{name}_low": m.low[i], f"{name}_high": m.high[i]}
        return rows

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Self:
        """Returns the report that plain data describes."""
        metrics = {name: MetricColumn(**columns_of(MetricColumn, m)) for name, m in data["metrics"].items()}
        return cls(**columns_of(cls, data) | {"metrics": metrics, "rates": tuple(DepthRates(**rate) for rate in data["rates"])})


@dataclass(frozen=True)
class TaskEvaluation(Reports[TaskReport]):
    """Tasks by name, each at every depth, as `loopwright evaluate --tasks` gives them."""

    def drawing(self) -> Drawing:
        """Returns the shares of right answers over depth; where no task has such, the first other measure."""
        return next(iter(draw_tasks(self.reports).values()))

    def to_dict(self) -> dict[str, list[dict[str, Any]]]:
        """Returns the numbers as plain data: for each task, a row per depth."""
        return {name: report.to_dict() for name, report in self.reports.items()}


def task_names(tasks: str | Sequence[str]) -> list[str]:
    """Returns the names that are asked for, each once: a list of them, or text with commas between."""
    words = tasks.split(",") if isinstance(tasks, str) else tasks
    return list(dict.fromkeys(filter(None, (word.strip() for word in words))))


def draw_tasks(reports: Mapping[str, TaskReport]) -> dict[str, Drawing]:
    """Returns the shares of right answers over depth in one figure, named "", and each other metric in its own by its name."""
    shares = {name: report.curve() for name, report in reports.items() if report.judged_by}
    others: dict[str, dict[str, Curve]] = {}
    for name, report in reports.items():
        if report.drawn and not report.judged_by:
            others.setdefault(report.drawn, {})[name] = report.curve()
    first = {"": accuracy_by_depth(shares, label="right answers (%)")} if shares else {}
    return first | {metric: loss_by_depth(curves, label=metric.replace("_", " ")) for metric, curves in others.items()}


def task_report(
    task: str, depths: Sequence[int], values: Mapping[str, Sequence[float]], answers: Mapping[str, Sequence[Sequence[Any]]],
    **facts: Any,
) -> TaskReport:  # fmt: skip
    """Returns the report of a task from its metrics by depth, and from what each question gave for each metric [depths, questions]:
    a number, or a pair (number, weight)."""
    metrics = {name: _column(values[name], answers[name]) for name in values}
    judged_by = next((name for name, metric in metrics.items() if metric.share), "")
    table = torch.tensor([[bool(one) for one in row] for row in answers[judged_by]]) if judged_by else None
    return TaskReport(
        task, len(next(iter(answers.values()))[0]), tuple(depths), metrics, judged_by,
        () if table is None else tuple(map(tuple, table.tolist())),
        () if table is None or len(depths) < 2 else (depth_rates(table, list(depths)),), **facts,
    )  # fmt: skip


def _column(values: Sequence[float], answers: Sequence[Sequence[Any]]) -> MetricColumn:
    flat = [one for row in answers for one in row]
    share = all(isinstance(one, bool | int | float) and one in (0, 1) for one in flat) and all(
        math.isclose(value, sum(row) / len(row), abs_tol=1e-12) for value, row in zip(values, answers, strict=True)
    )
    if share:
        ends = [wilson_interval(int(sum(row)), len(row)) for row in answers]
    else:
        ends = [_of_mean(value, row) for value, row in zip(values, answers, strict=True)]
    low, high = torch.tensor(ends, dtype=torch.float64).T
    return MetricColumn(
        column(torch.tensor(values, dtype=torch.float64), digits=DIGITS),
        column(low, digits=DIGITS),
        column(high, digits=DIGITS),
        share,
    )


def _of_mean(value: float, answers: Sequence[Any]) -> tuple[float, float]:
    """Returns the interval of a mean over questions, or of what the task makes of it; not a number where it is something else."""
    pairs = [one if isinstance(one, tuple | list) else (one, 1) for one in answers]
    if not all(len(pair) == 2 and all(isinstance(x, int | float) and math.isfinite(x) for x in pair) for pair in pairs):
        return math.nan, math.nan
    sums, weights = torch.tensor(pairs, dtype=torch.float64).T
    mean = (sums.sum() / weights.sum()).item()
    for make in MEANS:
        try:
            if math.isclose(make(mean), value, rel_tol=1e-9):
                low, high = sorted(make(end.item()) for end in mean_interval(sums, weights))
                return low, high
        except OverflowError:
            continue
    return math.nan, math.nan


def _cell(metric: MetricColumn, i: int) -> str:
    value, low, high = metric.value[i], metric.low[i], metric.high[i]
    if value is None:
        return "not finite"
    scale, form, unit = (100, ".2f", " %") if metric.share else (1, ".4g", "")
    ends = "" if low is None or high is None else f" ({scale * low:{form}}–{scale * high:{form}})"
    return f"{scale * value:{form}}{unit}{ends}"


SUFFIX = re.compile(r"\.jsonl(\.gz)?$")
SPLITS = {
    "train": "train", "training": "train", "validation": "validation", "valid": "validation", "val": "validation",
    "dev": "validation", "test": "test",
}  # fmt: skip
ROLES = ("test_split", "validation_split", "training_split", "fewshot_split")
MEAN = {"aggregation": "mean", "higher_is_better": True}

# what lm-eval lacks or expects in another copy of the data
OWN: dict[str, dict[str, Any]] = {
    # in the form of lm-eval's asdiv: the likelihood of the number, right where it is what greedy decoding says
    "svamp": {
        "task": "svamp", "output_type": "loglikelihood", "test_split": "test",
        "doc_to_text": "{{Body}}\nQuestion:{{Question}}\nAnswer:",
        "doc_to_target": "{{Answer | int if Answer == Answer | int else Answer}}",
        "metric_list": [{"metric": "acc", **MEAN}], "metadata": {"version": 1.0},
    },
    # the released files say `answer`, SuperGLUE's copy `label`
    "boolq": {"doc_to_target": "{{label if label is defined else answer | int}}"},
}  # fmt: skip


def find_files(folder: str | Path, task: str) -> dict[str, Path]:
    """Returns the files of a task by split, "" for the one without; of the longest part of the task's name that has some."""
    words = task.split("_")
    files: dict[tuple[str, ...], dict[str, Path]] = {}
    for path in sorted(Path(folder).iterdir()):
        if not SUFFIX.search(path.name):
            continue
        *name, last = re.split(r"[_-]", SUFFIX.sub("", path.name))
        split = SPLITS.get(last, "") if name else ""
        name = name if split else [*name, last]
        if any(words[i : i + len(name)] == name for i in range(len(words))):
            files.setdefault(tuple(name), {}).setdefault(split, path)
    return files[max(files, key=len)] if files else {}


def local_config(folder: str | Path, config: Mapping[str, Any], shots: int | None = None) -> tuple[dict[str, Any], Path]:
    """Returns a task's config with its data from files of a folder, and the file of its questions.

    The questions are those of the task's test split, or of its validation split where the folder has no other. Examples before a
    question must come from the split that lm-eval takes them from.
    """
    task, folder = config["task"], Path(folder)
    if not folder.is_dir():
        raise ValueError(f"task-data: {folder} is not a folder; give one with files such as {task}_test.jsonl")
    files = find_files(folder, task)
    measured = [config[role] for role in ROLES[:2] if config.get(role)]
    if not measured:
        raise ValueError(f"tasks: {task} has neither a test nor a validation split; nothing can be measured")
    there = {split: files[_plain(split)] for split in _splits(config) if _plain(split) in files}
    if not any(split in there for split in measured) and "" in files:
        there[measured[0]] = files[""]
    split = next((split for split in measured if split in there), None)
    if split is None:
        names = " or ".join(f"{task}_{_plain(split)}.jsonl" for split in measured)
        raise ValueError(f"task-data: {folder} has no questions of {task}; add {names}, or with .gz")
    examples, given = _examples(config)
    count = shots if shots is not None else config.get("num_fewshot") or 0
    if count and not given and examples not in there:
        raise ValueError(
            f"task-data: {task} shows {count} examples of its {examples} split, and {folder} has none; "
            f"add {task}_{_plain(str(examples))}.jsonl, or give --shots 0"
        )
    for path in set(there.values()):
        _check(path)
    changes: dict[str, Any] = {role: config[role] if config.get(role) in there else None for role in ROLES}
    if isinstance(config.get("fewshot_config"), Mapping) and config["fewshot_config"].get("split") not in (None, *there):
        changes["fewshot_config"] = {**config["fewshot_config"], "split": None}
    data = {"dataset_path": "json", "dataset_name": None, "custom_dataset": None}
    files_of = {"dataset_kwargs": {"data_files": {split: str(path) for split, path in there.items()}}}
    return {**config, **changes, **data, **files_of}, there[split]


def _examples(config: Mapping[str, Any]) -> tuple[str | None, bool]:
    """Returns the split that examples come from, as lm-eval has it, and whether the task brings its own instead."""
    fewshot = config.get("fewshot_config") or {}
    split = fewshot.get("split") or config.get("fewshot_split")
    given = split is None and fewshot.get("samples") is not None
    return split or next((config[role] for role in ("training_split", *ROLES[1::-1]) if config.get(role)), None), given


def _splits(config: Mapping[str, Any]) -> set[str]:
    fewshot = (config.get("fewshot_config") or {}).get("split")
    return {split for split in (*(config.get(role) for role in ROLES), fewshot) if split}


def _plain(split: str) -> str:
    return SPLITS.get(split, split)


def _check(path: Path) -> None:
    """Raises a ValueError in one line where a file does not hold records, before anybody else reads it."""
    if next(iter(Files(str(path))), None) is None:
        raise ValueError(f"{path}: has no questions; each line is one, as JSON")


# a task, group or tag by its name, and the further lines of a list of them
NAMED = re.compile(r"^(task|group|tag|group_alias):[ \t]*['\"]?([^\s'\"\[\]#]+)['\"]?[ \t]*$", re.MULTILINE)
LISTED = re.compile(r"^[ \t]*-[ \t]+(?:task:[ \t]*|group:[ \t]*)?['\"]?([^\s'\"\[\]#]+)['\"]?[ \t]*$", re.MULTILINE)
NEAR = 3  # names that a mistyped one may have meant


@dataclass(frozen=True)
class TaskNames:
    """The names in lm-eval's files. `tasks` has the folders of each single task, `others` what may be a group, a tag or a part."""

    tasks: Mapping[str, frozenset[Path]]
    others: frozenset[str]

    def check(self, names: Sequence[str], more: Sequence[str] = ()) -> None:
        """Raises a ValueError in one line for a name that no file has."""
        known = {*self.tasks, *self.others, *more}
        for name in names:
            if name not in known:
                near = difflib.get_close_matches(name, sorted(known), NEAR)
                said = f"did you mean {' or '.join(map(repr, near))}?" if near else "`lm-eval ls tasks` lists them"
                raise ValueError(f"tasks: unknown {name!r}; {said}")


def read_names(folder: str | Path) -> TaskNames:
    """Returns the names in the task files (.yaml) below a folder."""
    tasks: dict[str, set[Path]] = {}
    others: set[str] = set()
    for path in Path(folder).glob("**/*.yaml"):
        text = path.read_text(errors="ignore")
        for kind, name in NAMED.findall(text):
            if kind == "task":
                tasks.setdefault(name, set()).add(path.parent)
            else:
                others.add(name)
        others.update(LISTED.findall(text))
    return TaskNames({name: frozenset(paths) for name, paths in tasks.items()}, frozenset(others))


@cache
def _of_lm_eval() -> TaskNames:
    spec = find_spec("lm_eval")
    assert spec is not None and spec.origin is not None, "asked only where lm-eval is installed"
    return read_names(Path(spec.origin).parent / "tasks")


def known_names(folder: str | Path | None = None) -> TaskNames:
    """Returns the names that lm-eval and a folder of one's own have."""
    theirs = _of_lm_eval()
    if folder is None:
        return theirs
    local = read_names(folder)
    return TaskNames({**theirs.tasks, **local.tasks}, theirs.others | local.others)
