"""Parts that were saved alone: their tensors, the config, and for every other tensor where in the base it stands.

The base is a looped model without its parts, or the dense model that a retrofit was made from: each tensor that is not stored is
named with the base's own name for it and a digest of its values, so that layers which were picked, moved or looped find their
way back, and another base is refused with the reason. What differs from the base (layers that were trained, a core that is an
average) is stored with the parts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from loopwright.checkpoints.export import SILENT
from loopwright.checkpoints.families import OWN
from loopwright.checkpoints.families.family import listed
from loopwright.checkpoints.load import empty_model, parameter_shapes
from loopwright.checkpoints.weights import check_fit, fill, read_header
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.config import LoopedConfig
from loopwright.storage.files import read_json

WEIGHTS = "adapters.safetensors"
RECORD = "adapters.json"
FORMAT = 2
# the modules that make a plain model a looped one of its kind, and the fields that describe them
PARTS = ("state", "injection", "adapters", "gate", "halting", "layer_post_norm")
_PART_FIELDS = {*PARTS, "end_norm", "max_steps", "beyond_max_steps", "depth"}
_UNCOMPARED = SILENT | {"pad_token_id", "bos_token_id", "eos_token_id"}
# what a retrofit decides anew of a dense model: which of its layers stand where, and which norm the head reads
_LAYOUT_FIELDS = {"prelude_layers", "core_layers", "coda_layers", "final_norm"}

# what float32 values do not all fit into: a base in one of these may have other values than the same base in another dtype
_NARROW = {torch.bfloat16: "bfloat16", torch.float16: "float16"}

References = dict[str, tuple[str, str]]  # our name of a tensor → the base's name of it, and the digest of its values


def write_parts(place: Path, model: LoopedForCausalLM, stored: Mapping[str, Tensor], references: References) -> None:
    """Writes config, stored tensors and the record of the others into a folder."""
    model.config.save_pretrained(place)
    save_file({name: p.detach().cpu().contiguous() for name, p in stored.items()}, place / WEIGHTS, metadata={"format": "pt"})
    (place / RECORD).write_text(json.dumps({"format": FORMAT, "base": references}, indent=1) + "\n")


def put_on(plain: LoopedForCausalLM, folder: Path, dtype: torch.dtype | None = None) -> LoopedForCausalLM:
    """Returns a base with the parts of a folder on it; the tensors of the base are shared, not copied.

    Another base than the one the parts were saved from is refused, and the same one in another dtype, if that changed its values.
    With a `dtype` the whole is cast to it after that; left out, the parts take the base's.
    """
    references = read_references(folder)  # first: a whole model is no parts, whatever its config says
    config = OWN.config(read_json(folder / "config.json"), str(folder / "config.json"))
    model = empty_model(config)
    held = dict(plain.named_parameters())
    check_config(str(folder), config, plain.config)
    shapes = parameter_shapes(model)
    _check_base(str(folder), references, held, shapes)

    missing = {name: shape for name, shape in shapes.items() if name not in references}
    rules, stored = OWN.rules(config, missing), read_header(folder / WEIGHTS)
    check_fit(str(folder), OWN, rules, stored, tied_head=None)
    chosen = plain.dtype if dtype is None else dtype
    fill(model, rules, stored, dtype=chosen, device=plain.device)
    filled: set[str] = set()
    for name, (theirs, _) in references.items():
        *path, leaf = name.split(".")
        # a layer that stands twice must not become one tensor: it may be trained apart
        shared = held[theirs].dtype == chosen and theirs not in filled
        value = held[theirs] if shared else nn.Parameter(held[theirs].detach().to(chosen, copy=True))
        filled.add(theirs)
        setattr(model.get_submodule(".".join(path)), leaf, value)
    if config.tie_word_embeddings:
        model.lm_head.weight = model.embed_tokens.weight
    config.dtype = chosen
    model.generation_config = plain.generation_config
    return model.eval()


def find_references(tensors: Mapping[str, Tensor], base: LoopedForCausalLM) -> References:
    """Returns, for each tensor that the base holds value for value, the base's name of it: its own name before others."""
    places: dict[str, list[str]] = {}
    for name, value in base.named_parameters():
        places.setdefault(digest(value), []).append(name)
    digests = {name: digest(value) for name, value in tensors.items()}
    return {name: (name if name in places[key] else places[key][0], key) for name, key in digests.items() if key in places}


