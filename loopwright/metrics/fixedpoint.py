"""Does each layer of the core come to rest, and do all layers rest at one point?

The approximate fixed point of a layer is its residual at the last step of a deep pass (128 steps by default): `fixed` [L, B, T, D].
Near it at every later step, the core runs through one cycle over and over. Where all layers share it, the layers have stopped
doing anything: the fixed point is degenerate. "A Mechanistic Analysis of Looped Language Models", Sections 4.1 and 4.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from loopwright.metrics.distance import attention_distance
from loopwright.metrics.residual import residual_cosine, residual_distance, token_cosines, token_distances, token_mean

CONVERGENCE = ("none", "cyclic", "degenerate")  # what the codes 0, 1, 2 of `convergence` stand for


@dataclass(frozen=True)
class Farthest:
    """For each layer and row the layer whose fixed point is farthest from its own, by distance and by cosine, [L, B] (long)."""

    distance: Tensor
    cosine: Tensor


def farthest_layers(fixed: Tensor | Sequence[Tensor], valid: Tensor | None = None) -> Farthest:
    """Returns the farthest layers for fixed points [L, B, T, D]: argmax_j of the mean ‖x*_j − x*_l‖, argmin_j of the mean cosine.

    Chosen for each row on its own, so that a row does not depend on its batch.
    """
    distances = [torch.stack([residual_distance(a, b, valid=valid) for b in fixed]) for a in fixed]
    cosines = [torch.stack([residual_cosine(a, b, valid=valid) for b in fixed]) for a in fixed]
    return Farthest(torch.stack(distances).argmax(1), torch.stack(cosines).argmin(1))


def farthest_maps(fixed: Tensor | Sequence[Tensor], valid: Tensor | None = None) -> Tensor:
    """Returns for each layer and row the layer whose last map is farthest in ‖A − B‖_F, mean over heads, [L, B] (long).

    `fixed` are the maps of the last step, [L, B, H, T, T].
    """
    return torch.stack([torch.stack([attention_distance(a, b, valid=valid).mean(-1) for b in fixed]).argmax(0) for a in fixed])


@dataclass(frozen=True)
class FixedPointGap:
    """How far a state is from its layer's fixed point and from the farthest layer's: mean over tokens, each [B].

    The far ones are NaN in a core of one layer, which has no other. `token_cosine` [B, T] is the cosine before the mean;
    `token_distance` [B, T] is ‖x_i − x*_i‖ / ‖x*_i‖, relative so that one threshold serves every model.
    """

    distance: Tensor
    cosine: Tensor
    far_distance: Tensor
    far_cosine: Tensor
    token_cosine: Tensor
    token_distance: Tensor


def fixed_point_gap(
    state: Tensor, fixed: Tensor | Sequence[Tensor], *, layer: int, farthest: Farthest, valid: Tensor | None = None
) -> FixedPointGap:
    """Returns the gap of one layer's residual [B, T, D] at some step to the fixed points [L, B, T, D]."""
    distance = residual_distance(state, fixed[layer], valid=valid)
    each, relative = token_cosines(state, fixed[layer]), token_distances(state, fixed[layer])
    cosine = token_mean(each, valid)
    if len(fixed) == 1:
        none = torch.full_like(distance, torch.nan)
        return FixedPointGap(distance, cosine, none, none, each, relative)
    far_distance = residual_distance(state, pick_rows(fixed, farthest.distance[layer]), valid=valid)
    far_cosine = residual_cosine(state, pick_rows(fixed, farthest.cosine[layer]), valid=valid)
    return FixedPointGap(distance, cosine, far_distance, far_cosine, each, relative)


def pick_rows(fixed: Tensor | Sequence[Tensor], layers: Tensor) -> Tensor:
    """Returns from [L, B, …] for each row that of its layer, `layers` [B]: [B, …]."""
    if isinstance(fixed, Tensor):
        return fixed[layers, torch.arange(len(layers), device=fixed.device)]
    first, *others = sorted(set(layers.tolist()))
    picked = fixed[first]
    for layer in others:  # few: a whole copy for each is less work than a copy for each row
        mine = (layers == layer).to(picked.device).view(-1, *[1] * (picked.ndim - 1))
        picked = torch.where(mine, fixed[layer], picked)
    return picked


def convergence(same: Tensor, far: Tensor, tau: float = 0.05) -> Tensor:
    """Returns what a layer converges to, an index into CONVERGENCE […], from its cosines per step […, n], the last step left out.

    Over the second half of the steps: `cyclic` where the cosine to the layer's own fixed point is at least 1 − τ throughout,
    `degenerate` where so is that to the farthest layer's, `none` otherwise.
    """
    n = same.shape[-1]
    if n < 2 or far.shape != same.shape:
        raise ValueError(f"convergence: cosines {tuple(same.shape)} and {tuple(far.shape)}; allowed: of one shape, 2 steps or more")
    rests, shared = ((x[..., n // 2 :] >= 1 - tau).all(-1) for x in (same, far))
    return torch.where(rests, torch.where(shared, 2, 1), 0)
