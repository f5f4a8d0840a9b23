"""`loopwright train`: a run from a recipe."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from accelerate import PartialState

from loopwright.commands.console import console
from loopwright.process import fitting_threads
from loopwright.recipes import find, recipe
from loopwright.registry import noted_files
from loopwright.training.loop import train as run_training
from loopwright.training.report import Terminal


def train(
    word: str,
    overrides: Iterable[str] = (),
    *,
    out: str | None = None,
    resume: bool = False,
    toy: bool = False,
    track: str | None = None,
    imports: Sequence[str] = (),
) -> bool:
    """Trains a recipe into a run folder and returns whether it came to its end; a run of that folder goes on with `resume`.

    `imports` are the files that were imported for it.
    """
    overrides = [*overrides, *([] if track is None else [f"track={track}"])]
    chosen = recipe(word, overrides, toy=toy)
    folder = Path(out) if out else Path("runs") / (find(word).stem + ("-toy" if toy else ""))
    outcome = run_training(chosen, folder, resume=resume, reporter=Terminal(folder.name), within=fitting_threads)
    if PartialState().is_main_process:
        parts = [word for file in imports for word in ("--import", file)]
        words = [word, *overrides, *(["--toy"] if toy else []), *parts, "--out", str(folder), "--resume"]
        again = shlex.join(["loopwright", "train", *words])
        files = noted_files()
        then = shlex.join(["loopwright", "evaluate", str(folder), *(word for file in files for word in ("--import", file))])
        line = f"next: {then}" if outcome.finished else f"go on with: {again}"
        console(stderr=not outcome.finished).print(line, markup=False, soft_wrap=True)
    return outcome.finished
