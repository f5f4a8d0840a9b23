"""What adapters start from: truncated SVDs of what the removed layers differ by from the core that stands for them.

A residual is W_l − W_core, of one linear map of one removed layer or the mean over several; B A is its best approximation at a
rank, A = Vh[:r] and B = U[:, :r] · S[:r]. Only one residual is there at a time, in float32. `HOWS`:

- `mean`: one residual per layer of the core, the mean over the removed layers of its group (Ouroboros).
- `per-step`: one residual per step. The rows of a `low-rank` adapter start as their own layer's (Relaxed Recursive Transformers,
  arXiv 2410.20672): at full rank the converted model is the source. Bases, which all steps share, divide their rank by layers.
- `weighted`: the residuals of `mean` for bases and of `per-step` for low-rank, with the input channels scaled by the root mean
  square of what enters them, so that the error counts where the map is used.

The norm before a map scales its input by γ; the last two fold it in, W γ in the place of W and A / γ_core in that of A, and
`low-rank` with `bias` takes the difference of biases too. The first one does neither, as published.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.layers import Norm
from loopwright.model.parts.adapters import ADAPTERS
from loopwright.model.parts.adapters.effects import BRANCHES, Factored
from loopwright.schema import refuse_unknown

HOWS = ("mean", "per-step", "weighted")
OVERSAMPLE, POWERS = 8, 4
TINY = 1e-6  # of the largest channel: below it a channel counts as shut


class Groups(Protocol):
    """What is asked of a layout: the source layer of each layer of the core, and those it stands for in the order of steps."""

    @property
    def core(self) -> Sequence[int]:
        """The source layers the core was taken from."""

    @property
    def groups(self) -> Sequence[Sequence[int]]:
        """For each layer of the core, the source layers it stands for."""


@dataclass(frozen=True)
class Reconstruction:
    """How well one residual is met: ‖ΔW − B A‖ / ‖ΔW‖ (both weighted where the SVD was); `step` is None where steps share it."""

    name: str
    layer: int
    step: int | None
    rank: int
    error: float


@torch.no_grad()
def start_bases(
    model: LoopedForCausalLM,
    source: LoopedForCausalLM,
    layout: Groups,
    *,
    how: str = "mean",
    method: str = "exact",
    activations: Mapping[str, Tensor] | None = None,
) -> list[Reconstruction]:
    """Starts the bases and low-rank factors of the core's adapters from a dense source, and returns how well each is met.

    `activations` are the scales that `input_scales` returns, for `weighted`.
    """
    refuse_unknown("bases: how", [how], HOWS)
    refuse_unknown("bases: method", [method], METHODS)
    if (how == "weighted") != (activations is not None):
        given = "without" if activations is None else "with"
        raise ValueError(f"bases: how {how!r} {given} activations; 'weighted' needs them, no other takes them")
    adapters = [(i, a) for i, a in enumerate(model.adapters) if a.stack == "core" and a.starts_from is not None]
    if not adapters:
        allowed = ", ".join(name for name, kind in ADAPTERS.items() if kind.starts_from is not None)
        raise ValueError(f"bases: no adapter of the core holds any; allowed: {allowed}")
    for _, adapter in adapters:
        _check_maps(adapter)
        check_ranks("bases", adapter)
    removal = Removal(model, source, layout, fold=how != "mean", scales=activations, decompose=METHODS[method])
    if how == "mean" or any(adapter.starts_from == "bases" for _, adapter in adapters):
        for layer in range(len(layout.core)):
            removal.removed(layer)  # refuses before anything is written
    reconstructions: list[Reconstruction] = []
    for index, adapter in adapters:
        where = f"adapters.{index}"
        begin = _start_low_rank if adapter.starts_from == "factors" else _start_shared
        reconstructions += begin(where, adapter, removal, how)
    return reconstructions


@torch.no_grad()
def input_scales(source: LoopedForCausalLM, layout: Groups, input_ids: Tensor) -> dict[str, Tensor]:
    """Returns, for each linear map, the root mean square of its input channels on some text, [source layers, in]; zero in layers
    that the layout does not ask for."""
    blocks, hooks = [*source.prelude, *source.coda], []
    scales: dict[str, Tensor] = {}

    def watch(layer: int, name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            rows = inputs[0].float().flatten(0, -2)
            scales.setdefault(name, rows.new_zeros(len(blocks), rows.shape[-1]))[layer] = rows.square().mean(0).sqrt()

        return hook

    for layer in {member for group in layout.groups for member in group}:  # in a dense model each module runs once
        for path, module in blocks[layer].named_modules():
            if isinstance(module, nn.Linear):
                hooks.append(module.register_forward_pre_hook(watch(layer, path.split(".")[-1])))
    try:
        source(input_ids, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return scales


@dataclass(frozen=True)
class Removal:
    """What a conversion took away, one residual at a time."""

    model: LoopedForCausalLM
    source: LoopedForCausalLM
    layout: Groups
    fold: bool
    scales: Mapping[str, Tensor] | None
    decompose: Callable[[Tensor, int], tuple[Tensor, Tensor]]

    def removed(self, layer: int) -> list[int]:
        """Returns the source layers that a layer of the core stands for without being one of the core's own."""
        members = [member for member in self.layout.groups[layer] if member not in self.layout.core]
        if not members:
            raise ValueError(
                f"bases: layer {layer} of the core stands for {list(self.layout.groups[layer])}, and nothing was removed; "
                "allowed: a layout that drops layers, or bases that start fresh"
            )
        return members

    def residual(self, layer: int, name: str, members: Sequence[int]) -> Tensor:
        """Returns the mean over source layers of W_l − W_core, float32 [out, in]; norms folded in, of W_l γ_l − W_core γ_core."""
        core, blocks = self.model.core[layer], [*self.source.prelude, *self.source.coda]
        kept = self._folded(core, name)
        total = torch.zeros_like(kept)
        for member in members:
            total += self._folded(blocks[member], name)
            total -= kept
        return total.div_(len(members))

    def bias(self, layer: int, name: str, members: Sequence[int]) -> Tensor | float:
        """Returns the mean difference of biases, 0 where there are none."""
        blocks, kept = [*self.source.prelude, *self.source.coda], _linear(self.model.core[layer], name).bias
        return 0.0 if kept is None else _mean([_linear(blocks[m], name).bias.float() - kept.float() for m in members])

    def factors(self, layer: int, name: str, members: Sequence[int], rank: int) -> tuple[Tensor | float, Tensor | None, float]:
        """Returns b [out, r], a [r, in] and the relative error of b a; 0 and None where there is no residual."""
        delta = self.residual(layer, name, members)
        scale = self._scale(name, members)
        if scale is not None:
            delta.mul_(scale)
        size = float(delta.norm())
        if not size:  # its singular vectors would say nothing: a stays as it started
            return 0.0, None, 0.0
        b, a = self.decompose(delta, rank)
        error = float(delta.addmm_(b, a, alpha=-1).norm()) / size
        for divisor in (scale, self._gain(self.model.core[layer], name)):
            a = a if divisor is None else torch.where(divisor.abs() > TINY * divisor.abs().max(), a / divisor, 0.0)
        return b, a, error

    def _gain(self, block: nn.Module, name: str) -> Tensor | None:
        """Returns the weight of the norm before a map, None where it is not folded in."""
        if not self.fold or name in ("o_proj", "down_proj"):
            return None
        norm = block.get_submodule(("attention_norms" if name[0] in "qkv" else "mlp_norms") + ".input")
        gain = norm.gain if isinstance(norm, Norm) else None  # no norm may stand there
        return None if gain is None else gain.float()

    def _folded(self, block: nn.Module, name: str) -> Tensor:
        weight, gain = _linear(block, name).weight.float(), self._gain(block, name)
        return weight if gain is None else weight * gain

    def _scale(self, name: str, members: Sequence[int]) -> Tensor | None:
        """Returns the root mean square of what the (folded) maps of these layers read."""
        if self.scales is None:
            return None
        blocks = [*self.source.prelude, *self.source.coda]
        squares = []
        for member in members:
            rms, gain = self.scales[name][member].float(), self._gain(blocks[member], name)
            squares.append((rms if gain is None else rms / gain.abs().clamp(min=TINY * float(gain.abs().max()))).square())
        scale = _mean(squares).sqrt()
        return scale.clamp(min=TINY * float(scale.max()))


