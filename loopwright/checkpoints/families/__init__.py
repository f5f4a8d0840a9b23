"""The table of families, and which one a checkpoint belongs to. For our own folders both tables are the identity: `save_pretrained`
writes our names and our config.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from loopwright.checkpoints.families.dense import LLAMA, MISTRAL, OLMO2, QWEN2, QWEN3
from loopwright.checkpoints.families.family import Family, Names
from loopwright.checkpoints.families.fields import Fields
from loopwright.checkpoints.families.ouro import OURO
from loopwright.checkpoints.families.raven import HUGINN, RETROFIT_LLAMA, RETROFIT_OLMO2
from loopwright.model.config import LoopedConfig
from loopwright.schema import suggest
from loopwright.untrusted import shown


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


# of one model_type, the first whose mark is in a tensor's name is the one; of those that can hold a model, the first exports it
FAMILIES: dict[str, Family] = {
    family.name: family for family in (OWN, LLAMA, MISTRAL, QWEN2, QWEN3, OLMO2, OURO, HUGINN, RETROFIT_OLMO2, RETROFIT_LLAMA)
}


def family_of(settings: Mapping[str, Any], names: Collection[str], where: str) -> Family:
    """Returns the family of a checkpoint, from its config.json and the names of its tensors."""
    kind = settings.get("model_type")
    candidates = [family for family in FAMILIES.values() if family.model_type == kind]
    if not candidates:
        known = {family.model_type for family in FAMILIES.values()}
        raise ValueError(f"{where}: model_type is {shown(kind)}, which no family has; {suggest(str(kind), known)}")
    return next(family for family in candidates if any(family.mark in name for name in names) or not family.mark)
