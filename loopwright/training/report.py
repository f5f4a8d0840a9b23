"""What a run tells: its log, the lines and the bar of a terminal, its speed, and how it ended. Also how Ctrl-C stops it.

The log is JSON lines that only grow; a checkpoint marks how long it was and its sha256, so that edits are found. Speed is told
beside what the device could do: model FLOPs a second, their share of the peak (MFU), peak memory.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import IO, TYPE_CHECKING, Any

import torch
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as ProgressBar

from loopwright.data.batch import Batch, Splits
from loopwright.evaluation.likelihood import NOT_A_LIKELIHOOD
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.config import LoopedConfig
from loopwright.model.cost import pass_flops
from loopwright.plot.drawing import Curve, Drawing, Plotted
from loopwright.plot.figures import loss_curves
from loopwright.process import STOPS, Screen, say_nothing, second_ends_at_once
from loopwright.storage.files import clear_when_full
from loopwright.storage.run import RunFolder
from loopwright.training.rollout import Objective, Plan

if TYPE_CHECKING:
    from loopwright.training.recipe import Recipe


# what a clock decides: the only entries in which the log of a resumed run differs from that of an uninterrupted one
TIMING_KEYS = ("seconds", "targets_per_second", "tokens_per_second", "tflops_per_second", "mfu", "peak_memory", "time")

_BLOCK = 2**20  # bytes that are read at once from the end


class Log:
    """A file of JSON lines that only grows: one row a line, each on its way to the disk before the next is made.

    A row's "update" is the update it belongs to, from 0. A checkpoint holds the log's `mark` at its save. A run that goes on
    from a checkpoint opens the log with that mark: the log must begin with the very bytes that were marked, and what stands
    after them (rows of later updates, a torn last line) is cut off. So the log of a killed and resumed run is that of an
    uninterrupted one (TIMING_KEYS apart). Without a mark the log begins anew.
    """

    def __init__(self, path: str | Path, mark: Mapping[str, Any] | None = None) -> None:
        self.path = Path(path)
        self._length, self._sum = 0, hashlib.sha256()
        if mark is not None and self.path.is_file():  # one that was moved away begins anew too
            kept = _marked_bytes(self.path, mark)
            self._length = len(kept)
            self._sum.update(kept)
        self._file: IO[bytes] = open(self.path, "ab")  # noqa: SIM115  (open as long as the run)
        self._file.truncate(self._length)

    def write(self, row: Mapping[str, Any]) -> None:
        """Appends one row; a number that is not finite is written as null, since JSON has no word for it."""
        line = (json.dumps(_finite(row), allow_nan=False, separators=(", ", ": ")) + "\n").encode()
        with clear_when_full(self.path, len(line), "the checkpoints are unharmed"):
            self._file.write(line)
            self._file.flush()
        self._length += len(line)
        self._sum.update(line)

    def mark(self) -> dict[str, Any]:
        """Returns the log's length and sha256 when every row is on the disk: what a checkpoint waits for, and keeps."""
        self._sync()
        return {"bytes": self._length, "sha256": self._sum.hexdigest()}

    def close(self) -> None:
        """Brings the rows to the disk and closes the file."""
        try:
            self._sync()
        finally:
            self._file.close()

    def _sync(self) -> None:
        with clear_when_full(self.path, 0, "the checkpoints are unharmed"):
            os.fsync(self._file.fileno())


def read_log(path: str | Path) -> list[dict[str, Any]]:
    """Returns the rows of a log; a torn last line, of a run that was killed or still writes, is left out."""
    return list(_rows(Path(path), Path(path).read_bytes()))


def last_row(path: str | Path, name: str) -> dict[str, Any] | None:
    """Returns the last row that holds a name, None where the log has none; reads no more of its end than that takes."""
    for line in _lines_backwards(Path(path)):
        if f'"{name}"'.encode() in line and name in (row := json.loads(line)):
            return row
    return None


def marked(row: Mapping[str, Any]) -> str:
    """Returns what must be said beside the numbers of a validation: nothing where its losses are likelihoods."""
    return "" if row.get("likelihood", True) else f" ({NOT_A_LIKELIHOOD})"


