"""Finding a recipe: a file, or the name of a shipped one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from loopwright.schema import suggest
from loopwright.untrusted import user_path

if TYPE_CHECKING:
    from loopwright.training.recipe import Recipe

FOLDER = Path(__file__).parent


def names() -> list[str]:
    """Returns the names of the shipped recipes."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def find(word: str) -> Path:
    """Returns the file that a word on the command line means: a file of that path, or a shipped recipe of that name.

    A shipped name wins over a file that is called the same: a recipe may execute Python files, so nobody's file may pass for ours.
    """
    path = user_path(word)
    if word in names():
        return FOLDER / f"{word}.yaml"
    if path.is_file():
        return path
    plain = path.stem if path.suffix in (".yaml", ".yml") else word
    if plain in names():
        return FOLDER / f"{plain}.yaml"
    raise ValueError(f"recipe: {word!r} is neither a file nor a shipped recipe; {suggest(plain, names())}")


def recipe(word: str, overrides: Iterable[str] = (), *, toy: bool = False) -> Recipe:
    """Returns a recipe by path or name, with `a.b=c` overrides laid over it; `toy` first shrinks it to test size.

    What a file that is given by its path imports is executed.
    """
    from loopwright.training.recipe import open_recipe  # with torch, which a list of names does not need

    return open_recipe(find(word), overrides, toy=toy)
