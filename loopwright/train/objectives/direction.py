"""Which rows a penalty probes, and along which directions: pure functions of seed, update, row, token and channel."""

from __future__ import annotations

import torch
from torch import Tensor

from loopwright.model.forward.traced import cached_constant
from loopwright.model.parts.state import hashed_normal, mix, signed

POOL = 1 << 18  # normal values that directions are cut from
_LOW = (1 << 64) - 1


class Directions:
    """Random directions. Each token takes a window of one long row of normal values, from a hashed place on.

    Hashing every value (`hashed_normal`) would cost more than the rest of a finite difference; so only places are hashed.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __call__(self, update: int, rows: Tensor, places: Tensor, like: Tensor, valid: Tensor | None = None) -> Tensor:
        """Returns a direction of norm 1 for each of `rows` [N], zero where not `valid` [N, T]: [N, T, D], as wide as `like`.

        `places` [N or 1, T] says where in its row each token stands.
        """
        key = rows * signed(0x9E3779B97F4A7C15) + signed(_mix_int(_mix_int(self.seed) + update))
        start = mix(mix(key)[:, None] + places * signed(0xD1342543DE82EF95)) & (POOL - 1)
        v = windows(self.seed, like.device, like.shape[-1])[start].to(torch.promote_types(like.dtype, torch.float32))
        if valid is not None:
            v = v * valid[..., None]
        return v / norms(v).clamp(min=torch.finfo(v.dtype).tiny)


@cached_constant(16)
def windows(seed: int, device: torch.device, width: int) -> Tensor:
    """Returns all windows of the seed's row of normal values, which closes to a ring: a view [POOL, width] of it."""
    pool = hashed_normal(seed, torch.arange(POOL // 256, device=device)[None], 256).flatten()
    return pool[torch.arange(POOL + width - 1, device=device) % POOL].unfold(0, width, 1)


class Probe:
    """The rows that are probed (`index` None: all), a direction for each [N, T, D], and which of their tokens are real."""

    def __init__(self, index: Tensor | None, v: Tensor, valid: Tensor | None) -> None:
        self.index, self.v, self.valid = index, v, valid

    def pick(self, x: Tensor) -> Tensor:
        """Returns the probed rows of a tensor."""
        return x if self.index is None else x.index_select(0, self.index)

    def real(self, x: Tensor) -> Tensor:
        """Returns rows [N, T, D] with zeros at padding."""
        return x if self.valid is None else x * self.valid[..., None]


def token_places(valid: Tensor | None, s: Tensor) -> Tensor:
    """Returns the place of each token among the real ones of its row [N or 1, T]."""
    return torch.arange(1, s.shape[1] + 1, device=s.device)[None] if valid is None else valid.long().cumsum(1)


def norms(x: Tensor) -> Tensor:
    """Returns the norm of each row [N, 1, 1] of x [N, T, D]."""
    return torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True)


def _mix_int(x: int) -> int:
    x = (x + 0x9E3779B97F4A7C15) & _LOW
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _LOW
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _LOW
    return x ^ (x >> 31)