def exact(delta: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Returns b = U[:, :r] · S[:r] and a = Vh[:r] of the whole SVD."""
    u, s, vh = torch.linalg.svd(delta, full_matrices=False)
    return u[:, :rank] * s[:rank], vh[:rank]


def randomised(delta: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Returns the same by a random range and a few powers of it (Halko et al., arXiv 0909.4061), from a seed of its own."""
    generator = torch.Generator(delta.device).manual_seed(0)
    width = min(rank + OVERSAMPLE, *delta.shape)
    q = torch.linalg.qr(delta @ torch.randn(delta.shape[1], width, generator=generator, device=delta.device)).Q
    for _ in range(POWERS):
        q = torch.linalg.qr(delta @ torch.linalg.qr(delta.T @ q).Q).Q
    b, a = exact(q.T @ delta, rank)
    return q @ b, a


def _start_low_rank(where: str, adapter: Any, removal: Removal, how: str) -> Iterator[Reconstruction]:
    rank = adapter.factors.rank
    for name in adapter.shapes:
        a = adapter.factors.a[name]
        for layer in range(a.shape[1]):
            for step in range(len(a)):
                members = removal.removed(layer) if how == "mean" else stands_for(removal.layout.groups[layer], step, len(a))
                left, right, error = removal.factors(layer, name, members, rank)
                if right is not None:
                    a[step, layer] = right
                adapter.factors.b[name][step, layer] = left / adapter.scale
                if name in adapter.biases and how != "mean":
                    adapter.biases[name][step, layer] = removal.bias(layer, name, members)
                yield Reconstruction(f"{where}.{name}", layer, step, rank, error)


def _start_shared(where: str, adapter: Any, removal: Removal, how: str) -> Iterator[Reconstruction]:
    bases = adapter.bases
    for name in bases.names:
        a = bases.a[name]
        for layer in range(len(a)):
            removed = removal.removed(layer)
            parts = [[member] for member in removed] if how == "per-step" else [removed]
            ranks = [bases.rank // len(parts) + (i < bases.rank % len(parts)) for i in range(len(parts))]
            at = 0
            for members, rank in zip(parts, ranks, strict=True):
                left, right, error = removal.factors(layer, name, members, rank)
                if right is not None:
                    a[layer, at : at + rank] = right
                bases.b[name][layer, :, at : at + rank] = left
                at += rank
                step = removal.layout.groups[layer].index(members[0]) if how == "per-step" else None
                yield Reconstruction(f"{where}.{name}", layer, step, rank, error)


def stands_for(group: Sequence[int], step: int, steps: int) -> list[int]:
    """Returns the source layers that a step stands for: one each where there are as many, a stretch of them where there are fewer
    steps, the last one in every step beyond."""
    if steps >= len(group):
        return [group[min(step, len(group) - 1)]]
    return list(group[step * len(group) // steps : (step + 1) * len(group) // steps])


def check_ranks(where: str, adapter: nn.Module) -> None:
    """Raises a ValueError where factors of an adapter have a rank above the smaller side of the weight they stand for."""
    for module in adapter.modules():
        if isinstance(module, Factored):
            for name, a in module.a.items():
                least = min(a.shape[-1], module.b[name].shape[-2])
                if module.rank > least:
                    raise ValueError(f"{where}: rank {module.rank} on {name}; allowed: at most {least}, its smaller side")


def _check_maps(adapter: Any) -> None:
    for name in adapter.shapes if adapter.starts_from == "factors" else adapter.bases.names:
        if name in BRANCHES:
            raise ValueError(f"bases: target {name!r} is a whole branch, which has no weight; allowed: linear maps")


def _linear(block: nn.Module, name: str) -> nn.Linear:
    return block.get_submodule(("self_attn." if name[0] in "qkvo" else "mlp.") + name)  # type: ignore[return-value]


def _mean(tensors: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(tensors)).mean(0)


METHODS: dict[str, Callable[[Tensor, int], tuple[Tensor, Tensor]]] = {"exact": exact, "randomised": randomised}
