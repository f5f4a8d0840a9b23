"""The residual stream in numbers: its size and spread, how far states are from one another, their paths, where they rest.

States are […, T, D]. `valid` […, T] says which tokens are real (None: all); the others never count. Numbers are computed in float32
or wider.

The approximate fixed point of a layer is its residual at the last step of a deep pass (128 steps by default): `fixed` [L, B, T, D].
Near it at every later step, the core runs through one cycle over and over. Where all layers share it, the layers have stopped
doing anything: the fixed point is degenerate. "A Mechanistic Analysis of Looped Language Models", Sections 4.1 and 4.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from loopwright.metrics.attention import attention_distance
from loopwright.metrics.score import wide
from loopwright.schema import check_whole

# per token


def token_norms(x: Tensor) -> Tensor:
    """Returns ‖x_i‖ per token […, T]."""
    return wide(x).norm(dim=-1)


def token_cosines(a: Tensor, b: Tensor) -> Tensor:
    """Returns a_i · b_i / (‖a_i‖ ‖b_i‖) per token […, T], in [−1, 1]; two zeros are alike (1), one zero is like nothing (0)."""
    a, b = wide(a), wide(b)
    sizes_a, sizes_b = a.norm(dim=-1), b.norm(dim=-1)
    # each is brought to norm 1 first: the product of two large norms overflows
    cosine = (_unit(a, sizes_a) * _unit(b, sizes_b)).sum(-1).clamp(-1, 1)
    return torch.where((sizes_a == 0) & (sizes_b == 0), 1.0, cosine)


def token_distances(a: Tensor, b: Tensor) -> Tensor:
    """Returns ‖a_i − b_i‖ / ‖b_i‖ per token […, T]; 0 where both are zero, ∞ where b_i alone is."""
    apart, sizes = token_norms(wide(a) - wide(b)), token_norms(b)
    return torch.where(apart == 0, 0.0, apart / sizes)


def token_mean(values: Tensor, valid: Tensor | None = None) -> Tensor:
    """Returns the mean of values […, T] over the real tokens […]; NaN where there is none."""
    if valid is None:
        return values.mean(-1)
    return values.masked_fill(~valid.bool(), 0).sum(-1) / valid.bool().sum(-1)


# per row: means over the real tokens


def residual_norm(x: Tensor, valid: Tensor | None = None) -> Tensor:
    """Returns (1 / T) Σ_i ‖x_i‖ […]."""
    return token_mean(token_norms(x), valid)


def residual_distance(a: Tensor, b: Tensor, *, valid: Tensor | None = None) -> Tensor:
    """Returns (1 / T) Σ_i ‖b_i − a_i‖ […]: of successive steps of a layer, or of a step and the layer's fixed point."""
    return token_mean(token_norms(wide(b) - wide(a)), valid)


def residual_cosine(a: Tensor, b: Tensor, *, valid: Tensor | None = None) -> Tensor:
    """Returns (1 / T) Σ_i cos(a_i, b_i) […]."""
    return token_mean(token_cosines(a, b), valid)


def residual_cosines(states: Tensor, valid: Tensor | None = None) -> Tensor:
    """Returns the mean cosine of every pair of states [R, B, T, D] over rows and real tokens, [R, R]; zeros are like nothing."""
    states = wide(states)
    rows = states.new_ones(states.shape[1:3]) if valid is None else valid.bool().to(states.dtype)
    units = _unit(states, states.norm(dim=-1)).masked_fill(rows[..., None] == 0, 0)
    each = torch.einsum("rbtd,sbtd->brs", units, units) / rows.sum(1)[:, None, None]
    return each.mean(0)  # rows weigh alike, however long they are


def residual_entropy(x: Tensor, valid: Tensor | None = None) -> Tensor:
    """Returns H = −Σ_j p_j log p_j in nats, p the eigenvalues of X Xᵀ / tr(X Xᵀ), in [0, log min(T, D)] […].

    No centring, no scaling of tokens. The smaller of X Xᵀ and Xᵀ X is decomposed, in float64: they share all eigenvalues but
    zeros, as padding adds only zeros. 0 where X is zero, NaN where it is not finite or no token is real.
    """
    x = x.double()
    if valid is not None:
        x = x.masked_fill(~valid.bool()[..., None], 0)
    gram = x @ x.mT if x.shape[-2] <= x.shape[-1] else x.mT @ x
    finite = gram.isfinite().flatten(-2).all(-1)  # the solver refuses what is not
    gram = gram.where(finite[..., None, None], 0)
    values = torch.linalg.eigvalsh(gram).clamp(min=0)
    shares = values / values.sum(-1, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny)
    entropy = torch.special.entr(shares).sum(-1)
    if valid is not None:
        finite = finite & valid.bool().any(-1)
    return entropy.masked_fill(~finite, torch.nan)


# how steps shrink


def relative_step(a: Tensor, b: Tensor, valid: Tensor | None = None) -> Tensor:
    """Returns ‖b − a‖ / ‖a‖ per row [B] for states [B, T, D], over the tokens that are `valid` [B, T] (None: all)."""
    return _ratio(_size(b - a, valid), _size(a, valid))


