"""Export: a model of ours under its family's own tensor names and config.json, so that the family's own code loads it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from loopwright.checkpoints.families import FAMILIES, OWN
from loopwright.checkpoints.families.family import Family, Rule
from loopwright.checkpoints.load import parameter_shapes
from loopwright.checkpoints.save import model_folder
from loopwright.checkpoints.weights import INDEX, SINGLE
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.config import PARTS, LoopedConfig
from loopwright.model.parts.adapters import ADAPTERS
from loopwright.model.parts.part import Part
from loopwright.model.quantised import check_unquantised
from loopwright.schema import options_of, suggest

# fields that do not change what a trained model computes
SILENT = {"dropout", "initializer_range", "init", "use_cache"}


def export(model: LoopedForCausalLM, folder: str | Path, *, family: str | None = None, shard_bytes: int = 5_000_000_000) -> Family:
    """Writes a model as its family's files and returns the family: the one named, or the first that can hold the model."""
    check_unquantised("export", model)
    chosen = find_family(model.config) if family is None else _named_family(model.config, family)
    parameters = dict(model.named_parameters())
    rules = chosen.rules(model.config, parameter_shapes(model))
    settings = chosen.settings(model.config, model.dtype)
    with model_folder(folder, parameters.values()) as place:
        (place / "config.json").write_text(json.dumps(settings, indent=2, sort_keys=True) + "\n")
        if model.generation_config is not None:
            model.generation_config.save_pretrained(place)
        extra = {name: table(model.config) for name, table in chosen.derived.items()}
        head = chosen.tied_head(model.config) if chosen.stores_tied_head else None
        if head is not None:
            extra[head] = model.embed_tokens.weight.detach()
        write_weights(place, rules, parameters, extra, shard_bytes=shard_bytes)
    return chosen


def find_family(config: LoopedConfig) -> Family:
    """Returns the first family that can hold a model of this config."""
    lost = {name: lost_fields(family, config) for name, family in FAMILIES.items() if family is not OWN}
    nearest = sorted(lost, key=lambda name: len(lost[name]))
    if not lost[nearest[0]]:
        return FAMILIES[nearest[0]]
    reasons = [f"{name} would lose {', '.join(lost[name])}" for name in nearest[:3]]
    raise ValueError(f"export: no family can hold this model; {'; '.join(reasons)}")


def lost_fields(family: Family, config: LoopedConfig) -> list[str]:
    """Returns the fields that a config loses when a family writes it down and reads it again."""
    try:
        again = family.config(family.settings(config, torch.float32), "export")
    except ValueError as error:
        return [str(error)]
    before, after = _effective(config), _effective(again)
    return [name for name in before if before[name] != after[name]]


def write_weights(
    place: Path, rules: list[Rule], parameters: Mapping[str, Tensor], extra: Mapping[str, Tensor], *, shard_bytes: int
) -> None:
    """Writes foreign tensors into one file, or into shards with an index; one shard is in memory at a time."""
    shards: list[list[Rule | str]] = [[]]
    size = total = 0
    entries: list[Rule | str] = [*rules, *extra]
    for entry in entries:
        bytes_ = sum(_bytes(parameters[name]) for name in entry.ours) if isinstance(entry, Rule) else _bytes(extra[entry])
        if shards[-1] and size + bytes_ > shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(entry)
        size, total = size + bytes_, total + bytes_
    places: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        file = SINGLE if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        tensors = dict(_made(entry, parameters, extra) for entry in shard)
        # transformers refuses files without this mark
        save_file(tensors, place / file, metadata={"format": "pt"})
        places.update(dict.fromkeys(tensors, file))
    if len(shards) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": places}
        (place / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")


def _named_family(config: LoopedConfig, name: str) -> Family:
    outside = {key: family for key, family in FAMILIES.items() if family is not OWN}
    if name not in outside:
        raise ValueError(f"export: unknown family {name!r}; {suggest(name, outside)}")
    lost = lost_fields(outside[name], config)
    if lost:
        raise ValueError(f"export: the family {name} cannot hold this model; it would lose: {', '.join(lost)}")
    return outside[name]


def _effective(config: LoopedConfig) -> dict[str, Any]:
    """Returns the fields that matter, with the options of each part spelled out."""
    fields = {name: getattr(config, name) for name in LoopedConfig.__annotations__ if name not in SILENT}
    fields = {name: value for name, value in fields.items() if name not in ("model_type", "keys_to_ignore_at_inference")}
    for name, table in PARTS.items():
        fields[name] = _spelled(config, fields[name], table)
    fields["adapters"] = [_spelled(config, spec, ADAPTERS) for spec in fields["adapters"]]
    if not config.is_looped:
        fields["depth"] = 1
    if config.read_out != "hub":
        fields["halting"].pop("threshold", None)  # where nothing leaves by it
    return fields


def _spelled(config: LoopedConfig, spec: Mapping[str, Any], table: Mapping[str, type[Part]]) -> dict[str, Any]:
    kind = table[spec["kind"]]
    defaults = {name: option.default for name, option in options_of(kind).items()}
    return kind.spelled_out(config, {**defaults, **spec})


def _made(entry: Rule | str, parameters: Mapping[str, Tensor], extra: Mapping[str, Tensor]) -> tuple[str, Tensor]:
    if isinstance(entry, Rule):
        return entry.theirs, entry.join(parameters).cpu()
    return entry, extra[entry].cpu().clone()


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
