"""Experiment trackers: the rows of log.jsonl, sent to trackio, wandb or TensorBoard as well.

A tracker is never worth a run. One that is not installed is refused before the run begins; one that fails later costs one line, and
training goes on: every row is in log.jsonl. A resumed run continues the tracked run of its folder.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import secrets
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from loopwright.run import RunFolder
from loopwright.settings import build_kind
from loopwright.storage.files import read_json, write_json
from loopwright.train.reporting.log import read_log
from loopwright.untrusted import first_line

if TYPE_CHECKING:
    from loopwright.train.recipe import Recipe


class Tracker:
    """One tracked run. Abstract. `module` is what must be installed."""

    module: ClassVar[str]

    def begin(self, name: str, folder: Path, config: Mapping[str, Any]) -> None:
        """Opens the tracked run of this name, or continues it where it exists."""
        raise NotImplementedError

    def log(self, numbers: Mapping[str, float], update: int) -> None:
        """Sends the numbers of one update."""
        raise NotImplementedError

    def close(self) -> None:
        """Ends the tracked run; a later `begin` of the same name continues it."""
        raise NotImplementedError


class Trackio(Tracker):
    """Trackio, on this machine or, as its own environment variables say, on a Space."""

    module = "trackio"

    def __init__(self, project: str = "loopwright") -> None:
        self.project = project

    def begin(self, name: str, folder: Path, config: Mapping[str, Any]) -> None:
        self._run = importlib.import_module("trackio").init(project=self.project, name=name, config=dict(config), resume="allow")

    def log(self, numbers: Mapping[str, float], update: int) -> None:
        self._run.log(dict(numbers), step=update)

    def close(self) -> None:
        self._run.finish()


class Wandb(Tracker):
    """Weights & Biases; its own environment variables say where and whether online."""

    module = "wandb"

    def __init__(self, project: str = "loopwright") -> None:
        self.project = project

    def begin(self, name: str, folder: Path, config: Mapping[str, Any]) -> None:
        self._run = importlib.import_module("wandb").init(
            project=self.project, name=name, id=name, config=dict(config), dir=str(folder), resume="allow"
        )

    def log(self, numbers: Mapping[str, float], update: int) -> None:
        self._run.log(dict(numbers), step=update)

    def close(self) -> None:
        self._run.finish()


class TensorBoard(Tracker):
    """Event files in `tensorboard/` of the run folder."""

    module = "tensorboard"

    def begin(self, name: str, folder: Path, config: Mapping[str, Any]) -> None:
        writer = importlib.import_module("torch.utils.tensorboard").SummaryWriter
        self._writer = writer(str(folder / "tensorboard"))

    def log(self, numbers: Mapping[str, float], update: int) -> None:
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, update)

    def close(self) -> None:
        self._writer.close()


TRACKERS: dict[str, type] = {"trackio": Trackio, "wandb": Wandb, "tensorboard": TensorBoard}


class Tracking:
    """Sends rows to a tracker until it fails; then says so once and sends nothing more. None tracks nothing."""

    def __init__(self, tracker: Tracker | None, note: Callable[[str], None] = lambda text: None) -> None:
        self._tracker, self._note = tracker, note
        self._sent: dict[bool, int] = {}

    def begin(self, name: str, run: RunFolder, recipe: Recipe) -> Tracking:
        """Opens the tracked run. Rows that the log holds already were sent before the run was stopped: they are not sent again."""

        def open_run(tracker: Tracker) -> None:
            for row in read_log(run.log) if run.log.is_file() else ():
                self._sent[_validation(row)] = row["update"]
            tracker.begin(name, run.path, recipe.data_of())

        self._try("could not begin", open_run)
        return self

    def write(self, row: Mapping[str, Any]) -> None:
        """Sends one row of the log, unless it was sent before."""
        if self._tracker is not None and row["update"] > self._sent.get(_validation(row), -1):
            self._try("failed", lambda tracker: tracker.log(dict(flat(row)), row["update"]))

    def close(self) -> None:
        """Ends the tracked run."""
        self._try("could not end", lambda tracker: tracker.close())
        self._tracker = None

    def _try(self, what: str, work: Callable[[Tracker], None]) -> None:
        if self._tracker is None:
            return
        try:
            work(self._tracker)
        except Exception as error:  # trackers raise their own, their transport's and the system's errors
            name, self._tracker = self._tracker.module, None
            self._note(
                f"tracking: {name} {what} ({type(error).__name__}: {first_line(error)}); training goes on, log.jsonl has every row"
            )


def find_tracker(recipe: Recipe) -> Tracker | None:
    """Returns the recipe's tracker, not yet open; None where it names none. One that is not installed is refused."""
    if recipe.track is None:
        return None
    tracker: Tracker = build_kind(recipe.track_spec, TRACKERS)
    try:
        there = importlib.util.find_spec(tracker.module) is not None
    except ValueError:  # a module without a spec: it is there
        there = True
    if not there:
        raise ValueError(f"track: {tracker.module} is not installed; pip install {tracker.module}, or leave track out")
    return tracker


def begin_tracking(
    tracker: Tracker | None, recipe: Recipe, run: RunFolder, note: Callable[[str], None], *, resume: bool
) -> Tracking:
    """Opens the run's tracked run: a new one, or where the run is resumed the one that its folder remembers."""
    if tracker is None:
        return Tracking(None)
    record, kind, names = run.tracking, recipe.track_spec["kind"], {}
    try:
        names = read_json(record) if resume and record.is_file() else {}
        if not isinstance(names.get(kind, ""), str):
            raise ValueError(f"{record}: {kind} must be a name (got {names[kind]!r})")
    except (OSError, ValueError) as error:
        note(f"tracking: {first_line(error)}; training goes on, as a new tracked run")
    if not isinstance(names.get(kind), str):
        # a folder name is used again by the next run; the ending keeps the two apart
        names[kind] = f"{run.path.resolve().name}-{secrets.token_hex(4)}"
    try:
        write_json(record, names)
    except (OSError, ValueError) as error:
        note(f"tracking: {first_line(error)}; training goes on, and resumed it will be a new tracked run")
    return Tracking(tracker, note).begin(names[kind], run, recipe)


def flat(row: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, float]]:
    """Yields the finite numbers of a row by name, those of inner mappings as `valid/8/loss`; of a list of depths its mean."""
    for name, value in row.items():
        place = f"{path}{name}"
        if isinstance(value, Mapping):
            yield from flat(value, f"{place}/")
        elif name == "depth" and isinstance(value, list):
            yield place, sum(value) / len(value)
        elif isinstance(value, int | float) and math.isfinite(value) and place != "update":
            yield place, float(value)


def _validation(row: Mapping[str, Any]) -> bool:
    return "loss" not in row