def read_references(folder: Path) -> References:
    """Returns which tensors of saved parts stand in the base, and where."""
    record = read_json(folder / RECORD)
    try:
        if record["format"] != FORMAT:
            raise ValueError(f"format {record['format']!r}")
        return {str(ours): (str(theirs), str(key)) for ours, (theirs, key) in record["base"].items()}
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{folder / RECORD}: not a record of parts ({error}); allowed: format {FORMAT}, base") from None


def digest(tensor: Tensor) -> str:
    """Returns the sha256 of a tensor's shape and float32 values: one loaded in bfloat16 or wider has the same."""
    sha = hashlib.sha256(f"{list(tensor.shape)}\n".encode())
    values = tensor.detach().to(device="cpu", dtype=torch.float32).contiguous()
    sha.update(values.flatten().view(torch.uint8).numpy().data)
    return sha.hexdigest()


def divided(parameters: Mapping[str, Tensor], config: LoopedConfig) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Returns the tensors of the parts and those of the base. A norm that ends every step alike is the base's own (Ouro)."""
    parts = {name for name in parameters if name.split(".")[0] in PARTS}
    if config.end_norm == "per-step":
        parts |= {name for name in parameters if name.startswith("end_norm.")}
    return {n: p for n, p in parameters.items() if n in parts}, {n: p for n, p in parameters.items() if n not in parts}


def check_values(where: str, references: References, held: Mapping[str, Tensor]) -> None:
    """Raises a ValueError where tensors, by the base's names, do not have the values that were recorded."""
    other = {theirs: key for theirs, key in sorted(references.values()) if digest(held[theirs]) != key}
    if not other:
        return
    dtype = held[next(iter(other))].dtype
    stored = str(dtype).removeprefix("torch.")
    for kind, name in _NARROW.items():
        if all(digest(held[theirs].to(kind)) == key for theirs, key in other.items()):
            raise ValueError(f"{where}: these adapters were made on this base in {name}; it is in {stored}; allowed: {name}")
    rounded = f", or on this one in a wider dtype than {stored}" if dtype in _NARROW else ""
    raise ValueError(
        f"{where}: these adapters belong on another base{rounded}; its tensors have the same shapes but other values: "
        f"{listed(list(other))}"
    )


def _check_base(where: str, references: References, held: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]]) -> None:
    unknown = [name for name in references if name not in shapes]
    missing = [theirs for theirs, _ in references.values() if theirs not in held]
    wrong = [theirs for ours, (theirs, _) in references.items() if theirs in held and tuple(held[theirs].shape) != shapes.get(ours)]
    faults: dict[str, list[Any]] = {"the parts name tensors they have no place for": unknown, "it lacks": missing}
    problems = [f"{what}: {listed(names)}" for what, names in {**faults, "of another shape": wrong}.items() if names]
    if problems:
        raise ValueError(f"{where}: these adapters belong on another base; " + "; ".join(problems))
    check_values(where, references, held)


def check_config(where: str, config: LoopedConfig, base: LoopedConfig) -> None:
    """Raises a ValueError that lists the fields in which a base is not the one of a config, the parts' own apart."""
    skipped = _PART_FIELDS | _UNCOMPARED | {"model_type", "keys_to_ignore_at_inference"}
    if not base.is_looped:
        skipped |= _LAYOUT_FIELDS
    fields = [name for name in LoopedConfig.__annotations__ if name not in skipped]
    differ = [f"{n} is {getattr(base, n)!r}, not {getattr(config, n)!r}" for n in fields if getattr(base, n) != getattr(config, n)]
    if differ:
        raise ValueError(f"{where}: these adapters belong on another base; its config differs: {listed(differ)}")
