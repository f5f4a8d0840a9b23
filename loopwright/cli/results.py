"""`loopwright evaluate`: what `lw.evaluate` measures, as tables, files and figures; `loopwright compare`: what its options mean.

Files are named by what they hold, tried before the work, and never replaced by less.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from loopwright import api
from loopwright.checkpoints.save import command_line
from loopwright.checkpoints.source import Source
from loopwright.cli.console import Bar, console, told_warnings
from loopwright.cli.opening import find_device, find_dtype, system_text, tell_wait
from loopwright.evaluation.by_depth import SweepReport
from loopwright.evaluation.exits import ExitEvaluation, ExitReport
from loopwright.evaluation.starts import StartReport
from loopwright.evaluation.tasks import TaskEvaluation, TaskReport, draw_tasks
from loopwright.evaluation.text import HeldOut
from loopwright.measuring import Evaluation, Measuring
from loopwright.storage.run import RunFolder
from loopwright.version import VERSION

KINDS = {SweepReport: "", HeldOut: "text-", ExitReport: "exits-", StartReport: "starts-", TaskReport: "task-"}  # files begin so
NAME = 80  # characters of a figure's name


def evaluate(
    source: str,
    *,
    texts: Sequence[str] = (),
    splits: Sequence[str] = (),
    data: str | None = None,
    checkpoint: str | None = None,
    asking: Mapping[str, Any] | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    out: str | None = None,
    overwrite: bool = False,
    **options: Any,
) -> Evaluation | ExitEvaluation | TaskEvaluation:
    """Prints, draws and saves what a model gives; returns it. `options` are those of `lw.evaluate`, as are the others but `texts`
    (FILE, or NAME=FILE; patterns allowed), `out`, the folder of files, and `overwrite`."""
    opened = Source(source)
    kept = _Kept(
        RunFolder(out or (f"runs/evaluate-{Path(opened.name).name}" if opened.run is None else opened.run.path)),
        texts=bool(texts), data=data, update=chosen_update(source, checkpoint), ending=_ending(asking, options.get("shots")),
        own=out is None and opened.run is not None, overwrite=overwrite,
    )  # fmt: skip
    how = {name: value for name, value in (asking or {}).items() if value is not None and value is not False}
    if "system" in how:
        how["system"] = system_text(how["system"])
    with Bar() as bar, told_warnings():
        found = api.evaluate(
            source,
            text=name_texts(texts) or None, splits=splits, data=data, checkpoint=checkpoint, asking=how,
            device=find_device(device), dtype=find_dtype(dtype), on_start=kept.start, on_report=kept.report, on_progress=bar.show,
            **options,
        )  # fmt: skip
    kept.end(found, splits)
    return found


class _Kept:
    """The files of an evaluation: looked at before the work, and written as its reports come."""

    def __init__(
        self, run: RunFolder, *, texts: bool, data: str | None, update: str | None, ending: str, own: bool, overwrite: bool
    ) -> None:
        self.run, self.texts, self.data, self.update, self.ending, self.own = run, texts, data, update, ending, own
        self.overwrite, self.files, self.refused = overwrite, dict[str, Path](), list[ValueError]()
        run.check_out("evaluate")
        need_writable("evaluate", run.eval, run.figures)

    def start(self, measuring: Measuring) -> None:
        """Says what is measured, and refuses what would replace more by less."""
        self.measuring, printer = measuring, console()
        if measuring.averaged:
            printer.print("measured with the averaged weights, as in the run's own validation", markup=False)
        if self.texts:
            verdict = measuring.causality
            printer.print(f"causality: {'passed' if verdict.passed else 'FAILED'}; {verdict.detail}", markup=False)
        for name in measuring.works:
            self.place(name)
        if measuring.model.config.is_looped:
            rows, length = max(work.shape for work in measuring.works.values())
            tell_wait(measuring.model, measuring.depths[-1], rows=rows, length=length)

    def place(self, name: str, **known: object) -> Path:
        """Returns where the numbers of a split, text or task go, where nothing else would be lost. What is `known` of them once
        measured is compared too."""
        now = self.measuring
        work = now.works.get(name) or next(iter(now.works.values()))  # of a group of tasks come the reports of its members
        path = self.run.eval / f"{self.stem(name)}.json"
        keep_more(
            path, work.report.load,
            depths=range(1, now.depths[-1] + 1) if work.report is ExitReport else now.depths, rules=now.rules,
            facts={**work.facts, "dtype": str(now.model.dtype).removeprefix("torch."), **known},
            source=None if self.own else now.source, overwrite=self.overwrite,
        )  # fmt: skip
        return path

    def stem(self, name: str) -> str:
        """Returns the name of a file of results without its ending."""
        work = self.measuring.works.get(name) or next(iter(self.measuring.works.values()))
        kind = KINDS[work.report] + "text-" * (work.report is ExitReport and self.texts)
        return file_stem(f"{kind}{name}{self.ending}", rows=work.few, checkpoint=self.update, data=self.data)

    def report(self, name: str, report: Any) -> None:
        """Prints a report, then writes it; numbers are shown before anything can go wrong with a file."""
        printer = console()
        printer.print(report.table(printer.width))
        if isinstance(report, ExitReport) and report.times:
            printer.print(report.time_table(printer.width))
        known = {}
        if isinstance(report, TaskReport):
            known = {"questions": report.questions, "shots": report.shots, "data": report.data}
        try:
            self.files[name] = report.save(self.place(name, **known))
        except ValueError as error:  # the other tasks are saved all the same
            self.refused.append(error)
        if isinstance(report, ExitReport):
            report.plot(self.run.figures / f"{self.stem(name)}.svg")
            self.files[f"{name}, figure"] = self.run.figures / f"{self.stem(name)}.svg"

    def end(self, found: Any, splits: Sequence[str]) -> None:
        """Draws what is drawn of all reports together, and says where files are."""
        few = next((work.few for work in self.measuring.works.values() if work.few is not None), None)
        chosen: dict[str, Any] = {"rows": few, "checkpoint": self.update, "data": self.data}
        figures: dict[str, Any] = {}
        if isinstance(found, TaskEvaluation):
            joined = "-".join(found.reports)
            stem = file_stem(f"tasks-{joined if len(joined) <= NAME else len(found.reports)}{self.ending}", **chosen)
            figures = {f"{stem}{f'-{metric}' if metric else ''}": drawing for metric, drawing in draw_tasks(found.reports).items()}
        elif isinstance(found, Evaluation) and all(isinstance(report, SweepReport) for report in found.reports.values()):
            measure, ending = next(iter(found.reports.values())).measure, file_stem("-".join(splits), **chosen)
            figures[f"{measure}-by-depth"] = found.drawing()
            if measure == "exact" and len(found.reports) > 1:
                figures["split-by-depth"] = found.heatmap()
            figures = {"-".join(filter(None, (name, ending))): drawing for name, drawing in figures.items()}
        for stem, drawing in figures.items():
            self.files[f"{stem}, figure"] = drawing.save(self.run.figures / f"{stem}.svg")
        for path in sorted(self.files.values(), key=lambda path: path.suffix == ".json"):
            kind = "numbers" if path.suffix == ".json" else "figure"
            console().print(f"{kind}: {path}", markup=False, soft_wrap=True)
        if self.refused:
            raise self.refused[0]


def as_data(found: Evaluation | ExitEvaluation | TaskEvaluation) -> dict[str, Any]:
    """Returns what was measured as data: a row per depth, and what must be said beside the numbers of some."""
    if isinstance(found, TaskEvaluation):
        about = ("questions", "shots", "cut", "data", "judged_by", "rates", "chat", "system", "max_new_tokens")
        tasks = {name: {fact: getattr(report, fact) for fact in about} for name, report in found.reports.items()}
        return {"results": found.to_dict(), "tasks": tasks}
    if isinstance(found, ExitEvaluation):
        return dict(found.reports)
    notes = {name: report.note for name, report in found.reports.items() if isinstance(report, HeldOut) and report.note}
    return {"results": found.to_dict(), "notes": notes}


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


def chosen_update(source: str, checkpoint: str | None) -> str | None:
    """Returns the checkpoint that was chosen by hand, by its name or by its folder; None where a run speaks for its last one."""
    folder = Path(source)
    return str(int(folder.name)) if folder.parent.name == "checkpoints" and folder.name.isdecimal() else checkpoint


def _ending(asking: Mapping[str, Any] | None, shots: int | None) -> str:
    return ("-chat" if (asking or {}).get("chat") else "") + ("" if shots is None else f"-shots-{shots}")


def parse_pair(words: str | None) -> int | tuple[int | None, int | None] | None:
    """Returns the depths that `4` (both) or `8,1` (one each) names; None where nothing is said."""
    if words is None:
        return None
    parts = words.split(",")
    if len(parts) > 2 or not all(part.strip().isdecimal() and int(part) > 0 for part in parts):
        raise ValueError(f"depths: {words!r}; give one depth for both (4), or one for each (8,1), each at least 1")
    numbers = [int(part) for part in parts]
    return numbers[0] if len(numbers) == 1 else (numbers[0], numbers[1])


class Report(Protocol):
    """What a kept report says of itself."""

    @property
    def depth(self) -> tuple[int, ...]:
        """The depths that were measured."""

    @property
    def source(self) -> str:
        """Where the weights stood; "" where nobody said."""


def how_made() -> list[tuple[str, str]]:
    """Returns how a page came to be: its command, the version and the date."""
    return [("command", command_line(sys.argv)), ("loopwright", VERSION), ("date", datetime.now(UTC).strftime("%Y-%m-%d"))]


def file_stem(name: str, *, rows: int | None = None, checkpoint: str | None = None, data: str | None = None) -> str:
    """Returns the name of a file of results: that of the split or text, and what of it or of the run was chosen by hand.

    All rows, the last checkpoint and the run's own data are the plain name.
    """
    words = [name, Path(data).stem if data is not None else ""]
    words.append("" if checkpoint in (None, "last") else f"update-{checkpoint}" if str(checkpoint).isdecimal() else str(checkpoint))
    words.append("" if rows is None else f"rows-{rows}")
    return "-".join(filter(None, words))


def need_writable(verb: str, *folders: Path) -> None:
    """Raises an OSError in one line where files could not be written into these folders, there or not. Nothing is left behind."""
    for folder in folders:
        there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
        if not there.is_dir():
            raise ValueError(f"out: {there} is a file; allowed: a folder, there or not")
        try:
            with tempfile.TemporaryFile(dir=there):
                pass
        except OSError as error:
            reason = (error.strerror or "cannot be written").lower()
            raise OSError(f"{verb}: cannot write into {folder} ({reason}); give another folder with --out") from None


def keep_more(
    path: Path,
    read: Callable[[Path], Report],
    *,
    depths: Iterable[int],
    rules: Iterable[str] = (),
    facts: Mapping[str, object],
    source: str | None = None,
    overwrite: bool = False,
) -> None:
    """Raises a ValueError where a file holds results that new ones of these depths and facts would not replace in full.

    Args:
        rules: exit rules, where the report has some.
        facts: fields of the report. One that the kept report leaves empty is not compared.
        source: where the weights stand, to be compared too. Checkpoints of one run are one model; None: whatever it was.
    """
    if overwrite or not path.exists():
        return
    try:
        kept = read(path)
    except (ValueError, OSError):
        raise ValueError(f"{path}: holds something else; --overwrite replaces it, --out FOLDER keeps both") from None
    lost = sorted(set(kept.depth) - set(depths))
    reasons = [f"{len(lost)} of its {len(kept.depth)} depths are not asked for now"] if lost else []
    known = set(getattr(kept, "rules", ()))
    if known - set(rules):
        reasons.append(f"{len(known - set(rules))} of its {len(known)} exit rules are not asked for now")
    if source is not None and kept.source and _home(kept.source) != _home(source):
        reasons.append(f"they are of {_home(kept.source)}")
    for name, value in facts.items():
        before = getattr(kept, name)
        if before not in ("", None) and before != value:
            reasons.append(f"its {name} is {_short(before)}, now {_short(value)}")
    if reasons:
        raise ValueError(f"{path}: holds other results ({'; '.join(reasons)}); --overwrite replaces them, --out FOLDER keeps both")


def _home(source: str) -> Path:
    """The run of a checkpoint, else the folder itself."""
    path = Path(source)
    return (path.parents[1] if path.parent.name == "checkpoints" else path).absolute()


def _short(value: object) -> str:
    text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
    return text if len(text) <= 60 else f"{text[:12]}…"
