"""Saving: a model folder is written whole, with a card and a manifest; what else stood in its place (a tokenizer) stays."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path

from torch import Tensor
from transformers import PreTrainedTokenizerBase
from transformers.utils import logging

from loopwright.convert.card import model_card, put_card
from loopwright.model.looped import LoopedForCausalLM
from loopwright.run import STATE, says
from loopwright.storage.folder import check_out, whole_folder
from loopwright.untrusted import user_path

# what a saved model consists of: replaced as a whole, while other files of the folder stay
_REPLACED = (
    "config.json",
    "generation_config.json",
    "model.safetensors",
    "model-*-of-*.safetensors",
    "model.safetensors.index.json",
    "adapters.json",
    "adapters.safetensors",
    "average.safetensors",
)
MODEL = "a model folder to replace"


def save(
    model: LoopedForCausalLM,
    folder: str | Path,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    about: Mapping[str, str] | None = None,
) -> Path:
    """Writes a model, and its tokenizer if given, as `save_pretrained` does, whole or not at all; returns the folder.

    Its card (README.md) says what it is; `about` adds sections, markdown by title. A card that was edited there stays.
    """
    with model_folder(folder, model.parameters()) as place, without_bars():
        model.save_pretrained(place)
        if tokenizer is not None:
            tokenizer.save_pretrained(place)
        put_card(place, model_card(model.config, sections=about), before=_place(folder))
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
def model_folder(folder: str | Path, tensors: Iterable[Tensor]) -> Iterator[Path]:
    """Gives an empty folder to write these tensors into, and puts it in the place of `folder` when the block ends well."""
    check_replaceable(folder)
    needed = sum(tensor.nbytes for tensor in tensors)
    with whole_folder(_place(folder), needed=needed, kept="what stood there is unharmed", carry=_stays) as place:
        yield place


def check_replaceable(folder: str | Path) -> None:
    """Raises a ValueError where something stands that a saved model must not replace."""
    target, allowed = check_out("save", folder, None, MODEL), f"allowed: a new folder, an empty one, or {MODEL}"
    parent = next(path for path in target.parents if path.exists())
    if not os.access(parent, os.W_OK):
        raise ValueError(f"save: {parent} cannot be written to; allowed: a folder in which you may make files")
    if not target.is_dir() or not any(target.iterdir()):
        return
    if (target / STATE).exists():  # its optimiser and its average belong to other weights
        raise ValueError(f"save: {target} is a checkpoint of a run; {allowed}")
    if not says(target / "config.json", "model_type"):
        raise ValueError(f"save: {target} holds files but no model (no config.json with a model_type); {allowed}")


def _place(folder: str | Path) -> Path:
    return user_path(folder).resolve()


def _stays(name: str) -> bool:
    return not any(fnmatch(name, pattern) for pattern in _REPLACED)
