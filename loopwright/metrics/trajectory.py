"""The path of a state through the steps, seen in few dimensions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from loopwright.values import check_whole


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
