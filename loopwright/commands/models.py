"""The model that a word on the command line means: a folder, a hub id, or a run, whose checkpoint may hold its parts alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from loopwright.convert.load import load
from loopwright.convert.source import tokenizer
from loopwright.model.looped import LoopedForCausalLM
from loopwright.run import RunFolder
from loopwright.train.checkpoint import find_checkpoint, saved_model
from loopwright.train.recipe import Recipe, read_recipe


def own_recipe(source: str) -> Recipe | None:
    """Returns the recipe of a run folder; None where a word means no run."""
    path = RunFolder(source).recipe
    return read_recipe(path) if path.is_file() else None


def weights_of(source: str, own: Recipe | None, checkpoint: str = "last") -> str | Path:
    """Returns where the weights of a source stand: in a checkpoint of a run, else in the source itself."""
    return source if own is None else find_checkpoint(RunFolder(source).checkpoints, checkpoint).folder


def read_model(weights: str | Path, own: Recipe | None, dtype: torch.dtype, device: str) -> LoopedForCausalLM:
    """Returns the model of these weights. Parts that were saved alone are put on the base that the run's recipe names."""
    if own is None:
        return load(weights, dtype=dtype, device=device)
    return saved_model(Path(weights), own.model, dtype=dtype, device=device)


def open_model(source: str, dtype: torch.dtype, device: str) -> LoopedForCausalLM:
    """Returns the model of a source; a run's is that of its last checkpoint."""
    own = own_recipe(source)
    return read_model(weights_of(source, own), own, dtype, device)


def open_tokenizer(source: str) -> Any:
    """Returns the tokenizer of a source; a run's is the one that its recipe trained on."""
    own = own_recipe(source)
    return tokenizer((own.data.get("tokenizer") if own is not None else None) or source)
