"""A family: a two-way table between the tensors and config.json of a released model and ours.

A foreign tensor is one or more of ours stacked along the first axis, then given the shape the file has it in. That one rule
covers renaming, fused projections (Wqkv, gate and up) and Huginn's qk_bias, and is read from either side.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from loopwright.checkpoints.families.fields import Fields
from loopwright.model.config import LoopedConfig
from loopwright.untrusted import shown

Names = str | tuple[str, ...]
Shape = tuple[int, ...]
# (config, our parameter names) → their name → ours
NameTable = Callable[[LoopedConfig, Collection[str]], dict[str, Names]]

_LISTED = 20


@dataclass(frozen=True)
class Rule:
    """One foreign tensor: `theirs`, of `shape`, is `ours` stacked, each of `rows` rows."""

    theirs: str
    ours: tuple[str, ...]
    shape: Shape
    rows: tuple[int, ...]

    def split(self, tensor: Tensor) -> dict[str, Tensor]:
        """Returns ours, as views of theirs."""
        if len(self.ours) == 1:
            return {self.ours[0]: tensor}
        stacked = tensor.reshape(sum(self.rows), -1) if len(self.shape) > 2 else tensor
        return dict(zip(self.ours, stacked.split(self.rows), strict=True))

    def join(self, ours: Mapping[str, Tensor]) -> Tensor:
        """Returns theirs, made from ours."""
        pieces = [ours[name].detach() for name in self.ours]
        return (pieces[0] if len(pieces) == 1 else torch.cat(pieces)).reshape(self.shape).contiguous()


@dataclass(frozen=True)
class Family:
    """How one kind of released model is laid out, in both directions."""

    name: str
    model_type: str
    architecture: str
    names: NameTable
    # config.json → our config's fields, and back
    read: Callable[[Fields], dict[str, Any]]
    write: Callable[[LoopedConfig], dict[str, Any]]
    # what a stored tensor's name holds in this family and in no other of the same model_type
    mark: str = ""
    # the files' shape of a block's tensor, where it is not the stacked one
    shapes: Mapping[str, Callable[[LoopedConfig], Shape]] = field(default_factory=dict)
    # tensors that follow from the config: passed over in a file, written on export
    derived: Mapping[str, Callable[[LoopedConfig], Tensor]] = field(default_factory=dict)
    # endings of tensors that are passed over: tables that old versions of transformers saved
    ignored: tuple[str, ...] = ("rotary_emb.inv_freq",)
    # whether the released files hold the tied head beside the embedding
    stores_tied_head: bool = False

    def config(self, settings: Mapping[str, Any], where: str) -> LoopedConfig:
        """Returns our config for a config.json, every field of which is understood."""
        fields = Fields(where, settings)
        values = self.read(fields)
        fields.close()
        try:
            return LoopedConfig(**values)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None

    def settings(self, config: LoopedConfig, dtype: torch.dtype) -> dict[str, Any]:
        """Returns the config.json of a model of ours, as this family writes it."""
        return {
            "architectures": [self.architecture],
            "model_type": self.model_type,
            **self.write(config),
            "torch_dtype": str(dtype).removeprefix("torch."),
            "use_cache": True,
        }

    def rules(self, config: LoopedConfig, ours: Mapping[str, Shape]) -> list[Rule]:
        """Returns one rule per foreign tensor; together they name each parameter of `ours` exactly once."""
        rules = []
        for theirs, names in self.names(config, ours).items():
            several = (names,) if isinstance(names, str) else names
            if all(name in ours for name in several):
                rules.append(self._rule(theirs, several, config, ours))
        named = [name for rule in rules for name in rule.ours]
        orphans = [name for name in ours if name not in set(named)]
        assert len(set(named)) == len(named), "two rules name the same parameter"
        if orphans:
            raise ValueError(f"family {self.name}: it has no tensor for {listed(orphans)}")
        return rules

    def tied_head(self, config: LoopedConfig) -> str | None:
        """Returns their name of the head where it is the embedding once more, else None."""
        if not config.tie_word_embeddings:
            return None
        table = self.names(config, ["lm_head.weight"])
        return next((theirs for theirs, ours in table.items() if ours == "lm_head.weight"), None)

    def _rule(self, theirs: str, names: tuple[str, ...], config: LoopedConfig, ours: Mapping[str, Shape]) -> Rule:
        rows = tuple(ours[name][0] for name in names)
        shape: Shape = (sum(rows), *ours[names[0]][1:])
        for ending, form in self.shapes.items():
            if theirs.endswith(ending):
                shape = form(config)
        return Rule(theirs, names, shape, rows)


def name_table(stacks: Mapping[str, str], top: Mapping[str, Names], block: Mapping[str, Names]) -> NameTable:
    """Returns the names of a model of stacked blocks: `stacks` gives their prefix for each of our stacks."""

    def names(config: LoopedConfig, ours: Collection[str]) -> dict[str, Names]:
        table: dict[str, Names] = dict(top)
        for stack, prefix in stacks.items():
            for layer in range(getattr(config, f"{stack}_layers")):
                for theirs, found in block.items():
                    several = (found,) if isinstance(found, str) else found
                    placed = tuple(f"{stack}.{layer}.{name}" for name in several)
                    table[f"{prefix}.{layer}.{theirs}"] = placed if len(placed) > 1 else placed[0]
        return table

    return names


def listed(names: Sequence[str]) -> str:
    """Returns names for an error message, the first twenty of a long list."""
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(shown(name)[1:-1] for name in names[:_LISTED]) + more