def _marked_bytes(path: Path, mark: Mapping[str, Any]) -> bytes:
    """Returns the part of the log that a checkpoint marked; raises where it is not as it was."""
    data = path.read_bytes()
    kept = data[: mark["bytes"]]
    if hashlib.sha256(kept).hexdigest() == mark["sha256"]:
        return kept
    for _ in _rows(path, kept):  # where a line is no row any more, its number is told
        pass
    fault = f"{len(data):,} bytes of {mark['bytes']:,} are left" if len(data) < mark["bytes"] else "sha256 differs"
    raise ValueError(
        f"{path}: changed since the checkpoint was saved ({fault}); put it back as it was, or move it away to go on without it"
    )


def _rows(path: Path, data: bytes) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(data.split(b"\n")[:-1], start=1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise ValueError(f"{path}, line {number}: not a JSON object; the log is damaged (move it away to go on without it)")
        yield row


def _lines_backwards(path: Path) -> Iterator[bytes]:
    """Yields the whole lines of a file, the last one first; a torn last line is left out."""
    with open(path, "rb") as file:
        start, rest, torn = file.seek(0, os.SEEK_END), b"", True
        while start > 0:
            size = min(_BLOCK, start)
            start = file.seek(start - size)
            rest, *lines = (file.read(size) + rest).split(b"\n")  # the first one may begin in the block before
            if torn and lines:
                del lines[-1]  # what stands after the last newline
                torn = False
            yield from reversed(lines)
        if not torn:
            yield rest


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@dataclass(frozen=True)
class Objects:
    """What was passed from Python in the place of the recipe's kinds; None where the recipe builds it."""

    model: LoopedForCausalLM | None = None
    data: Splits | None = None
    objective: Any = None


@dataclass
class Progress:
    """How far a run is: plain numbers, all of what a checkpoint needs beside tensors.

    `rows`, `tokens` and `targets` count what was read, also by updates that were then skipped.
    """

    update: int = 0
    rows: int = 0
    tokens: int = 0
    targets: int = 0
    skipped: int = 0
    skipped_in_a_row: int = 0
    solved_at: int | None = None
    best_loss: float | None = None
    best_update: int | None = None
    best_by: str = "loss"  # the number of a validation that it is the best by

    def count(self, finite: bool, *, rows: int, tokens: int, targets: int) -> None:
        """Counts one update, skipped where its loss or gradient was not finite."""
        self.update += 1
        self.rows += rows
        self.tokens += tokens
        self.targets += targets
        self.skipped += not finite
        self.skipped_in_a_row = 0 if finite else self.skipped_in_a_row + 1


class ProgressReporter:
    """What the loop tells while it runs. This one says nothing."""

    def note(self, text: str) -> None:
        """One line that a person should read."""

    def prepare(self, what: str, done: int, total: int | None) -> None:
        """While data is made ready, now and then: what is done, how much of it, of how much (None: not known)."""

    def start(self, recipe: Recipe, run: RunFolder, progress: Progress) -> None:
        """Before the first update."""

    def update(self, row: dict[str, Any], progress: Progress, seconds: float) -> None:
        """After each update, with its log line."""

    def validation(self, seen: dict[str, Any], progress: Progress) -> None:
        """After each validation, or measurement of the radius."""

    def end(self, progress: Progress, saved: Path, *, stopped: bool) -> None:
        """After the last save."""

    def close(self) -> None:
        """At the very end, however the run ended."""


class Silent(ProgressReporter):
    """Says nothing; keeps the notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        """Keeps the line."""
        self.notes.append(text)


class Terminal(ProgressReporter):
    """A bar with loss, depth, ρ, tokens a second and the time left; plain lines with the same when stderr is not a terminal."""

    def __init__(self, label: str = "train", *, every: float = 10.0) -> None:
        self.console = Screen(file=sys.stderr, width=None if sys.stderr.isatty() else 160)
        self.label = label
        self.every = every  # seconds between two lines where there is no bar
        columns = (
            TextColumn("{task.description}", markup=False), BarColumn(bar_width=20), MofNCompleteColumn(),
            TextColumn("{task.fields[words]}", markup=False), TimeRemainingColumn(),
        )  # fmt: skip
        self.bar = ProgressBar(*columns, console=self.console, transient=True, disable=not sys.stderr.isatty())
        self.task: TaskID | None = None
        self.loss: float | None = None
        self.radius = ""
        self._told = time.monotonic()
        self._total: int | None = None
        self._began = (0, self._told)  # the update that a run or its resumption began at, and when

    def note(self, text: str) -> None:
        """Prints the line above the bar."""
        self.console.print(f"{self.label}: {text}", markup=False)

    def prepare(self, what: str, done: int, total: int | None) -> None:
        """Says now and then how far it is."""
        if self._is_time():
            self.note(f"{what}: {done:,}" + (f" of {total:,}" if total else ""))

    def start(self, recipe: Recipe, run: RunFolder, progress: Progress) -> None:
        """Shows the bar."""
        self._total, self._began = recipe.updates, (progress.update, time.monotonic())
        self.task = self.bar.add_task(self.label, total=recipe.updates, completed=progress.update, words="")
        self.bar.start()

    def update(self, row: dict[str, Any], progress: Progress, seconds: float) -> None:
        """Moves the bar on."""
        if math.isfinite(row["loss"]):
            self.loss = row["loss"] if self.loss is None else 0.95 * self.loss + 0.05 * row["loss"]
        depth = ", ".join(map(str, row["depth"][:4])) + (" …" if len(row["depth"]) > 4 else "")
        loss = "–" if self.loss is None else f"{self.loss:.4f}"
        reward = f"reward {row['reward']:.2f}  " if "reward" in row else ""  # of which the loss of grpo says nothing
        words = f"loss {loss}  {reward}depth {depth}  {self.radius}{row['tokens'] / max(seconds, 1e-9):,.0f} tokens/s"
        if "peak_memory" in row:
            words += (f"  MFU {row['mfu']:.2f}" if "mfu" in row else "") + f"  {row['peak_memory'] / 2**30:.1f} GiB"
        if self.task is not None:
            self.bar.update(self.task, completed=progress.update, words=words)
        if self.bar.disable and self._is_time():
            self.note(f"update {progress.update}{self._rest(progress.update)}: {words}")
        if row.get("skipped"):
            self.note(f"update {row['update']} skipped: loss {row['loss']}, gradient norm {row['grad_norm']} at depth {depth}")

    def validation(self, seen: dict[str, Any], progress: Progress) -> None:
        """Says what the validation found."""
        if "radius" in seen:
            self.radius = f"ρ {seen['radius']['radius_mean']:.2f}  "
            self.note(f"update {progress.update}: spectral radius {seen['radius']['radius_mean']:.3f}")
        if "truncation" in seen:
            self.note(f"update {progress.update}: {truncation_in_words(seen['truncation'])}")
        if "valid" in seen:
            cells = [
                f"{depth}: "
                + (f"{100 * scores['exact']:.1f} %" if scores["exact"] is not None else f"{scores['loss']:.3f}")
                + (f" (objective {scores['objective']:.4f})" if "objective" in scores else "")
                for depth, scores in seen["valid"].items()
            ]
            self.note(f"update {progress.update}: by depth " + ", ".join(cells) + marked(seen))

    def end(self, progress: Progress, saved: Path, *, stopped: bool) -> None:
        """Takes the bar away and says where the checkpoint is."""
        self.close()
        word = "stopped" if stopped else "done"
        self.note(f"{word} after {progress.update} updates ({progress.skipped} skipped); saved in {saved}")

    def close(self) -> None:
        """Takes the bar away, however the run ended."""
        self.bar.stop()

    def _rest(self, update: int) -> str:
        """How many updates there are in all, and the time that the others will take at the speed so far."""
        if self._total is None:
            return ""
        first, began = self._began
        left = (time.monotonic() - began) / max(update - first, 1) * (self._total - update)
        return f" of {self._total:,} ({in_words(left)} left)"

    def _is_time(self) -> bool:
        due = time.monotonic() - self._told > self.every
        if due:
            self._told = time.monotonic()
        return due


def in_words(seconds: float) -> str:
    """Returns a time in its two largest units: "40 s", "3 min 20 s", "2 h 5 min"."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600:,} h {whole % 3600 // 60} min"


def truncation_in_words(truncation: dict[str, Any]) -> str:
    """Returns what a truncated gradient leaves out, as far as the shrinking of the steps tells."""
    k, factor, depth = truncation["grad_steps"], truncation["contraction"], truncation["depth"]
    left = f"about {factor:.3f}^{k} = {factor**k:.1e} of it is left out" if factor < 1 else "what is left out does not shrink"
    return f"the gradient flows through the last {k} steps; at depth {depth} a step is {factor:.3f} of the one before, so {left}"


class StopRequest:
    """Whether Ctrl-C (or a polite kill) asked to stop. The first one only asks, so that the run can save; a second ends it."""

    def __init__(self, *, told: bool = True) -> None:
        self.told = told
        self.asked = False
        self._held = ExitStack()

    def __bool__(self) -> bool:
        return self.asked

    def __enter__(self) -> StopRequest:
        self._held.enter_context(second_ends_at_once())
        try:
            for number in STOPS:
                # nohup ignores SIGHUP; who runs in the background of a script, where Ctrl-C is ignored, may still send one
                if number == signal.SIGINT or signal.getsignal(number) is not signal.SIG_IGN:
                    self._held.callback(signal.signal, number, signal.signal(number, self._ask))
        except ValueError:  # not in the main thread: nobody can press Ctrl-C here
            pass
        return self

    def __exit__(self, *error: object) -> None:
        self._held.close()

    def _ask(self, number: int, frame: FrameType | None) -> None:
        first, self.asked = not self.asked, True
        try:
            if first and self.told:
                print("\nstopping after this update, then saving (Ctrl-C again: stop at once)", file=sys.stderr, flush=True)
        except OSError:  # the terminal has gone: what is still to be said must not end the run before it is saved
            say_nothing()


# dense products a second in bf16 with float32 sums, by a card's name (the makers' data sheets, without sparsity)
PEAKS = {
    "B200": 2250e12, "GH200": 989e12, "H200": 989e12, "H100 PCIe": 756e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12,
    "RTX 4090": 165e12, "RTX 3090": 71e12, "A10G": 70e12, "L4": 121e12,
}  # fmt: skip
SHARES = {"bf16": 1.0, "tf32": 0.5}  # of that, by precision; float32 products run on other units


class Speedometer:
    """Counts the model FLOPs of updates. Matrix products count, attention in full; what is computed twice counts once, and
    penalties not at all; where parts are frozen the count is that of training them all."""

    def __init__(self, config: LoopedConfig, objective: Objective, precision: str, device: torch.device) -> None:
        self.config, self.device = config, device
        self.every = objective.reads == "every"
        self.peak = peak_of(torch.cuda.get_device_name(device), precision) if device.type == "cuda" else None
        self.held = 0  # the most memory before what was not counted
        self._counted = lru_cache(maxsize=64)(self._count)

    def _count(self, depth: int, rows: int, length: int) -> dict[str, int]:
        return pass_flops(self.config, depth=depth if self.config.is_looped else None, batch=rows, length=length)

    def _parts(self, depth: int, rows: int, length: int) -> tuple[int, int]:
        """The FLOPs of a pass and of its read-out. Every step costs the same, so that two depths tell those of all."""
        first = self._counted(1, rows, length)
        if depth == 1 or not self.config.is_looped:
            return first["total"], first["head"]
        return first["total"] + (depth - 1) * self.step_flops(rows, length), first["head"]

    def step_flops(self, rows: int, length: int) -> int:
        """Returns the FLOPs of one step forward; those of a batch's steps are alike."""
        if not self.config.is_looped or self.config.max_steps == 1:
            return 0
        return self._counted(2, rows, length)["total"] - self._counted(1, rows, length)["total"]

    def flops(self, pairs: Iterable[tuple[Batch, Plan]]) -> int:
        """Returns the FLOPs of an update's batches: forward through every step, backward through those with a gradient."""
        total = 0
        for batch, plan in pairs:
            rows, length = batch.input_ids.shape
            kept = min(plan.grad_steps, plan.depth)
            (forward, head), (again, _) = self._parts(plan.depth, rows, length), self._parts(kept, rows, length)
            heads = kept if self.every and self.config.is_looped else 1
            total += forward + 2 * again + 3 * (heads - 1) * head
        return total

    def row(self, pairs: Iterable[tuple[Batch, Plan]], seconds: float, processes: int) -> dict[str, Any]:
        """Returns what the log tells of an update's speed on a GPU; FLOPs are those of this process, of as many as there are."""
        if self.device.type != "cuda":
            return {}
        rate = self.flops(pairs) / seconds
        held = max(self.held, torch.cuda.max_memory_allocated(self.device))
        numbers = {"tflops_per_second": rate * processes / 1e12, "peak_memory": held}
        return numbers if self.peak is None else {**numbers, "mfu": rate / self.peak}

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Leaves what runs inside out of the peak of memory."""
        if self.device.type != "cuda":
            yield
            return
        self.held = max(self.held, torch.cuda.max_memory_allocated(self.device))
        try:
            yield
        finally:
            torch.cuda.reset_peak_memory_stats(self.device)


def peak_of(name: str, precision: str) -> float | None:
    """Returns the products a second that a card of this name can do in a precision; None where that is not known."""
    words = name.removeprefix("NVIDIA ")
    known = {part for part in PEAKS if re.fullmatch(rf"(GeForce )?{re.escape(part)}( SXM\d?| PCIe| \d+GB| HBM\d\w?|-.*)*", words)}
    peaks = PEAKS[max(known, key=len)] if known else None
    return None if peaks is None or precision not in SHARES else peaks * SHARES[precision]


DEVIATIONS, BEFORE = 4.0, 50


def spikes(losses: Sequence[float | None], deviations: float = DEVIATIONS, before: int = BEFORE) -> list[int]:
    """Returns the places of losses that stand more than `deviations` standard deviations above the mean of the `before` ahead of
    them. Losses that are not finite (of updates that were skipped) are left out."""
    finite = [(place, loss) for place, loss in enumerate(losses) if loss is not None and math.isfinite(loss)]
    values = [loss for _, loss in finite]
    places = []
    for i in range(before, len(values)):
        last = values[i - before : i]
        mean = sum(last) / before
        if values[i] > mean + deviations * math.sqrt(sum((x - mean) ** 2 for x in last) / before):
            places.append(finite[i][0])
    return places


def spikes_in_words(updates: Sequence[int]) -> str:
    """Returns how many spikes there were, and at which updates."""
    listed = ", ".join(map(str, updates[:8])) + (" …" if len(updates) > 8 else "")
    spiked = "1 spike" if len(updates) == 1 else f"{len(updates)} spikes"
    return f"{spiked} of the loss (above the {BEFORE} updates before by more than {DEVIATIONS:g} deviations), at update {listed}"


@dataclass(frozen=True)
class Run(Plotted):
    """The result of training: the model, its data, the run folder, how far it got, the last checkpoint."""

    model: LoopedForCausalLM
    splits: Splits
    folder: RunFolder
    progress: Progress
    checkpoint: Path
    finished: bool

    def __repr__(self) -> str:
        """How it ended and where it is: the model and its data would fill a notebook."""
        word = "finished" if self.finished else "stopped"
        where = f"{str(self.folder.path)!r}; checkpoint {self.checkpoint.name!r}"
        return f"Run({word} after {self.progress.update} updates; {where})"

    def losses(self) -> Curve:
        """Returns the training loss of every update."""
        rows = [row for row in self.log() if "loss" in row]
        return Curve([row["update"] for row in rows], [row["loss"] for row in rows])

    def spikes(self) -> list[int]:
        """Returns the updates whose loss stands far above those before it."""
        losses = self.losses()
        return [int(losses.x[place]) for place in spikes(losses.y)]

    def drawing(self) -> Drawing:
        """Returns the training loss over updates."""
        return loss_curves({self.folder.path.name: self.losses()})

    def log(self) -> list[dict[str, Any]]:
        """Returns the rows of the log: one per update, and one per validation (those with "valid", by depth)."""
        return list(read_log(self.folder.log))
