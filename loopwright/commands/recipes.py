"""`loopwright recipes`: the recipes there are. The list is read from the files alone, without torch."""

from __future__ import annotations

from rich.table import Column, Table

from loopwright.commands.console import console
from loopwright.recipes import FOLDER, find, names
from loopwright.settings import read_yaml


def recipes(name: str | None = None) -> None:
    """Prints the shipped recipes, or one of them in full, resolved."""
    if name is not None:
        from loopwright.train.recipe import shown_recipe  # every table of kinds, and torch with them

        print(shown_recipe(find(name)), end="")
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
