"""Loading: folder or hub id → family → config → names checked → tensors read once, straight onto the device."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import GenerationConfig

from loopwright.convert.families import family_of
from loopwright.convert.family import Shape
from loopwright.convert.source import find_folder
from loopwright.convert.weights import DTYPES, check_fit, check_tied, file_dtype, fill, read_json, stored_tensors
from loopwright.model.config import LoopedConfig
from loopwright.model.looped import LoopedForCausalLM
from loopwright.settings import suggest

_NAMED = {str(dtype).removeprefix("torch."): dtype for dtype in DTYPES.values()}


def load(source: str | Path, dtype: str | torch.dtype = "float32", *, device: str | torch.device = "cpu") -> LoopedForCausalLM:
    """Returns the model of a folder or hub id, in eval mode: one of ours, a looped release, or a dense one (no core).

    `dtype` may be "auto", the file's own. Names and shapes are checked before anything is allocated.
    """
    wanted, device = _dtype(dtype), _device(device)
    folder = find_folder(source)
    settings, where = read_json(folder / "config.json"), str(folder / "config.json")
    stored = stored_tensors(folder)
    family = family_of(settings, stored, where)
    config = family.config(settings, where)
    try:
        model = empty_model(config)
    except ValueError as error:  # a part refuses its options
        raise ValueError(f"{where}: {error}") from None
    rules = family.rules(config, parameter_shapes(model))
    head = family.tied_head(config)
    check_fit(str(folder), family, rules, stored, tied_head=head)
    embedding = next(rule.theirs for rule in rules if rule.ours == ("embed_tokens.weight",))
    check_tied(stored, embedding, head)
    generation = _generation_config(folder)

    chosen = file_dtype(rules, stored) if wanted is None else wanted
    fill(model, rules, stored, dtype=chosen, device=device)
    if config.tie_word_embeddings:
        model.lm_head.weight = model.embed_tokens.weight
    config.dtype = chosen
    if generation is not None:
        model.generation_config = generation
    return model.eval()


def empty_model(config: LoopedConfig) -> LoopedForCausalLM:
    """Returns a model on the meta device: all shapes, no memory."""
    with torch.device("meta"):
        return LoopedForCausalLM(config)


def parameter_shapes(model: LoopedForCausalLM) -> dict[str, Shape]:
    """Returns the shape of each parameter, a tied one once."""
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


def _dtype(dtype: str | torch.dtype) -> torch.dtype | None:
    if isinstance(dtype, torch.dtype) and dtype in DTYPES.values():
        return dtype
    if dtype == "auto":
        return None
    name = str(dtype).removeprefix("torch.")
    if name not in _NAMED:
        raise ValueError(f"dtype: {dtype!r}; {suggest(name, [*_NAMED, 'auto'])}")
    return _NAMED[name]


def _device(device: str | torch.device) -> torch.device:
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device: {device!s} cannot be used here ({str(error).splitlines()[0]})") from None


def _generation_config(folder: Path) -> GenerationConfig | None:
    path = folder / "generation_config.json"
    if not path.is_file():
        return None
    settings = read_json(path)
    try:
        return GenerationConfig.from_dict(settings)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: {str(error).splitlines()[0]}") from None
