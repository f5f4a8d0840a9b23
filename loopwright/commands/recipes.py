"""`loopwright recipes`: the recipes there are. The list is read from the files alone, without torch."""

from __future__ import annotations

from typing import Any

from rich.table import Column, Table

from loopwright.commands.console import console
from loopwright.recipes import FOLDER, find, names
from loopwright.schema import read_yaml


def recipes(name: str | None = None) -> Any:
    """Prints the shipped recipes, or one of them in full, resolved. Returns the rows, or the recipe as data."""
    if name is not None:
        from loopwright.training.recipe import shown_recipe  # every table of kinds, and torch with them

        text = shown_recipe(find(name))
        print(text, end="")
        return read_yaml(text, name)
    table = Table(Column("recipe", no_wrap=True), "what it trains")
    rows = [{"recipe": one, "about": read_yaml((FOLDER / f"{one}.yaml").read_text(), one)["about"]} for one in names()]
    for row in rows:
        table.add_row(*row.values())
    out = console()
    out.print(table)
    out.print(
        "loopwright train NAME a.b=c … trains one, changed; --toy runs two updates of it at test size; recipes NAME prints it."
    )
    return rows
