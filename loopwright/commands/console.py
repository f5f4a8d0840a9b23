"""What every verb prints with. Nothing heavy is imported here, so that a list of recipes does not wait for torch.

How long a deep pass takes, told before it starts.

What a verb opens: the model of a source, and what is said about it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Column, Table

from loopwright.checkpoints.source import Source
from loopwright.confined import ConfinedTokenizer, LimitError
from loopwright.errors import one_line
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.config import LoopedConfig
from loopwright.model.presets import preset
from loopwright.process import Screen, say
from loopwright.schema import merge, parse_overrides
from loopwright.untrusted import STEERING, read_text, user_path

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


DEEP = 1000  # steps of a pass that nobody runs by chance
MEASURED = 8  # steps that are timed


def tell_wait(model: LoopedForCausalLM, depth: int | None, *, rows: int = 1, length: int = 1) -> None:
    """Prints on stderr how long one pass of rows × length tokens at an absurd depth will take; nothing at others.

    The time of a step is measured on this model and this shape: a pass of nine steps less one of one step.
    """
    steps = model.config.check_depth(depth)
    if steps < DEEP or not model.config.is_looped:
        return
    ids = torch.zeros(rows, length, dtype=torch.long, device=model.device)
    shallow = min(_seconds(model, ids, 1) for _ in range(2))
    step = max(_seconds(model, ids, 1 + MEASURED) - shallow, 0.0) / MEASURED
    shape = f"{rows} × {length} tokens"
    say(f"loopwright: depth {steps:,}: about {spelled(steps * step)} for each pass of {shape} "
          f"({step * 1e3:.3g} ms a step, measured); Ctrl-C stops")  # fmt: skip


def _seconds(model: LoopedForCausalLM, ids: torch.Tensor, depth: int) -> float:
    begin = time.perf_counter()
    with torch.no_grad():
        model(ids, depth=depth, use_cache=False).logits.sum().item()  # the item waits for a GPU
    return time.perf_counter() - begin


def spelled(seconds: float) -> str:
    """Returns a time in the unit a person would use."""
    for unit, size in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds" if seconds >= 2 else "a second or two"


SYSTEM_BYTES = 2**17  # of a file with a system prompt


def find_config(source: Source, overrides: Iterable[str] = ()) -> LoopedConfig:
    """Returns the config of a source with `a.b=c` overrides laid over it."""
    changes = parse_overrides(overrides)
    if source.is_preset:
        return preset(source.name, **changes)
    config = source.config
    return LoopedConfig(**merge(config.to_dict(), changes)) if changes else config


def open_model(source: Source, dtype: torch.dtype, device: str) -> LoopedForCausalLM:
    """Returns the model of a source, after a line on stderr for each damaged checkpoint that was passed over."""
    model = source.model(dtype, device)
    warn_of_damage(source)
    return model


def warn_of_damage(source: Source) -> None:
    """Prints a line on stderr for each damaged checkpoint that was passed over."""
    for note in source.notes:
        warn(note)


def open_tokenizer(source: Source, given: str | None = None) -> Any:
    """Returns the tokenizer that is given, or that of a source."""
    if given is not None:
        return Source(given).tokenizer()
    try:
        return source.tokenizer()
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{error}; --tokenizer names one") from None


def probed(name: str, tokenizer: Any) -> ConfinedTokenizer:
    """Returns a tokenizer in a process of its own, in which it and its chat template have kept to the limits once."""
    words = ConfinedTokenizer(tokenizer)
    try:
        words.probe()
    except LimitError as error:
        words.close()
        raise ValueError(f"{name}: the tokenizer or its chat template is not taken: {error}; take another, or mend it") from None
    return words


def system_text(given: str) -> str:
    """Returns a system prompt that is given as a text, or as a .txt file that holds it."""
    return read_text(user_path(given), SYSTEM_BYTES) if given.endswith(".txt") else given
