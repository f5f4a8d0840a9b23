"""Progress of a run: nothing, or a terminal with a progress bar. Also Ctrl-C."""

from __future__ import annotations

import math
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as ProgressBar

from loopwright.interrupt import STOPS, say_nothing, second_ends_at_once
from loopwright.run import RunFolder
from loopwright.terminal import Screen
from loopwright.train.reporting.log import marked

if TYPE_CHECKING:
    from loopwright.train.recipe import Recipe
    from loopwright.train.state import Progress


class ProgressReporter(Protocol):
    """What the loop tells while it runs."""

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


class Silent:
    """Says nothing; keeps the notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        """Keeps the line."""
        self.notes.append(text)

    def prepare(self, what: str, done: int, total: int | None) -> None:
        """Nothing."""

    def start(self, recipe: Recipe, run: RunFolder, progress: Progress) -> None:
        """Nothing."""

    def update(self, row: dict[str, Any], progress: Progress, seconds: float) -> None:
        """Nothing."""

    def validation(self, seen: dict[str, Any], progress: Progress) -> None:
        """Nothing."""

    def end(self, progress: Progress, saved: Path, *, stopped: bool) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


class Terminal:
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


def truncation_in_words(found: dict[str, Any]) -> str:
    """Returns what a truncated gradient leaves out, as far as the shrinking of the steps tells."""
    k, factor, depth = found["grad_steps"], found["contraction"], found["depth"]
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
