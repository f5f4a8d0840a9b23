"""`loopwright evaluate --tasks`: lm-eval's tasks at every depth, as tables, files and a figure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.progress import Progress, TaskID

from loopwright.check.likelihood import need_likelihood
from loopwright.commands.console import console, progress
from loopwright.commands.evaluation.evaluate import check_rows, chosen_update, find_model, open_source
from loopwright.commands.loading import open_tokenizer, system_text
from loopwright.commands.results import file_stem, keep_more
from loopwright.evaluate.harness import check_names, need_lm_eval, need_template
from loopwright.evaluate.harness import evaluate_tasks as measure
from loopwright.evaluate.sweep import parse_depths
from loopwright.evaluate.tasks import Asking, TaskReport, draw_tasks, task_names
from loopwright.generate.readings import check_depths
from loopwright.threads import fitting_threads
from loopwright.values import check_whole

NAME = 80  # characters of a figure's name


def evaluate_tasks(
    source: str,
    tasks: str,
    *,
    task_data: str | None = None,
    shots: int | None = None,
    depths: str | None = None,
    checkpoint: str | None = None,
    tokenizer: str | None = None,
    rows: int | None = None,
    batch: int | None = None,
    chat: bool = False,
    system: str | None = None,
    max_new_tokens: int | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    out: str | None = None,
    overwrite: bool = False,
) -> dict[str, TaskReport]:
    """Prints, draws and saves each task of lm-eval (names with commas between) at each depth; returns the reports."""
    check_rows(rows, batch)
    if shots is not None:
        check_whole("shots", shots, 0)
    asking = Asking(chat, None if system is None else system_text(system), max_new_tokens)
    names = task_names(tasks)
    asked = parse_depths(depths) if depths else None
    need_lm_eval()
    check_names(names, task_data)  # before a model is opened
    opened = open_source(source, checkpoint)
    words = open_tokenizer(opened, tokenizer)
    need_template(words, asking)
    model, run, _ = find_model(opened, dtype, device, out)
    need_likelihood(model)
    wanted = check_depths(model.config, asked)
    measured, update = opened.name if opened.run is None else str(opened.folder), chosen_update(source, checkpoint)
    ending = ("-chat" if chat else "") + ("" if shots is None else f"-shots-{shots}")

    def numbers(name: str, **known: object) -> Path:
        """Returns where the numbers of a task go, where nothing else would be lost; what is known of them once measured is
        compared too."""
        path = run.eval / f"{file_stem(f'task-{name}{ending}', rows=rows, checkpoint=update)}.json"
        keep_more(
            path, TaskReport.load,
            depths=wanted, facts={"dtype": str(model.dtype).removeprefix("torch."), "asking": str(asking), **known},
            source=None if out is None and opened.run is not None else measured, overwrite=overwrite,
        )  # fmt: skip
        return path

    for name in names:
        numbers(name)
    with fitting_threads(model), progress() as bar:
        task = bar.add_task(", ".join(names))

        def show(done: int, total: int, bar: Progress = bar, task: TaskID = task) -> None:
            bar.update(task, completed=done, total=total)

        reports = measure(
            model, words, names, wanted,
            folder=task_data, shots=shots, limit=rows, batch=batch, asking=asking, source=measured, progress=show,
        )  # fmt: skip
    printer = console()
    for report in reports.values():
        printer.print(report.table(printer.width))
    joined = "-".join(reports)
    stem = file_stem(f"tasks-{joined if len(joined) <= NAME else len(reports)}{ending}", rows=rows, checkpoint=update)
    for metric, drawing in draw_tasks(reports).items():
        path = drawing.save(run.figures / f"{stem}{f'-{metric}' if metric else ''}.svg")
        printer.print(f"figure: {path}", markup=False, soft_wrap=True)
    refused: list[ValueError] = []
    for name, report in reports.items():
        try:
            path = numbers(name, questions=report.questions, shots=report.shots, data=report.data)
        except ValueError as error:  # the other tasks are saved all the same
            refused.append(error)
            continue
        printer.print(f"numbers: {report.save(path)}", markup=False, soft_wrap=True)
    if refused:
        raise refused[0]
    return reports


def rows_of_tasks(reports: Mapping[str, TaskReport]) -> dict[str, Any]:
    """Returns reports as data: a row per depth of each task, and what stands beside its table."""
    about = ("questions", "shots", "cut", "data", "judged_by", "rates", "chat", "system", "max_new_tokens")
    return {
        "results": {name: report.to_dict() for name, report in reports.items()},
        "tasks": {name: {fact: getattr(report, fact) for fact in about} for name, report in reports.items()},
    }
