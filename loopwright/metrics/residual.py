"""How far a state is from standing still: the relative size of a step, and the factor by which steps shrink."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


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


def _size(x: Tensor, valid: Tensor | None) -> Tensor:
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    return (x if valid is None else x.masked_fill(~valid[..., None].bool(), 0)).flatten(1).norm(dim=1)


def _ratio(a: Tensor, b: Tensor) -> Tensor:
    return torch.where((a == 0) & (b == 0), 0.0, a / b)  # what stands still does not move, whatever its size
