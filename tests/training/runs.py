"""Runs small enough for tests, what they must agree in, and the children that run them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from loopwright.cli import main
from loopwright.data.batch import Order
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.schema import merge
from loopwright.storage.files import read_json, write_json
from loopwright.storage.run import MADE
from loopwright.training.loop import train
from loopwright.training.objectives.losses import OBJECTIVES, Final
from loopwright.training.recipe import Recipe, make_recipe
from loopwright.training.report import TIMING_KEYS, Progress, Run, Silent, read_log
from loopwright.training.rollout import Rollout

PLAIN: dict[str, Any] = {
    "about": "a test",
    "model": {"kind": "preset", "name": "stars-addition-tiny", "changes": {"injection": {"kind": "add"}}},
    "data": {"kind": "addition", "digits": 2, "train": 64, "valid": 24, "test": 8},
    "updates": 8,
    "batch": 8,
    "depth": {"kind": "uniform", "least": 2, "most": 4},
    "optim": {"kind": "adamw", "lr": 3e-3, "weight_decay": 0.01},
    "validate": {"every": 4, "depths": [1, 2, 5], "rows": 24},
}
# all that a resumed run could forget: dropout, an average, penalties that wait, random and growing depth, truncation
RICH: dict[str, Any] = {
    "model": {"changes": {"dropout": 0.1}},
    "data": {"kind": "chain", "operations": "add", "modulus": 2, "lengths": [6, 8], "train": 64, "valid": 16, "test": 8},
    "updates": 18,
    "accumulate": 2,
    "depth": {
        "kind": "curriculum", "updates": 9,
        "rule": {"kind": "log-normal", "mu": 1.0, "sigma": 0.5, "most": 6, "grad_steps": 3},
    },
    "objective": {"kind": "every-step"},
    "penalties": [{"kind": "jacobian", "mode": "fd", "share": 0.5, "weight": 0.1, "start_accuracy": 0.3, "ramp": 4}],
    "schedule": {"kind": "wsd", "warmup": 3, "decay": 6},
    "optim": {"lr": 2e-2},
    "average": {"kind": "ema", "decay": 0.8},
    "remat": "step",
    "validate": {"every": 3, "depths": [1, 4], "rows": 16, "radius": 18, "radius_rows": 1},
    "save": {"every": 5, "keep": 2},
}  # fmt: skip
OPTIMISERS = {
    "adamw": {"kind": "adamw", "lr": 2e-2, "weight_decay": 0.01},
    "muon": {"kind": "muon", "lr": 3e-3, "adam_lr": 3e-3, "weight_decay": 0.01},
    "ellis-adam": {"kind": "ellis-adam", "lr": 2e-2, "weight_decay": 1e-4},
    "packed": {"kind": "muon", "lr": 3e-3, "adam_lr": 3e-3, "weight_decay": 0.01, "packed": True},
}


def untimed(row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a row of a log without what a clock decided."""
    return {key: value for key, value in row.items() if key not in TIMING_KEYS}


def small(*changes: Mapping[str, Any]) -> Recipe:
    """The plain recipe with changes laid over it."""
    data: dict[str, Any] = PLAIN
    for change in changes:
        data = merge(data, change)
    return make_recipe(data)


def rows_of(outcome: Run | Path) -> list[dict[str, Any]]:
    """The log of a run without what a clock decided."""
    log = outcome.folder.log if isinstance(outcome, Run) else outcome / "log.jsonl"
    return [untimed(row) for row in read_log(log)]


def end_of(folder: Path) -> dict[str, Any]:
    """Sizes and sums of the files of the last checkpoint of a run: weights, optimiser, generators, average, progress.

    The mark of the log is left out: the log has times in it."""
    last = max((folder / "checkpoints").iterdir())
    files = read_json(last / "manifest.json")["files"]
    return {"update": last.name, **{name: facts for name, facts in files.items() if name != MADE}}


class Poisoned(Final):
    """The final loss, with what is not a number in the loss or in its gradient alone, at some updates; in one process alone."""

    def __init__(self, at: list, what: str = "loss", rank: int = 0) -> None:
        super().__init__()
        self.at, self.what, self.rank = at, what, rank

    def __call__(self, model: LoopedForCausalLM, rollout: Rollout) -> tuple[Tensor, dict[str, Tensor]]:
        loss, metrics = super().__call__(model, rollout)
        if rollout.plan.update in self.at and self.rank == int(os.environ.get("RANK", "0")):
            zero = (loss - loss.detach()).abs()
            loss = loss * float("nan") if self.what == "loss" else loss + zero.sqrt()  # a slope without end at 0
        return loss, metrics


