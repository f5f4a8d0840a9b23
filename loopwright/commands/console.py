"""What every verb prints with. Nothing heavy is imported here, so that a list of recipes does not wait for torch."""

from __future__ import annotations

import sys
from typing import NoReturn

from rich.console import Console

WIDE = 160  # columns when the stream is no terminal: a file or a pipe must not lose text


class _Console(Console):
    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError  # rich would exit with 1, which says that a check failed


def console(*, stderr: bool = False) -> Console:
    """Returns the console of a stream: as wide as the window, or wide enough for a file."""
    stream = sys.stderr if stderr else sys.stdout
    return _Console(file=stream, highlight=False, width=None if stream.isatty() else WIDE)
