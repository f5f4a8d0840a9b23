"""Records of a run: what was passed to it, how far it is, how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loopwright.data.batch import Splits
from loopwright.model.looped import LoopedForCausalLM
from loopwright.plot.drawing import Curve, Drawing, Plotted
from loopwright.plot.training import loss_curves
from loopwright.run import RunFolder
from loopwright.train.reporting.log import read_log
from loopwright.train.reporting.spikes import spikes


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
