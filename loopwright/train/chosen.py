"""Which parameters are trained, by patterns of their names: `gate.*`, `adapters.0.*`, `coda.-1.*` (the last layer of the coda)."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase

from torch import nn

from loopwright.model.adapter.diagonal import Bases


def choose(model: nn.Module, patterns: Sequence[str]) -> None:
    """Makes trainable what a pattern names, and nothing else. What a part itself holds fixed (its bases) stays so.

    What is frozen gets no gradient and no optimiser state, and keeps its dtype.
    """
    fixed = {id(p) for module in model.modules() if isinstance(module, Bases) for p in module.parameters()}
    named = {name: parameter for name, parameter in model.named_parameters() if id(parameter) not in fixed}
    if not patterns:
        raise ValueError("optim: train is empty; allowed: at least one pattern of parameter names, such as adapters.*")
    chosen: set[str] = set()
    for pattern in patterns:
        found = [name for name in named if fnmatchcase(name, counted(pattern, model))]
        if not found:
            held = [name for name, p in model.named_parameters() if id(p) in fixed and fnmatchcase(name, counted(pattern, model))]
            why = f"{held[0]} is a basis, which its part holds fixed" if held else nearest(pattern, model, list(named))
            raise ValueError(f"optim: train: {pattern!r} matches no parameter that can be trained; {why}")
        chosen |= set(found)
    for name, parameter in named.items():
        parameter.requires_grad_(name in chosen)


def counted(pattern: str, model: nn.Module) -> str:
    """Returns a pattern in which a layer counted from the end of its stack (`coda.-2.*`) is counted from the start."""
    found = re.match(r"(prelude|core|coda)\.-(\d+)(?=\.|$)", pattern)
    if found is None:
        return pattern
    layers = len(list(model.get_submodule(found[1]).children()))
    place = layers - int(found[2])
    if not 0 <= place < layers:
        raise ValueError(
            f"optim: {pattern!r} counts from the end of {layers} layers; allowed: {found[1]}.-1 to {found[1]}.-{layers}"
        )
    return f"{found[1]}.{place}{pattern[found.end() :]}"


def nearest(pattern: str, model: nn.Module, names: Sequence[str]) -> str:
    """Returns, for a pattern that matches nothing, what it may have meant."""
    tied = [name for name, _ in model.named_parameters(remove_duplicate=False) if fnmatchcase(name, pattern)]
    if tied:
        owner = next(n for n, p in model.named_parameters() if p is model.get_parameter(tied[0]))
        return f"{tied[0]} is tied to {owner}, which stands for both"
    tops = sorted({name.split(".")[0] for name in names})
    near = difflib.get_close_matches(pattern.removesuffix("*"), [*names, *tops], n=3, cutoff=0.4)
    return (f"near: {', '.join(near)}; " if near else "") + f"parameters begin with: {', '.join(tops)}"
