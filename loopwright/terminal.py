"""What is written to a terminal: nothing that it shows can steer it, whoever gave a file, a run or a token its name."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions
from rich.segment import Segment
from rich.text import Text

from loopwright.untrusted import visible


class Screen(Console):
    """A console that shows what would steer it written out, and takes rich's tags in a name for the text that they are."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Returns text with its style: where it is measured it is what is shown."""
        return super().render_str(visible(text), **options)

    def render(self, renderable: Any, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yields what is written: rich's own movements of the cursor, and visible text."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)


def say(line: str) -> None:
    """Writes a line to stderr at once."""
    print(visible(line), file=sys.stderr, flush=True)


def stream_out(text: str) -> None:
    """Writes a piece of text to stdout at once: as it is into a file or a pipe, visible on a terminal."""
    print(visible(text) if sys.stdout.isatty() else text, end="", flush=True)