def contraction(states: Sequence[Tensor] | Tensor, valid: Tensor | None = None) -> Tensor:
    """Returns the mean factor, per row [B], by which ‖s_{t+1} − s_t‖ shrinks from one step to the next.

    `states` are three or more that follow one another, each [B, T, D]; the mean is the geometric one. Below 1 the steps
    contract; the gradient that truncation after k steps leaves out is about this factor to the power k.
    """
    if len(states) < 3:
        raise ValueError(f"contraction: {len(states)} states; allowed: at least 3")
    first, last = _size(states[1] - states[0], valid), _size(states[-1] - states[-2], valid)
    return _ratio(last, first) ** (1 / (len(states) - 2))


def step_factors(changes: Tensor) -> Tensor:
    """Returns ‖Δ_{t+1}‖ / ‖Δ_t‖ from the sizes of successive changes [S, …]: the contraction along the path [S − 1, …].

    Below 1 the path contracts there; near a fixed point the factor tends to the modulus of the leading eigenvalue.
    """
    return _ratio(changes[1:], changes[:-1])


def _size(x: Tensor, valid: Tensor | None) -> Tensor:
    x = wide(x)
    return (x if valid is None else x.masked_fill(~valid[..., None].bool(), 0)).flatten(1).norm(dim=1)


def _ratio(a: Tensor, b: Tensor) -> Tensor:
    return torch.where((a == 0) & (b == 0), 0.0, a / b)  # what stands still does not move, whatever its size


def _unit(x: Tensor, sizes: Tensor) -> Tensor:
    return x / sizes.clamp(min=torch.finfo(x.dtype).tiny)[..., None]


@dataclass(frozen=True)
class Projection:
    """Paths in the directions they spread most: `coordinates` […, k], and the share of the variance along each, `explained` [k]."""

    coordinates: Tensor
    explained: Tensor


def pca_path(states: Tensor, k: int = 2) -> Projection:
    """Returns one path [steps, …] in its own first k principal directions: coordinates [steps, k], in float64."""
    paths = pca_paths(states[None], k)
    return Projection(paths.coordinates[0], paths.explained)


def pca_paths(states: Tensor, k: int = 2) -> Projection:
    """Returns several paths [paths, steps, …] in the directions they share: coordinates [paths, steps, k], in float64.

    The data are centred over all steps of all paths. Each direction points to where its largest entry is positive, so that
    the picture does not depend on the solver. Directions that the data do not have are zero, and explain nothing.
    """
    if states.dim() < 3 or not states.numel() or k < 1:
        raise ValueError(f"pca: states of shape {tuple(states.shape)}, k = {k}; allowed: [steps, …] with a value, k at least 1")
    count, steps = states.shape[:2]
    flat = states.detach().double().cpu().reshape(count * steps, -1)
    if not flat.isfinite().all():
        raise ValueError("pca: the states are not all finite; allowed: finite ones (look at smaller depths)")
    centred = flat - flat.mean(0)
    _, sizes, directions = torch.linalg.svd(centred, full_matrices=False)
    axes = directions[:k]
    largest = axes.gather(1, axes.abs().argmax(1, keepdim=True))
    coordinates = centred @ (axes * largest.sign()).T
    total = sizes.square().sum()
    explained = sizes[:k].square() / total if total > 0 else torch.zeros_like(sizes[:k])
    missing = k - axes.shape[0]
    coordinates = torch.nn.functional.pad(coordinates, (0, missing))
    return Projection(coordinates.view(count, steps, k), torch.nn.functional.pad(explained, (0, missing)))


# which states make a path


def last_tokens(x: Tensor, valid: Tensor | None = None) -> Tensor:
    """Returns the state of the last real token of each row, [B, D] of [B, T, D]."""
    if valid is None:
        return x[:, -1]
    real = valid.bool()
    if not real.any(1).all():
        raise ValueError("trajectory: a row without a real token; allowed: one or more in each")
    place = real.shape[1] - 1 - real.flip(1).long().argmax(1)
    return x[torch.arange(len(x), device=x.device), place]


def cycle_path(states: Tensor, k: int = 2) -> Projection:
    """Returns one token's path through the layers of all steps [S, L, D], in the directions of the whole: [S, L, k] (Figure 5)."""
    path = pca_path(states.flatten(0, 1), k)
    return Projection(path.coordinates.unflatten(0, states.shape[:2]), path.explained)


def layer_paths(states: Tensor, k: int = 2) -> Projection:
    """Returns the path of one token at each layer in that layer's own directions, of [S, L, D]: [L, S, k], [L, k] (Figure 15)."""
    each = [pca_path(states[:, layer], k) for layer in range(states.shape[1])]
    return Projection(torch.stack([x.coordinates for x in each]), torch.stack([x.explained for x in each]))


def prompt_path(states: Tensor, valid: Tensor | None = None, *, k: int = 2) -> Projection:
    """Returns the path of a whole prompt [S, T, D], each step flattened to the T · D numbers of its real tokens: [S, k] (STARS)."""
    return pca_path(states if valid is None else states[:, valid.bool()], k)


@dataclass(frozen=True)
class Window:
    """The steps `first` to `last` (not included) of a path, and their coordinates."""

    first: int
    last: int
    coordinates: Tensor


def step_windows(coordinates: Tensor, size: int = 8) -> list[Window]:
    """Returns a path [S, …] in windows of `size` steps, the last perhaps shorter; each shares the directions of the whole path."""
    check_whole("trajectory: size", size, 1)
    steps = coordinates.shape[0]
    return [Window(i, min(i + size, steps), coordinates[i : i + size]) for i in range(0, steps, size)]


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
