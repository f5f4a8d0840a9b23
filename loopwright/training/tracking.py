"""Experiment trackers: the rows of log.jsonl, sent to trackio, wandb, TensorBoard or MLflow as well.

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

from accelerate.tracking import GeneralTracker, MLflowTracker, TensorBoardTracker, TrackioTracker, WandBTracker

from loopwright.schema import build_kind
from loopwright.storage.files import read_json, write_json
from loopwright.storage.run import RunFolder
from loopwright.training.report import read_log
from loopwright.untrusted import first_line

if TYPE_CHECKING:
    from loopwright.training.recipe import Recipe


class Kind:
    """A kind of tracker, by accelerate's class of it. Abstract. `module` is what must be installed."""

    module: ClassVar[str]

    def __init__(self, project: str = "loopwright") -> None:
        self.project = project

    def tracker(self, name: str, folder: Path, config: dict[str, Any]) -> GeneralTracker:
        """Returns what will send to the tracked run of this name: a new one, or the one that exists."""
        raise NotImplementedError

    def begin(self, name: str, folder: Path, config: dict[str, Any]) -> GeneralTracker:
        """Opens the tracked run of this name and returns what sends to it."""
        tracker = self.tracker(name, folder, config)
        tracker.start()
        return tracker


class Trackio(Kind):
    """Trackio, on this machine or, as its own environment variables say, on a Space."""

    module = "trackio"

    def tracker(self, name: str, folder: Path, config: dict[str, Any]) -> GeneralTracker:
        return TrackioTracker(self.project, name=name, config=config, resume="allow")


class Wandb(Kind):
    """Weights & Biases; its own environment variables say where and whether online."""

    module = "wandb"

    def tracker(self, name: str, folder: Path, config: dict[str, Any]) -> GeneralTracker:
        return WandBTracker(self.project, name=name, id=name, config=config, dir=str(folder), resume="allow")


class TensorBoard(Kind):
    """Event files in `tensorboard/` of the run folder."""

    module = "tensorboard"

    def __init__(self) -> None:
        super().__init__()

    def tracker(self, name: str, folder: Path, config: dict[str, Any]) -> GeneralTracker:
        return TensorBoardTracker("tensorboard", folder)


class Mlflow(Kind):
    """MLflow, where its own environment variables say; it numbers runs itself, so the run is found again by its name."""

    module = "mlflow"

    def tracker(self, name: str, folder: Path, config: dict[str, Any]) -> GeneralTracker:
        tracker = MLflowTracker(self.project, run_name=name)
        ending = f"attributes.run_name LIKE '%{name[-8:]}'"  # of our making: the rest of a name may hold quotes
        search = importlib.import_module("mlflow").search_runs
        for run in search(experiment_names=[tracker.experiment_name], filter_string=ending, output_format="list"):
            if run.info.run_name == name:
                tracker.run_id = run.info.run_id
        return tracker

    def begin(self, name: str, folder: Path, config: dict[str, Any]) -> GeneralTracker:
        tracker = super().begin(name, folder, config)
        if tracker.run_id is None:  # what a run was begun with cannot be changed in it
            tracker.store_init_configuration(config)
        return tracker


TRACKERS: dict[str, type] = {"trackio": Trackio, "wandb": Wandb, "tensorboard": TensorBoard, "mlflow": Mlflow}


class Tracking:
    """Sends rows to a tracker until it fails; then says so once and sends nothing more. None tracks nothing."""

    def __init__(self, kind: Kind | None, note: Callable[[str], None] = lambda text: None) -> None:
        self._kind, self._note = kind, note
        self._tracker: GeneralTracker | None = None
        self._sent: dict[bool, int] = {}

    def begin(self, name: str, run: RunFolder, recipe: Recipe) -> Tracking:
        """Opens the tracked run. Rows that the log holds already were sent before the run was stopped: they are not sent again."""

        def open_run(kind: Kind) -> None:
            for row in read_log(run.log) if run.log.is_file() else ():
                self._sent[_validation(row)] = row["update"]
            self._tracker = kind.begin(name, run.path, recipe.data_of())

        self._try("could not begin", open_run)
        return self

    def write(self, row: Mapping[str, Any]) -> None:
        """Sends one row of the log, unless it was sent before."""
        if (tracker := self._tracker) is not None and row["update"] > self._sent.get(_validation(row), -1):
            self._try("failed", lambda kind: tracker.log(dict(flat(row)), step=row["update"]))

    def close(self) -> None:
        """Ends the tracked run."""
        if (tracker := self._tracker) is not None:
            self._try("could not end", lambda kind: tracker.finish())
        self._kind = self._tracker = None

    def _try(self, what: str, work: Callable[[Kind], None]) -> None:
        if self._kind is None:
            return
        try:
            work(self._kind)
        except Exception as error:  # trackers raise their own, their transport's and the system's errors
            name, self._kind, self._tracker = self._kind.module, None, None
            self._note(
                f"tracking: {name} {what} ({type(error).__name__}: {first_line(error)}); training goes on, log.jsonl has every row"
            )


def find_tracker(recipe: Recipe) -> Kind | None:
    """Returns the recipe's tracker, not yet open; None where it names none. One that is not installed is refused."""
    if recipe.track is None:
        return None
    tracker: Kind = build_kind(recipe.track_spec, TRACKERS)
    try:
        installed = importlib.util.find_spec(tracker.module) is not None
    except ValueError:  # a module without a spec: it is there
        installed = True
    if not installed:
        raise ValueError(f"track: {tracker.module} is not installed; pip install {tracker.module}, or leave track out")
    return tracker


def begin_tracking(tracker: Kind | None, recipe: Recipe, run: RunFolder, note: Callable[[str], None], *, resume: bool) -> Tracking:
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
