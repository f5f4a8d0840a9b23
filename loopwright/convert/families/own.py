"""Our own folders: `save_pretrained` writes our names and our config, so both tables are the identity."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from loopwright.convert.family import Family, Names
from loopwright.convert.fields import Fields
from loopwright.model.config import LoopedConfig


def same_names(config: LoopedConfig, ours: Collection[str]) -> dict[str, Names]:
    """Returns every name for itself."""
    return {name: name for name in ours}


# the dtype is the caller's choice; a trainer asks the hub for the tokenizer of the name that a file gives its model
_LEFT = ("dtype", "torch_dtype", "name_or_path", "_name_or_path", "_commit_hash")


def read_own(fields: Fields) -> dict[str, Any]:
    """Returns the fields that say something as they are: LoopedConfig itself refuses what it does not know."""
    fields.admit(*fields.values)
    return {name: value for name, value in fields.values.items() if value is not None and name not in _LEFT}


def write_own(config: LoopedConfig) -> dict[str, Any]:
    """Returns the config as it is."""
    return config.to_dict()


OWN = Family(
    name="loopwright",
    model_type=LoopedConfig.model_type,
    architecture="LoopedForCausalLM",
    names=same_names,
    read=read_own,
    write=write_own,
)
