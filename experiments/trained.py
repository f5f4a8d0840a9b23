"""A training of which only numbers stay: its folder is gone afterwards, unless a place is given in which a later call goes on."""

from __future__ import annotations

import re
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loopwright.storage.files import read_json, write_json

if TYPE_CHECKING:
    from loopwright.model.causal_lm import LoopedForCausalLM
    from loopwright.training.recipe import Recipe
    from loopwright.training.report import Objects, Run


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


RESUMED = "resumed.json"  # in the folder of a run that goes on: from which updates it did, and what was not as before


class Stopped(RuntimeError):  # noqa: N818  (not a failure)
    """A training that was asked to end before its last update."""


def train_once(
    chosen: Recipe, shards: str | None = None, *, given: Objects | None = None, best: bool = False, kept: Path | None = None
) -> Trained:
    """Trains a recipe to its end, on token shards that runs share if there are any, with objects in the place of its kinds.
    `best`: the model of the best validation is kept too.

    `kept` is a folder that the run stays in, also once it has ended: who measures it removes the folder. A run that is found there
    goes on bit for bit as `loopwright train --resume` does, or is only opened where it has ended; one of another recipe is refused.
    """
    from loopwright.checkpoints.source import Source
    from loopwright.training.loop import train
    from loopwright.training.report import Silent, read_log

    reporter, here = Silent(), list[dict[str, Any]]()  # the updates that this call makes

    def made(update: dict[str, Any]) -> None:
        if kept and resume and not here:
            remember(kept, update["update"], reporter.notes)
        here.append(update)

    with tempfile.TemporaryDirectory() if kept is None else nullcontext(kept) as folder:
        place = Path(folder) / "run"
        resume = (place / "recipe.yaml").is_file()
        if shards is not None:
            place.mkdir(parents=True, exist_ok=True)
            (place / "data").unlink(missing_ok=True)  # of a run that goes on
            (place / "data").symlink_to(Path(shards).absolute())  # tokenised once for all rows
        began = time.perf_counter()
        outcome = train(chosen, place, given=given, resume=resume, reporter=reporter, on_update=made)
        seconds = time.perf_counter() - began
        log = read_log(outcome.folder.log)
        early = Source(place, checkpoint="best").model(device=outcome.model.device) if best and outcome.finished else None
    for note in reporter.notes if kept and resume else ():  # where it goes on, and what is not as before
        print(f"{place.parent.name}: {note}", flush=True)
    if not outcome.finished:
        then = "nothing is measured" if kept is None else "the next call goes on from there"
        raise Stopped(f"stopped after {outcome.progress.update} of {chosen.updates} updates; {then}")
    updates, validations = ([entry for entry in log if key in entry] for key in ("loss", "valid"))
    # A run that went on took the time of this call and, by its log, that of the updates before. So each update counts once, as does
    # the start; validations before this call do not count, nor does what a killed call lost.
    seconds += sum(entry["seconds"] for entry in updates[: len(updates) - len(here)])
    return Trained(outcome, updates, validations, seconds, early)


def train_given(model: LoopedForCausalLM, plan: Mapping[str, Any], extra: Sequence[str] = ()) -> Trained:
    """Trains a model in place by a recipe as plain data, with changes laid over it."""
    from loopwright.schema import parse_overrides
    from loopwright.training.recipe import make_recipe
    from loopwright.training.report import Objects

    chosen = make_recipe({**plan, "model": {"kind": "given", "what": "a model made here"}}, changes=parse_overrides(extra))
    return train_once(chosen, given=Objects(model=model))


def remember(kept: Path, update: int, notes: Sequence[str]) -> None:
    """Writes down that a run went on from an update (0: from its start, as there was no checkpoint), and what the notes of the call
    say of sums that are rounded otherwise."""
    from loopwright.training.checkpoint import OTHERWISE

    told = next((note for note in notes if note.startswith(OTHERWISE)), "")
    differs = re.match(rf"{OTHERWISE} \((.*)\): ", told)
    before = {at: why for at, why in resumed_at(kept).items() if int(at) < update}  # what was made from here on is lost
    write_json(kept / RESUMED, {**before, str(update): differs[1] if differs else told})


def resumed_at(kept: Path | None) -> dict[str, str]:
    """Returns the updates from which a run went on, each with what was not as before."""
    return read_json(kept / RESUMED) if kept and (kept / RESUMED).is_file() else {}


def resumptions(kept: Path | None) -> dict[str, Any]:
    """Returns what a row's `origin` says of a training that did not run in one piece; nothing of one that did.

    `resumed` are the updates that were done where it went on; `not_bit_for_bit` are those from which on sums were rounded
    otherwise, each with the reason.
    """
    places = {int(update): why for update, why in resumed_at(kept).items() if update != "0"}
    otherwise = [[update, why] for update, why in places.items() if why]
    return ({"resumed": [*places]} if places else {}) | ({"not_bit_for_bit": otherwise} if otherwise else {})
