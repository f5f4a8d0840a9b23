"""Merging: low-rank adapters become part of the weights they act on, and a core that runs once becomes plain layers.

What is made has no adapters and computes the same, so a family can hold it (export.py). It shares no tensor with what was given.
Parts can also be saved alone (checkpoints/adapters.py says in what form) and put back onto a base.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from loopwright.checkpoints.adapters import check_config, digest, divided, find_references, write_parts
from loopwright.checkpoints.families.ouroboros import read_parts
from loopwright.checkpoints.load import empty_model
from loopwright.checkpoints.save import model_folder
from loopwright.checkpoints.source import Source, load
from loopwright.model.causal_lm import LoopedForCausalLM, plain_config
from loopwright.model.config import PARTS, LoopedConfig
from loopwright.model.parts.adapters import ADAPTERS, stack_of
from loopwright.model.parts.adapters.effects import BRANCHES, Adapter, map_shapes
from loopwright.model.passes import STACKS
from loopwright.model.quantised import check_unquantised
from loopwright.retrofitting.surgery import convert
from loopwright.retrofitting.systems import make_plan

# what makes a core more than layers that run once, where it is not as in a plain model
_AROUND = ("state", "injection", "gate", "halting", "end_norm", "layer_post_norm")
_ATTENTION_BIASES = {"q_proj": "q", "k_proj": "k", "v_proj": "v", "o_proj": "o"}


@torch.no_grad()
def merge(model: LoopedForCausalLM) -> LoopedForCausalLM:
    """Returns a model without adapters and with the same logits: low-rank adapters are added to the weights.

    A core that runs once and has no parts becomes plain layers; a looped core without adapters stays as it is.
    """
    if not isinstance(model, LoopedForCausalLM):
        raise TypeError(f"merge: the model is a {type(model).__name__}; allowed: what lw.load, lw.retrofit or lw.build returns")
    adapters, obstacles = _foldable(model), _core_obstacles(model.config)
    _check_core(model.config, obstacles)
    merged = empty_model(_config(model.config, adapters, plain=not obstacles))
    held = dict(model.named_parameters())
    origins: Sequence[str] = [] if obstacles else _origins(model.config)
    for name in [name for name, _ in merged.named_parameters()]:
        stack, _, rest = name.partition(".")
        layer, _, leaf = rest.partition(".")
        origin = f"{origins[int(layer)]}.{leaf}" if origins and stack == "prelude" else name
        *path, last = name.split(".")
        setattr(merged.get_submodule(".".join(path)), last, nn.Parameter(_folded(origin, held, adapters)))
    if merged.config.tie_word_embeddings:
        merged.lm_head.weight = merged.embed_tokens.weight
    merged.config.dtype = model.dtype
    merged.generation_config = deepcopy(model.generation_config)
    return merged.eval()


def _foldable(model: LoopedForCausalLM) -> list[Adapter]:
    """Returns the adapters, each of which some weight of its own can hold; raises where one is not so."""
    linears = [name for name in map_shapes(model.config) if name not in BRANCHES]
    adapters: list[Adapter] = []
    for index, adapter in enumerate(model.adapters):
        where = f"merge: {_named(model.config, index)} cannot be folded"
        if adapter.unfoldable is not None:
            allowed = ", ".join(name for name, kind in ADAPTERS.items() if kind.unfoldable is None)
            raise ValueError(f"{where}: {adapter.unfoldable}; allowed: {allowed}")
        beside = [name for name in adapter.targets if name not in linears]
        if beside:
            raise ValueError(
                f"{where}: it runs beside a whole branch ({', '.join(beside)}), not a linear map; allowed: targets among "
                f"{', '.join(linears)}"
            )
        adapters.append(adapter)
    return adapters


def _core_obstacles(config: LoopedConfig) -> list[str]:
    """Returns why the core is more than layers that run once; nothing where it is not, or where there is none."""
    if not config.is_looped:
        return []
    plain = _kinds(plain_config(config))
    parts = [f"{name} {kind!r}" for name, kind in _kinds(config).items() if kind != plain[name]]
    once = config.depth == 1 and config.max_steps in (None, 1)
    steps = [] if once else [f"one weight for several steps (depth {config.depth}, max_steps {config.max_steps})"]
    return steps + parts


def _kinds(config: LoopedConfig) -> dict[str, str]:
    return {name: getattr(config, name)["kind"] if name in PARTS else getattr(config, name) for name in _AROUND}


def _check_core(config: LoopedConfig, obstacles: Sequence[str]) -> None:
    """Raises where the core would have to become plain layers and cannot."""
    stands = [_named(config, index) for index, spec in enumerate(config.adapters) if stack_of(spec) == "core"]
    if not obstacles or (config.adapters and not stands):
        return
    what = f"{stands[0]} cannot be folded" if stands else "there is no adapter to fold, and the core cannot become plain layers"
    wanted = ", ".join(f"{name} {kind!r}" for name, kind in _kinds(plain_config(config)).items())
    raise ValueError(
        f"merge: {what}: the core has {', '.join(obstacles)}; allowed: a core that runs once (depth 1, max_steps 1) with {wanted}"
    )


def _named(config: LoopedConfig, index: int) -> str:
    spec = config.adapters[index]
    return f"adapters[{index}] ({spec['kind']} on the {stack_of(spec)})"


def _config(config: LoopedConfig, adapters: Sequence[Adapter], *, plain: bool) -> LoopedConfig:
    """Returns the config of the merged model; where an adapter shifts a map by a bias, every layer's map has one."""
    shifted = {name for adapter in adapters for name in adapter.targets if adapter.fold(name, "bias", 0, torch.float32) is not None}
    attention = {*config.attention_bias, *(_ATTENTION_BIASES[name] for name in shifted if name in _ATTENTION_BIASES)}
    changes: dict[str, Any] = {
        "adapters": [],
        "attention_bias": [letter for letter in _ATTENTION_BIASES.values() if letter in attention],
        "mlp_bias": config.mlp_bias or not shifted <= set(_ATTENTION_BIASES),
    }
    return LoopedConfig(**{**(plain_config(config) if plain else config).to_dict(), **changes})


