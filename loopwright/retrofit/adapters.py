"""Parts-only saving (parts.py says in what form), and the way back onto a base."""

from __future__ import annotations

from pathlib import Path

import torch

from loopwright.convert.parts import check_config, digest, divided, find_references, write_parts
from loopwright.convert.save import model_folder
from loopwright.model.looped import LoopedForCausalLM
from loopwright.model.quantised import check_unquantised
from loopwright.retrofit.published import load_published
from loopwright.source import Source, load


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
    a folder it takes a .pt or .safetensors file of Ouroboros' public code (published.py; a base given as a model is copied).

    A base other than the one the parts were saved from is an error; so is the same base in another dtype, if that changed its
    values. A `dtype` casts the whole model after that check; default: the parts take the base's. If a run averages its weights, its
    averaged parts are read, as by `lw.load`.
    """
    if Path(folder).is_file():
        found = load_published(base if isinstance(base, LoopedForCausalLM) else load(base), Path(folder))
        return found if dtype is None else found.to(dtype=dtype)  # type: ignore[call-arg]  # how transformers wraps `to`
    return Source(folder).parts_on(base if isinstance(base, LoopedForCausalLM) else load(base), dtype)
