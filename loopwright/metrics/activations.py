"""Massive activations: single numbers of the residual stream that dwarf all others (after Sun et al. 2024)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

FLOOR = 100.0  # a massive activation is larger than this
RATIO = 1000.0  # and larger than this many times the median


@dataclass(frozen=True)
class Activations:
    """The largest activation of each row and how it compares, each [B].

    `top` is max |x| and `median` the median |x| over all entries of real tokens; `token` (long) is the index of the largest
    among the real tokens, `channel` (long) where it stands in the width; `massive` (long) counts the entries beyond both
    thresholds. `top` is NaN where an entry is, and both are where no token is real.
    """

    top: Tensor
    median: Tensor
    token: Tensor
    channel: Tensor
    massive: Tensor

    @property
    def ratio(self) -> Tensor:
        """The largest over the median."""
        return self.top / self.median


def massive_activations(x: Tensor, valid: Tensor | None = None, *, floor: float = FLOOR, ratio: float = RATIO) -> Activations:
    """Returns the largest activation of states [B, T, D] and how many are massive: |x| > floor and |x| > ratio · median |x|."""
    size = x.to(torch.promote_types(x.dtype, torch.float32)).abs()
    if valid is None:
        valid = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
    real = valid.bool()
    broken = (size.isnan().any(-1) & real).any(-1)
    size = size.masked_fill(~real[..., None], torch.nan)
    median = size.flatten(1).nanmedian(-1).values
    top, place = size.nan_to_num(nan=-1.0, posinf=torch.inf).flatten(1).max(-1)
    token, channel = place // x.shape[-1], place % x.shape[-1]
    index = (real.long().cumsum(-1) - 1).gather(-1, token[:, None])[:, 0]
    massive = (size > floor) & (size > ratio * median[:, None, None])
    return Activations(torch.where(broken | (top < 0), torch.nan, top), median, index, channel, massive.flatten(1).sum(-1))
