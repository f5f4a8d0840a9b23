"""What words on the command line mean, and what every verb prints with."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Column, Table

from loopwright.convert.adapters import RECORD
from loopwright.convert.families import family_of
from loopwright.convert.source import find_folder
from loopwright.convert.weights import read_json, stored_tensors
from loopwright.model.config import LoopedConfig
from loopwright.model.presets import PRESETS, preset
from loopwright.settings import merge, parse_overrides, suggest

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float64": torch.float64,
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
SMALL = 1_000_000  # parameters
WIDE = 160  # columns where nobody looks through a window: a file or a pipe must not lose text


def find_config(source: str, overrides: Iterable[str] = ()) -> LoopedConfig:
    """Returns the config of a preset, or of what `lw.load` takes, with `a.b=c` overrides laid over it."""
    changes = parse_overrides(overrides)
    if is_preset(source):
        return preset(source, **changes)
    folder = find_folder(source)
    where = str(folder / "config.json")
    settings = read_json(folder / "config.json")
    # the weights stay on the disk; parts that were saved alone are always of our own kind
    tensors = {} if (folder / RECORD).is_file() else stored_tensors(folder)
    config = family_of(settings, tensors, where).config(settings, where)
    return LoopedConfig(**merge(config.to_dict(), changes)) if changes else config


def is_preset(source: str) -> bool:
    """Returns whether a word names a preset: a folder of that name wins, and a word that can be nothing else must be one."""
    if Path(source).exists():
        return False
    if source.removesuffix("-tiny") in PRESETS:
        return True
    if _is_word(source):
        known = suggest(source.removesuffix("-tiny"), PRESETS)
        raise ValueError(f"model: {source!r} is neither a folder nor a preset; {known} (each also as NAME-tiny)")
    return False


def need_weights(verb: str, source: str) -> None:
    """Raises a ValueError where a word can name no weights: presets have none, and what is no folder needs an owner on the hub."""
    if _is_word(source) and not Path(source).exists():
        known = source.removesuffix("-tiny") in PRESETS
        wrong = "is a preset, which has no trained weights" if known else "is no folder"
        raise ValueError(f"{verb}: {source!r} {wrong}; allowed: the folder of a model or a run, or a hub id (owner/name)")


def _is_word(source: str) -> bool:
    """Whether a source is neither a path of several parts nor a hub id."""
    return "/" not in source and "\\" not in source


def find_dtype(name: str) -> torch.dtype:
    """Returns the dtype of a name such as bf16 or float32."""
    if name not in DTYPES:
        raise ValueError(f"dtype: unknown {name!r}; {suggest(name, DTYPES)}")
    return DTYPES[name]


def find_device(name: str) -> str:
    """Returns the name of a device that is there."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"device: unknown {name!r}; allowed: cpu, cuda, cuda:N, mps") from None
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not there.get(device.type) or (device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count()):
        raise ValueError(f"device: {name!r} is not there; allowed here: {', '.join(kind for kind, here in there.items() if here)}")
    return name


def console(*, stderr: bool = False) -> Console:
    """Returns the console of a stream: as wide as the window, or wide enough for a file."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, highlight=False, width=None if stream.isatty() else WIDE)


def table(title: str, *columns: str) -> Table:
    """Returns a table whose first column is text and whose others are numbers."""
    headers = [Column(name, justify="right" if place else "left", no_wrap=True) for place, name in enumerate(columns)]
    return Table(*headers, title=title, title_justify="left", title_style="bold")


@contextmanager
def fitting_threads(model: torch.nn.Module) -> Iterator[None]:
    """Runs a small model on one thread for a while: waiting for the others would cost it more than they bring."""
    before = torch.get_num_threads()
    if sum(p.numel() for p in model.parameters()) < SMALL:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def progress() -> Progress:
    """Returns a bar on stderr that leaves nothing behind; none where nobody looks."""
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    return Progress(*columns, console=console(stderr=True), transient=True, disable=not sys.stderr.isatty())
