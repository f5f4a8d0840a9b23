"""The table of families, and which one a checkpoint belongs to."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from loopwright.convert.families.dense import LLAMA, MISTRAL, OLMO2, QWEN2, QWEN3
from loopwright.convert.families.huginn import HUGINN
from loopwright.convert.families.ouro import OURO
from loopwright.convert.families.own import OWN
from loopwright.convert.families.retrofitted import RETROFIT_LLAMA, RETROFIT_OLMO2
from loopwright.convert.family import Family
from loopwright.settings import suggest
from loopwright.untrusted import shown

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
