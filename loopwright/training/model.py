"""Where a run's model comes from: a preset freshly started, weights that are loaded, or a dense model made into a looped one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from loopwright.checkpoints.load import read_files
from loopwright.checkpoints.source import load
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.config import LoopedConfig
from loopwright.model.presets import preset
from loopwright.retrofitting.surgery import convert, freeze_base
from loopwright.retrofitting.systems import TRAINS, find_system, make_plan
from loopwright.schema import Given, build_kind, merge
from loopwright.storage.run import saved
from loopwright.untrusted import shown


class FromPreset:
    """A preset (`loopwright presets`), or a plain config where no name is given, with `changes` laid over it, freshly started."""

    def __init__(self, name: str | None = None, changes: dict | None = None) -> None:
        self.name = name
        self.changes: dict[str, Any] = dict(changes or {})

    @property
    def config(self) -> LoopedConfig:
        """The config of the model."""
        return LoopedConfig(**self.changes) if self.name is None else preset(self.name, **self.changes)

    def build(self, seed: int) -> LoopedForCausalLM:
        """Returns the model; the seed alone decides its weights."""
        return started(self.config, seed)


class FromWeights:
    """A folder or hub id, as `lw.load` takes it; `changes` are laid over its config where the tensors still fit.

    A larger `max_steps` makes room for more steps: what holds one row per step gets rows like its last one, so that the model is
    the same up to the steps it had, and goes on beyond them as `beyond_max_steps: repeat` does. `core_layers` that are a multiple
    of those there take the list of layers so many times over: how Ouro 2.6B began (arXiv 2510.25741).
    """

    def __init__(self, source: str, dtype: str = "float32", changes: dict | None = None) -> None:
        self.source = source
        self.dtype = dtype
        self.changes: dict[str, Any] = dict(changes or {})

    def build(self, seed: int) -> LoopedForCausalLM:
        """Returns the model with its weights; the seed is not used."""
        model = _loaded(self.source, self.dtype)
        if not self.changes:
            return model
        changed = LoopedForCausalLM(LoopedConfig(**merge(model.config.to_dict(), self.changes)))
        wanted = changed.state_dict()
        there = _more_layers(model.state_dict(), model.config.core_layers, changed.config.core_layers)
        there = _more_steps(there, wanted, model.config.max_steps, changed.config.max_steps)
        shapes = [{name: tensor.shape for name, tensor in tensors.items()} for tensors in (wanted, there)]
        odd = sorted({name for name, _ in shapes[0].items() ^ shapes[1].items()})
        if odd:
            raise ValueError(f"model (load): changes {self.changes} do not fit the weights of {self.source} ({odd[0]})")
        changed.load_state_dict(there)
        return changed.to(dtype=next(model.parameters()).dtype)  # type: ignore[call-arg]  # how transformers wraps `to`


class FromRetrofit:
    """A dense model made into a looped one, as `lw.retrofit` does: a `system` with `changes` to it.

    `trains` says whether its "parts" alone are trained or "all"; left out, what the system trains. The optimiser's `train` may
    still say otherwise.
    """

    def __init__(
        self,
        source: str,
        system: str = "ouroboros-identity",
        changes: dict | None = None,
        dtype: str = "float32",
        trains: str | None = None,
    ) -> None:
        if trains not in (None, *TRAINS):
            raise ValueError(f"model (retrofit): trains is {shown(trains)}; allowed: {', '.join(TRAINS)}, or leave it out")
        self.source, self.dtype = source, dtype
        self.trains = trains or find_system(system).trains
        self.plan = make_plan(system, dict(changes or {}))

    def build(self, seed: int) -> LoopedForCausalLM:
        """Returns the model; the seed decides what its parts start from."""
        model = convert(_loaded(self.source, self.dtype), self.plan, seed=seed).model
        if self.trains == "parts":
            freeze_base(model)
        return model


def started(config: LoopedConfig, seed: int) -> LoopedForCausalLM:
    """Returns a fresh model of a config; the seed alone decides its weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LoopedForCausalLM(config)


def model_of_run(spec: Mapping[str, Any], seed: int, checkpoints: Path) -> LoopedForCausalLM:
    """Returns the model that a recipe's `spec` describes. Of a preset that a run has saved, by the config that it saved: an older
    version's preset may have been another."""
    kind = build_kind(spec, MODELS)
    if isinstance(kind, FromPreset):
        for folder in saved(checkpoints):
            try:
                return started(read_files(folder).config, seed)
            except (OSError, ValueError):  # damaged, or parts alone: what resumes from it says so
                continue
    model: LoopedForCausalLM = kind.build(seed)
    return model


def _loaded(source: str, dtype: str) -> LoopedForCausalLM:
    """The model of a source; weights that are not finite cannot be trained, and no learning rate helps."""
    model = load(source, dtype=dtype)
    odd = next((name for name, x in model.named_parameters() if not bool(x.isfinite().all())), None)
    if odd is not None:
        raise ValueError(f"model: {odd} of {source} is not finite, so it cannot be trained; give a checkpoint that is whole")
    return model


def _more_layers(tensors: dict[str, Tensor], before: int, after: int) -> dict[str, Tensor]:
    """Returns the tensors with the layers of the core several times over, where that gives so many."""
    times = after // before if before and after % before == 0 else 1
    copies = dict(tensors)
    for name, x in tensors.items():
        if name.startswith("core."):
            _, layer, rest = name.split(".", 2)
            copies |= {f"core.{int(layer) + k * before}.{rest}": x for k in range(1, times)}
    return copies


def _more_steps(tensors: dict[str, Tensor], wanted: dict[str, Tensor], before: int | None, after: int | None) -> dict[str, Tensor]:
    """Returns the tensors with their tables of one row per step grown to those of more steps, the new rows like the last one."""
    if before is None or after is None or after <= before:
        return tensors
    grown = dict(tensors)
    for name, x in tensors.items():
        sizes = zip(x.shape, wanted[name].shape, strict=True) if name in wanted and x.dim() == wanted[name].dim() else ()
        odd = [(dim, pair) for dim, pair in enumerate(sizes) if pair[0] != pair[1]]
        if len(odd) == 1 and odd[0][1] == (before, after):
            dim = odd[0][0]
            last = x.narrow(dim, before - 1, 1)
            grown[name] = torch.cat([x, *[last] * (after - before)], dim)
    return grown


MODELS: dict[str, type] = {"preset": FromPreset, "load": FromWeights, "retrofit": FromRetrofit, "given": Given}
