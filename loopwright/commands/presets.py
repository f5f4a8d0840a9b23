"""`loopwright presets`: the systems that can be built by name."""

from __future__ import annotations

from typing import Any

from rich.table import Column, Table

from loopwright.checkpoints.save import stacks
from loopwright.commands.console import console
from loopwright.model import cost
from loopwright.model.presets import PRESETS, SOURCES, preset


def presets() -> list[dict[str, Any]]:
    """Prints the presets: size, stacks and the system each one is. Returns the rows."""
    table = Table(Column("preset", no_wrap=True), Column("parameters", justify="right", no_wrap=True), "stacks", "system")
    rows = []
    for name in PRESETS:
        config = preset(name)
        total = cost.parameters(config)["total"].unique
        layers, system = stacks(config, config.depth), SOURCES[name]
        rows.append({"preset": name, "parameters": total, "stacks": layers, "system": system})
        table.add_row(name, f"{total:,}", layers, system)
    out = console()
    out.print(table)
    out.print("NAME-tiny is the same system at test size; lw.build(NAME) makes either with fresh weights.")
    return rows
