"""What every verb prints with. Nothing heavy is imported here, so that a list of recipes does not wait for torch."""

from __future__ import annotations

import sys
from typing import NoReturn

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Column, Table

WIDE = 160  # columns when the stream is no terminal: a file or a pipe must not lose text


class _Console(Console):
    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError  # rich would exit with 1, which says that a check failed


def console(*, stderr: bool = False) -> Console:
    """Returns the console of a stream: as wide as the window, or wide enough for a file."""
    stream = sys.stderr if stderr else sys.stdout
    return _Console(file=stream, highlight=False, width=None if stream.isatty() else WIDE)


def table(title: str, *columns: str) -> Table:
    """Returns a table whose first column is text, which wraps in a narrow window, and whose others are numbers, which do not."""
    headers = [Column(name, justify="right" if place else "left", no_wrap=place > 0) for place, name in enumerate(columns)]
    return Table(*headers, title=title, title_justify="left", title_style="bold")


def progress() -> Progress:
    """Returns a bar on stderr that leaves nothing behind; none when stderr is not a terminal."""
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    return Progress(*columns, console=console(stderr=True), transient=True, disable=not sys.stderr.isatty())
