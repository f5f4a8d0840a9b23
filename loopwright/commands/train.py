"""`loopwright train` and `loopwright recipes`: a run from a recipe, and the recipes there are."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path

from accelerate import PartialState
from rich.table import Column, Table

from loopwright.commands.words import console, fitting_threads
from loopwright.recipes.shelf import FOLDER, find, names, recipe
from loopwright.settings import read_yaml
from loopwright.train.loop import train as run_training
from loopwright.train.recipe import read_recipe, written
from loopwright.train.watch import Terminal


def train(word: str, overrides: Iterable[str] = (), *, out: str | None = None, resume: bool = False, toy: bool = False) -> bool:
    """Trains a recipe into a run folder and returns whether it came to its end; a run of that folder goes on with `resume`."""
    overrides = list(overrides)
    chosen = recipe(word, overrides, toy=toy)
    folder = Path(out) if out else Path("runs") / (find(word).stem + ("-toy" if toy else ""))
    outcome = run_training(chosen, folder, resume=resume, watch=Terminal(folder.name), within=fitting_threads)
    if PartialState().is_main_process:
        again = shlex.join(["loopwright", "train", word, *overrides, *(["--toy"] if toy else []), "--out", str(folder), "--resume"])
        line = f"next: loopwright evaluate {folder}" if outcome.finished else f"go on with: {again}"
        console(stderr=not outcome.finished).print(line, markup=False, soft_wrap=True)
    return outcome.finished


def recipes(name: str | None = None) -> None:
    """Prints the shipped recipes, or one of them in full, resolved."""
    if name is not None:
        print(written(read_recipe(find(name))), end="")
        return
    table = Table(Column("recipe", no_wrap=True), "what it trains")
    for one in names():
        data = read_yaml((FOLDER / f"{one}.yaml").read_text(), one)
        table.add_row(one, data["about"])
    out = console()
    out.print(table)
    out.print(
        "loopwright train NAME a.b=c … trains one, changed; --toy runs two updates of it at test size; recipes NAME prints it."
    )
