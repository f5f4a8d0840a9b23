"""The path of a state through the steps, seen in few dimensions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


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
    found = directions[:k]
    largest = found.gather(1, found.abs().argmax(1, keepdim=True))
    coordinates = centred @ (found * largest.sign()).T
    total = sizes.square().sum()
    explained = sizes[:k].square() / total if total > 0 else torch.zeros_like(sizes[:k])
    missing = k - found.shape[0]
    coordinates = torch.nn.functional.pad(coordinates, (0, missing))
    return Projection(coordinates.view(count, steps, k), torch.nn.functional.pad(explained, (0, missing)))
