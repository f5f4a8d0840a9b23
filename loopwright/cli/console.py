"""What every verb prints with. Nothing heavy is imported here, so that a list of recipes does not wait for torch."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import math
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Column, Table

from loopwright.errors import one_line
from loopwright.process import Screen, say
from loopwright.untrusted import STEERING

WIDE = 160  # columns when the stream is no terminal: a file or a pipe must not lose text


class _Console(Screen):
    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError  # rich would exit with 1, which says that a check failed


def console(*, stderr: bool = False) -> Screen:
    """Returns the console of a stream: as wide as the window, or wide enough for a file."""
    stream = sys.stderr if stderr else sys.stdout
    return _Console(file=stream, width=None if stream.isatty() else WIDE)


def warn(message: object) -> None:
    """Prints a warning as one line on stderr."""
    say(f"loopwright: warning: {one_line(str(message))}")


_Result = TypeVar("_Result")


def show(work: Callable[[], _Result], as_json: bool) -> _Result:
    """Runs a verb, which prints for people and returns the same as data. With `--json` the data are printed, and nothing else."""
    if not as_json:
        return work()
    with contextlib.redirect_stdout(io.StringIO()):
        result = work()
    text = json.dumps(plain(result), indent=2, ensure_ascii=False)
    print(STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", text))
    return result


def plain(value: Any) -> Any:
    """Returns a result as JSON takes it. What is not a finite number becomes null: JSON has no word for it."""
    if callable(getattr(value, "to_dict", None)):
        return plain(value.to_dict())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value


def table(title: str, *columns: str) -> Table:
    """Returns a table whose first column is text, which wraps in a narrow window, and whose others are numbers, which do not."""
    headers = [Column(name, justify="right" if place else "left", no_wrap=place > 0) for place, name in enumerate(columns)]
    return Table(*headers, title=title, title_justify="left", title_style="bold")


@contextlib.contextmanager
def told_warnings() -> Iterator[None]:
    """Prints Python's warnings as lines on stderr for a while."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *place, **more: warn(message)
        yield


class Bar:
    """A bar on stderr for one piece of work at a time, which is taken away when that is done."""

    def __enter__(self) -> Bar:
        self._bar: Progress | None = None
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def show(self, name: str, done: int, total: int) -> None:
        """Shows how much of the work is done."""
        if self._bar is None:
            self._bar = progress()
            self._task = self._bar.add_task(name)
            self._bar.start()
        self._bar.update(self._task, completed=done, total=total)
        if done >= total:
            self.__exit__()


def progress() -> Progress:
    """Returns a bar on stderr that leaves nothing behind; none when stderr is not a terminal."""
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}", markup=False))
    return Progress(*columns, console=console(stderr=True), transient=True, disable=not sys.stderr.isatty())
