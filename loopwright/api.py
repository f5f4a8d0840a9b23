"""The verbs that take objects in the place of names: train, evaluate and compare. The command line calls them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch

from loopwright.checkpoints.source import check_fit
from loopwright.data.batch import Splits
from loopwright.data.tokenizer import Tokenizer
from loopwright.evaluation.exits import ExitEvaluation
from loopwright.evaluation.paired import Paired, compare_rows, paired_table
from loopwright.evaluation.paired import compare as compare_texts
from loopwright.evaluation.tasks import TaskEvaluation
from loopwright.evaluation.text import HeldOut
from loopwright.measuring import (
    BATCH,
    Data,
    Evaluation,
    EvaluationOptions,
    Hooks,
    Measuring,
    Model,
    Opened,
    Texts,
    by_depth,
    by_task,
    parts_of,
)
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.plot import Shown
from loopwright.process import fitting_threads
from loopwright.recipes import find
from loopwright.recipes import recipe as find_recipe
from loopwright.schema import merge
from loopwright.training.loop import train as run_training
from loopwright.training.recipe import Recipe, make_recipe
from loopwright.training.report import Objects, Run, Silent, Terminal


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
    placeholders = {name: {"kind": "given", "what": f"the {name} ({_describe(part)})"} for name, part in objects.items()}
    plain, name = _plain(recipe)
    chosen = make_recipe({**plain, **specs, **placeholders})
    folder = Path(out) if out is not None else Path("runs") / name
    reporter = Terminal(folder.name) if progress else Silent()
    return run_training(
        chosen, folder,
        resume=resume, reporter=reporter, given=Objects(**objects), on_update=on_update, within=fitting_threads,
    )  # fmt: skip


def evaluate(
    model: Model, *,
    depths: int | str | Iterable[int] | None = None, rows: int | None = None, batch: int | None = None,
    data: Data | None = None, splits: str | Sequence[str] = (), decode: bool = True,
    text: Texts | None = None, tokenizer: str | Path | None = None, context: int | None = None, field: str | None = None,
    teacher_forced: bool = False, honest: int = 0,
    exit: str | Sequence[str] = (), time: bool = False, state_seeds: int | None = None,
    tasks: str | Sequence[str] | None = None, task_data: str | Path | None = None, shots: int | None = None,
    asking: Mapping[str, Any] | None = None,
    checkpoint: str | None = None, device: str = "cpu", dtype: str | torch.dtype = "float32",
    on_start: Callable[[Measuring], object] | None = None, on_report: Callable[[str, Any], object] | None = None,
    on_progress: Callable[[str, int, int], object] | None = None,
) -> Evaluation | ExitEvaluation | TaskEvaluation:  # fmt: skip
    """Measures a model at several depths from one pass, or what exit rules would cost and give. Nothing is written.

    A model whose answers depend on later tokens is refused: its loss would be no likelihood.

    Args:
        model: a model, a run of `lw.train`, or anything that `lw.load` opens: on `device`, in `dtype`, a run at `checkpoint`.
        depths: numbers, or words such as "1:8" and "1:64:log"; default: on rows of data all up to twice the median depth of the
            recipe, and some up to 16 times it; without a recipe, and on texts, the model's own depth.
        rows, batch: how many rows of a split (the first ones), passages drawn from a text or questions of a task, default: all; and
            how many of them in a pass.
        data: `lw.splits`, rows of one, `{"kind": …}` or a recipe's name; default: the data that a run was trained on. `splits`:
            which of its tests, or "valid"; default: all tests. `decode`: greedily at three depths too, where answers are right.
        text: a file of running text or JSON lines (patterns allowed), or several by name; gives the held-out loss of passages of
            `context` tokens. `tokenizer`: a folder or hub id; default: that of the model's folder or run. `field`: of a JSON line.
        teacher_forced, honest: of a text, score a model that sees the future too, and mark it; score so many tokens from their
            prefixes alone as well.
        exit: rules by which tokens leave the loop early, as `evaluate --exit` takes them ("entropy:0.1", "all"); `depths` is then
            one depth, the most steps of a token. `time`: also run each rule by the engine.
        state_seeds: with data or text: measure from so many starts of a state that is noise, and give mean, least and largest.
        tasks: names of lm-eval's tasks, in the place of data and text; `task_data` is a folder with their questions (default: the
            hub), `shots` the examples before each (default: the task's own number), `asking` how they are put: {"chat": True} in
            the chat template, "system" a message before it, "max_new_tokens" the longest answer.
        on_start, on_report, on_progress: called with what will be measured, before the work; with each name and report; and with a
            name, what is done of it and how much there is.
    """
    options = EvaluationOptions(
        depths, rows, batch, data, splits, decode, text, tokenizer, context, field, teacher_forced, honest, exit, time, state_seeds,
        tasks, task_data, shots, asking,
    )  # fmt: skip
    hooks, opened = Hooks(on_start, on_report, on_progress), Opened(model, "evaluate", device, dtype, checkpoint)
    return by_depth(opened, options, hooks) if tasks is None else by_task(opened, options, hooks)


@dataclass(frozen=True)
class Comparison(Shown):
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
    One that sees the future is refused: who is better could not be said.
    """
    options = EvaluationOptions(data=data, text=text, tokenizer=tokenizer, splits=splits, rows=rows, batch=batch, context=context)
    one, two = (Opened(model, "compare", device) for model in (first, second))
    if data is None and text is None and one.recipe is None:
        raise ValueError("compare: give data= (--data RECIPE: rows with answers) or text= (--text: files of running text)")
    pair = tuple(depths) if isinstance(depths, Sequence) else (depths, depths)
    if len(pair) != 2:
        raise ValueError(f"depths: {pair}; give one depth for both, or a pair")
    configs = [opened.config for opened in (one, two)]
    # a dense model has one depth, which is shown as 1
    steps = [c.check_depth(depth if c.is_looped or depth != 1 else None) for c, depth in zip(configs, pair, strict=True)]
    if text is not None:
        shared = tokenizer if tokenizer is not None else _shared_tokenizer(one, two)
        measured = [
            by_depth(opened, replace(options, depths=[step], tokenizer=shared), Hooks())
            for opened, step in zip((one, two), steps, strict=True)
        ]
        mine, theirs = (cast(Mapping[str, HeldOut], each.reports) for each in measured)
        return Comparison(one.name, two.name, tuple(compare_texts(report, theirs[name]) for name, report in mine.items()))
    chosen = one.rows_of(data)
    for opened in (one, two):
        check_fit(chosen, opened.model, opened.name, opened.tokenizer)
    with fitting_threads(one.model):
        results = compare_rows(
            one.model, two.model, parts_of(chosen, options.splits, rows),
            depths=(steps[0], steps[1]), exact=chosen.exact, batch_size=batch or BATCH, names=(one.name, two.name),
        )  # fmt: skip
    return Comparison(one.name, two.name, tuple(results))


def _check_objects(objects: Mapping[str, Any], on_update: object) -> None:
    wanted = {"model": (LoopedForCausalLM, "lw.build, lw.load or lw.retrofit"), "data": (Splits, "lw.splits")}
    for name, (kind, source) in wanted.items():
        if name in objects and not isinstance(objects[name], kind):
            got = type(objects[name]).__name__
            raise TypeError(f"{name}: must come from {source}, or be a {{'kind': …}} as in a recipe (got {got})")
    for name, part in {"objective": objects.get("objective"), "on_update": on_update}.items():
        if part is not None and not callable(part):
            raise TypeError(f"{name}: must be callable (got {type(part).__name__})")


def _describe(part: Any) -> str:
    """Returns what the recipe says of an object; of data enough to notice that a resumed run has been given another."""
    if not isinstance(part, Splits):
        return type(part).__name__
    rows = len(part.train)
    ends = [part.train.batch([place]).input_ids for place in (0, rows - 1)]
    digest = hashlib.sha256(b"".join(ids.numpy().tobytes() for ids in ends)).hexdigest()[:8]
    return f"Splits of {rows} rows, {digest}"


def _shared_tokenizer(one: Opened, two: Opened) -> str | Path:
    """Returns the tokenizer of two models, which must be one: losses per token of different tokens are not comparable."""
    place = one.tokenizer()
    if not two.bare and Tokenizer(place).fingerprint != Tokenizer(two.tokenizer()).fingerprint:
        raise ValueError(
            f"compare: {one.name} and {two.name} have different tokenizers, so their losses per token cannot be compared; "
            "where both were trained with one, give it: --tokenizer, or tokenizer= in Python"
        )
    return place


def _plain(recipe: Recipe | Mapping[str, Any] | str | Path) -> tuple[dict[str, Any], str]:
    """Returns a recipe as plain data, and the name of its run folder."""
    if isinstance(recipe, Recipe):
        return recipe.data_of(), "run"
    if isinstance(recipe, Mapping):
        return merge({}, recipe), "run"
    return find_recipe(str(recipe)).data_of(), find(str(recipe)).stem