def _origins(config: LoopedConfig) -> list[str]:
    """Returns where each layer of the plain model stands in the given one."""
    return [f"{stack}.{layer}" for stack in STACKS for layer in range(getattr(config, f"{stack}_layers"))]


def _folded(name: str, held: Mapping[str, Tensor], adapters: Sequence[Adapter]) -> Tensor:
    """Returns a tensor of its own: the given model's of that name, plus the adapters' updates of it, rounded once."""
    if name in held:
        value = held[name].detach()
    else:  # a bias that only an adapter has
        value = torch.zeros_like(held[f"{name.removesuffix('bias')}weight"][:, 0])
    wide = torch.promote_types(value.dtype, torch.float32)
    updates = list(_updates(name, adapters, wide))
    return (value.to(wide) + sum(updates)).to(value.dtype) if updates else value.clone()


def _updates(name: str, adapters: Sequence[Adapter], wide: torch.dtype) -> Iterator[Tensor]:
    """Yields what each adapter adds to a weight or a bias at the one step that its stack runs."""
    stack, *rest = name.split(".")
    if stack not in STACKS:
        return
    layer, target, leaf = int(rest[0]), rest[-2], rest[-1]
    for adapter in adapters:
        update = adapter.fold(target, leaf, layer, wide) if adapter.stack == stack and target in adapter.targets else None
        if update is not None:
            yield update


def save_adapters(model: LoopedForCausalLM, folder: str | Path, base: LoopedForCausalLM | str | Path | None = None) -> Path:
    """Writes only what the parts hold (adapters and their bases, gate, per-step norms, injection, halting, learned state).

    With a `base` (a model or what `lw.load` opens, such as the dense source of a retrofit), writes all that differs from it.
    """
    check_unquantised("save_adapters", model)
    parts, rest = divided(dict(model.named_parameters()), model.config)
    if base is None:
        references = {name: (name, digest(tensor)) for name, tensor in rest.items()}
    else:
        source = base if isinstance(base, LoopedForCausalLM) else load(base)
        check_config("save_adapters", model.config, source.config)
        references = find_references(rest, source)
        if not references:
            raise ValueError("save_adapters: the model has no tensor of this base; allowed: the base it was made from")
    stored = {name: p for name, p in {**parts, **rest}.items() if name not in references}
    if not stored:
        raise ValueError("save_adapters: no part of this model holds parameters; save the whole model instead")
    with model_folder(folder, stored.values()) as place:
        write_parts(place, model, stored, references)
    return Path(folder)


def load_adapters(base: LoopedForCausalLM | str | Path, folder: str | Path, dtype: torch.dtype | None = None) -> LoopedForCausalLM:
    """Returns the base with the saved parts on it; the tensors of a base given as a model are shared, not copied. In the place of
    a folder it takes a .pt or .safetensors file of Ouroboros' public code (a base given as a model is copied).

    A base other than the one the parts were saved from is an error; so is the same base in another dtype, if that changed its
    values. A `dtype` casts the whole model after that check; default: the parts take the base's. If a run averages its weights, its
    averaged parts are read, as by `lw.load`.
    """
    if Path(folder).is_file():
        found = load_published(base if isinstance(base, LoopedForCausalLM) else load(base), Path(folder))
        return found if dtype is None else found.to(dtype=dtype)  # type: ignore[call-arg]  # how transformers wraps `to`
    return Source(folder).parts_on(base if isinstance(base, LoopedForCausalLM) else load(base), dtype)


def load_published(base: LoopedForCausalLM, path: Path) -> LoopedForCausalLM:
    """Returns the base with the parts of a file of Ouroboros' public code.

    A dense base is cut as published (8 layers, the middle one, 8 of 36) with bases of its own, and pools as the parts were trained:
    over the whole sequence, future tokens included. A looped base, from `lw.retrofit(source, "ouroboros", …)`, keeps its layout,
    its scale and its pooling. What halts is read where the base has a halter.
    """
    parts = read_parts(path)
    if base.config.is_looped:
        model = deepcopy(base)
    else:
        rank, style = parts["adapters.0.heads"].shape[0] // 7, parts["adapters.0.heads"].shape[1]
        sizes = {"rank": rank, "style": style, "pooling": "sequence", "leak_future": True}
        model = convert(base, make_plan("ouroboros", {"adapters": sizes, "max_steps": parts["end_norm.weight"].shape[0]})).model
    held = dict(model.named_parameters())
    if "halting.last.weight" not in held:
        parts = {name: value for name, value in parts.items() if not name.startswith("halting.")}
    wrong = [name for name, value in parts.items() if name not in held or held[name].shape != value.shape]
    if wrong:
        there = f"has {tuple(held[wrong[0]].shape)}" if wrong[0] in held else "has none"
        raise ValueError(
            f"{path}: {wrong[0]} is {tuple(parts[wrong[0]].shape)}, the base {there}; allowed: the dense source, or a retrofit of "
            "system ouroboros with the file's rank, style and max_steps"
        )
    with torch.no_grad():
        for name, value in parts.items():
            held[name].copy_(value)
    return model
