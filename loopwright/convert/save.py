"""Saving: a folder is written beside its place and moved there when it is whole, so nothing is ever half-written."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path

from transformers import PreTrainedTokenizerBase
from transformers.utils import logging

from loopwright.convert.weights import read_json
from loopwright.model.looped import LoopedForCausalLM
from loopwright.run import share

# what a saved model consists of: replaced as a whole, while other files of the folder (a tokenizer, a README) stay
_REPLACED = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "model-*-of-*.safetensors",
    "model.safetensors.index.json",
)


def save(model: LoopedForCausalLM, folder: str | Path, tokenizer: PreTrainedTokenizerBase | None = None) -> Path:
    """Writes a model, and its tokenizer if given, as `save_pretrained` does, whole or not at all; returns the folder."""
    with whole_folder(folder) as place, without_bars():
        model.save_pretrained(place)
        if tokenizer is not None:
            tokenizer.save_pretrained(place)
    return Path(folder)


@contextmanager
def without_bars() -> Iterator[None]:
    """A save shows no bar of transformers' own: who saves says so."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


@contextmanager
def whole_folder(folder: str | Path) -> Iterator[Path]:
    """Gives an empty folder to write into, and puts it in the place of `folder` when the block ends without an error."""
    target = Path(folder).expanduser().resolve()
    _check_replaceable(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    made = target.parent / f".{target.name}.{uuid.uuid4().hex[:8]}"
    made.mkdir()
    try:
        yield made
        share(made)
        _put(made, target)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _check_replaceable(target: Path) -> None:
    if target.exists() and not target.is_dir():
        raise ValueError(f"save: {target} is a file; allowed: a new folder, an empty one, or a model folder to replace")
    if not target.is_dir() or not any(target.iterdir()):
        return
    try:
        known = "model_type" in read_json(target / "config.json")
    except (FileNotFoundError, ValueError):
        known = False
    if not known:
        raise ValueError(
            f"save: {target} holds files but no model (no config.json with a model_type); allowed: a new folder, an empty one, "
            "or a model folder to replace"
        )


def _put(made: Path, target: Path) -> None:
    if not target.exists():
        os.rename(made, target)
        return
    old = made.with_name(f"{made.name}.old")
    os.rename(target, old)
    try:
        os.rename(made, target)
    except OSError:
        os.rename(old, target)
        raise
    for entry in old.iterdir():
        stale = any(fnmatch(entry.name, pattern) for pattern in _REPLACED)
        if not stale and not (target / entry.name).exists():
            os.rename(entry, target / entry.name)
    shutil.rmtree(old)