class Act(Silent):
    """Does something once so many updates are done."""

    def __init__(self, at: int, act: Callable[[], None]) -> None:
        super().__init__()
        self.at, self.act = at, act

    def update(self, row: dict[str, Any], progress: Progress, seconds: float) -> None:
        if progress.update == self.at:
            self.act()


def interrupt() -> None:
    """Ctrl-C."""
    os.kill(os.getpid(), signal.SIGINT)


# children; they are forked by a server that has loaded this module once, and has run nothing


def children() -> Any:
    """What starts them."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


def counted(recipe: Recipe, folder: str, found: str, at: int | None) -> None:
    """Trains, resuming if there is something to resume, killed (-9) at its call number `at`; notes in a file how many calls it
    made, and which were made inside a save."""
    torch.set_num_threads(1)
    number, saves = 0, []

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal number
        number += 1
        if number == at:
            os.kill(os.getpid(), signal.SIGKILL)
        if event in ("call", "return") and frame.f_code.co_name == "save_checkpoint":
            saves.append(number)

    sys.setprofile(count)
    train(recipe, folder, resume=(Path(folder) / "recipe.yaml").is_file())
    sys.setprofile(None)
    write_json(found, {"calls": number, "saves": list(zip(saves[::2], saves[1::2], strict=True))})


def command(words: list[str], errors: str) -> None:
    """The command line, its errors in a file."""
    torch.set_num_threads(1)
    sys.stderr = open(errors, "w", buffering=1)  # noqa: SIM115  (open as long as the process)
    main(words)


@dataclass(frozen=True)
class Turn:
    """One run of several that the same processes make in turn; `shards` FSDP2 instead of copies. In the last process `other` is
    trained in place of the recipe, and modules have these `attributes`."""

    name: str
    recipe: Recipe
    shards: bool = False
    resume: bool = False
    stop: int | None = None
    fails: str | None = None  # with these words
    other: Recipe | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)


def ranked(rank: int, world: int, port: int, folder: str, turns: list[Turn]) -> None:
    """One of `world` processes, as a launcher starts it; it notes the samples that it took of each run. It works in the folder
    `rank-RANK`, where there is one."""
    torch.set_num_threads(1)
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "MASTER_PORT": port}
    fixed = {"MASTER_ADDR": "127.0.0.1", "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "FSDP_VERSION": "2"}
    os.environ.update({**{name: str(number) for name, number in place.items()}, **fixed})
    OBJECTIVES["poisoned"] = Poisoned
    share, last = Order.share, rank == world - 1
    if (own := Path(folder) / f"rank-{rank}").is_dir():
        os.chdir(own)
    for turn in turns:
        os.environ["ACCELERATE_USE_FSDP"] = str(turn.shards).lower()
        taken: list[list[int]] = []

        def noted(self: Order, *arguments: int, taken: list[list[int]] = taken) -> tuple[Tensor, Tensor]:
            indices, rows = share(self, *arguments)
            taken.append([indices.tolist(), rows.tolist()])
            return indices, rows

        Order.share = noted
        # a stop that only one process hears of must stop all
        reporter = Act(turn.stop, interrupt) if turn.stop and rank == 0 else None
        recipe = turn.other if turn.other is not None and last else turn.recipe
        try:
            with ExitStack() as planted:
                for name, value in turn.attributes.items() if last else ():
                    planted.enter_context(patch(name, value))
                outcome = train(recipe, Path(folder) / turn.name, resume=turn.resume, reporter=reporter)
        except ValueError as error:
            if turn.fails is None or turn.fails not in str(error):
                raise
            continue
        assert turn.fails is None, f"{turn.name}: went on in process {rank}"
        outcome.model(outcome.splits.valid.batch([0]).input_ids)  # whole again, in every process
        write_json(Path(folder) / f"{turn.name}.{rank}.json", {"taken": taken, "update": outcome.progress.update})
    torch.distributed.destroy_process_group()
