"""`loopwright train`: a run from a recipe."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path

from accelerate import PartialState

from loopwright.commands.console import console
from loopwright.recipes import find, recipe
from loopwright.threads import fitting_threads
from loopwright.train.loop import train as run_training
from loopwright.train.progress import Terminal


def train(word: str, overrides: Iterable[str] = (), *, out: str | None = None, resume: bool = False, toy: bool = False) -> bool:
    """Trains a recipe into a run folder and returns whether it came to its end; a run of that folder goes on with `resume`."""
    overrides = list(overrides)
    chosen = recipe(word, overrides, toy=toy)
    folder = Path(out) if out else Path("runs") / (find(word).stem + ("-toy" if toy else ""))
    outcome = run_training(chosen, folder, resume=resume, reporter=Terminal(folder.name), within=fitting_threads)
    if PartialState().is_main_process:
        again = shlex.join(["loopwright", "train", word, *overrides, *(["--toy"] if toy else []), "--out", str(folder), "--resume"])
        line = f"next: loopwright evaluate {folder}" if outcome.finished else f"go on with: {again}"
        console(stderr=not outcome.finished).print(line, markup=False, soft_wrap=True)
    return outcome.finished
