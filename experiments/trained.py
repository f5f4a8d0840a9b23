"""A training of which only numbers stay: its folder is gone afterwards."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from loopwright.model.looped import LoopedForCausalLM
    from loopwright.train.recipe import Recipe
    from loopwright.train.state import Objects, Run


@dataclass(frozen=True)
class Trained:
    """A run that has ended: how, its log of updates, its validations, how long it took, and the model of its best validation where
    asked for."""

    outcome: Run
    log: list[dict[str, Any]]
    looks: list[dict[str, Any]]
    seconds: float
    best: LoopedForCausalLM | None = None

    def taken(self, name: str) -> list[float]:
        """Returns a number of each update but those that were skipped, whose loss or gradient was not finite."""
        return [entry[name] for entry in self.log if not entry.get("skipped")]

    def skipped(self) -> list[list[Any]]:
        """Returns update and depths of each that was skipped."""
        return [[entry["update"], entry["depth"]] for entry in self.log if entry.get("skipped")]

    def losses(self, size: int = 20) -> list[float]:
        """Returns the training loss as means of `size` updates each."""
        found = self.taken("loss")
        return [round(sum(found[i : i + size]) / len(found[i : i + size]), 4) for i in range(0, len(found), size)]

    def exact(self) -> list[list[Any]]:
        """Returns the exact match of each validation by depth, behind its update."""
        return [[entry["update"], {depth: found["exact"] for depth, found in entry["valid"].items()}] for entry in self.looks]


def train_once(chosen: Recipe, shards: str | None = None, *, given: Objects | None = None, best: bool = False) -> Trained:
    """Trains a recipe to its end, on token shards that runs share if there are any, with objects in the place of its kinds.
    `best`: the model of the best validation is kept too."""
    from loopwright.source import Source
    from loopwright.train.loop import train
    from loopwright.train.reporting.log import read_log

    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "run"
        if shards is not None:
            place.mkdir()
            (place / "data").symlink_to(Path(shards).absolute())  # tokenised once for all rows
        began = time.perf_counter()
        outcome = train(chosen, place, given=given)
        seconds = time.perf_counter() - began
        log = read_log(outcome.folder.log)
        early = Source(place, checkpoint="best").model(device=outcome.model.device) if best and outcome.finished else None
    if not outcome.finished:
        raise RuntimeError(f"stopped after {outcome.progress.update} of {chosen.updates} updates; nothing is measured")
    return Trained(outcome, *([entry for entry in log if key in entry] for key in ("loss", "valid")), seconds, early)
