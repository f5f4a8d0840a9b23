"""Adapter-only saving: the tensors of the parts, the config, and the fingerprint of the base they belong on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from loopwright.convert.export import SILENT
from loopwright.convert.family import listed
from loopwright.convert.load import empty_model, load, parameter_shapes
from loopwright.convert.own import OWN
from loopwright.convert.save import whole_folder
from loopwright.convert.weights import check_fit, fill, read_header, read_json
from loopwright.model.config import LoopedConfig
from loopwright.model.looped import LoopedForCausalLM

WEIGHTS = "adapters.safetensors"
RECORD = "adapters.json"
# the modules that make a plain model a looped one of its kind, and the fields that describe them
PARTS = ("state", "injection", "adapters", "gate", "halting", "layer_post_norm")
_PART_FIELDS = {*PARTS, "end_norm", "max_steps", "beyond_max_steps", "depth"}
_UNCOMPARED = SILENT | {"pad_token_id", "bos_token_id", "eos_token_id"}


def save_adapters(model: LoopedForCausalLM, folder: str | Path) -> Path:
    """Writes only what the parts hold (adapters and their bases, gate, per-step norms, injection, halting, learned state)."""
    parts, base = divided(dict(model.named_parameters()), model.config)
    if not parts:
        raise ValueError("save_adapters: no part of this model holds parameters; save the whole model instead")
    with whole_folder(folder) as place:
        model.config.save_pretrained(place)
        save_file({name: p.detach().cpu().contiguous() for name, p in parts.items()}, place / WEIGHTS, metadata={"format": "pt"})
        record = {"base_sha256": fingerprint(base), "base_parameters": sum(p.numel() for p in base.values())}
        (place / RECORD).write_text(json.dumps(record, indent=2) + "\n")
    return Path(folder)


def load_adapters(base: LoopedForCausalLM | str | Path, folder: str | Path) -> LoopedForCausalLM:
    """Returns the base with the saved parts on it; the tensors of a base given as a model are shared, not copied.

    Another base than the one the parts were saved from is refused.
    """
    folder = Path(folder)
    config = OWN.config(read_json(folder / "config.json"), str(folder / "config.json"))
    record = read_json(folder / RECORD)
    plain = base if isinstance(base, LoopedForCausalLM) else load(base)
    model = empty_model(config)
    _, needed = divided(dict(model.named_parameters()), config)
    held = dict(plain.named_parameters())
    _check_base(str(folder), config, plain.config, needed, held)
    if fingerprint({name: held[name] for name in needed}) != record.get("base_sha256"):
        raise ValueError(f"{folder}: these adapters belong on another base; its tensors have the same shapes but other values")

    shapes = {name: shape for name, shape in parameter_shapes(model).items() if name not in needed}
    rules, stored = OWN.rules(config, shapes), read_header(folder / WEIGHTS)
    check_fit(str(folder), OWN, rules, stored, tied_head=None)
    fill(model, rules, stored, dtype=plain.dtype, device=plain.device)
    for name in needed:
        *path, leaf = name.split(".")
        setattr(model.get_submodule(".".join(path)), leaf, held[name])
    if config.tie_word_embeddings:
        model.lm_head.weight = model.embed_tokens.weight
    model.generation_config = plain.generation_config
    return model.eval()


def fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """Returns the sha256 of names, shapes and float32 values: a base loaded in bfloat16 or wider has the same one."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(f"{name} {list(tensors[name].shape)}\n".encode())
        values = tensors[name].detach().to(device="cpu", dtype=torch.float32).contiguous()
        digest.update(values.flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


def divided(parameters: Mapping[str, Tensor], config: LoopedConfig) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Returns the tensors of the parts and those of the base. A norm that ends every step alike is the base's own (Ouro)."""
    parts = {name for name in parameters if name.split(".")[0] in PARTS}
    if config.end_norm == "per-step":
        parts |= {name for name in parameters if name.startswith("end_norm.")}
    return {n: p for n, p in parameters.items() if n in parts}, {n: p for n, p in parameters.items() if n not in parts}


def _check_base(
    where: str, config: LoopedConfig, base: LoopedConfig, needed: Mapping[str, Tensor], held: Mapping[str, Tensor]
) -> None:
    skipped = _PART_FIELDS | _UNCOMPARED | {"model_type", "keys_to_ignore_at_inference"}
    fields = [name for name in LoopedConfig.__annotations__ if name not in skipped]
    differ = [f"{n} is {getattr(base, n)!r}, not {getattr(config, n)!r}" for n in fields if getattr(base, n) != getattr(config, n)]
    missing = [name for name in needed if name not in held]
    wrong = [name for name in needed if name in held and held[name].shape != needed[name].shape]
    found = {"its config differs": differ, "it lacks": missing, "of another shape": wrong}
    problems = [f"{what}: {listed(names)}" for what, names in found.items() if names]
    if problems:
        raise ValueError(f"{where}: these adapters belong on another base; " + "; ".join(problems))
