"""Random attention maps, and the same with padding around them."""

from __future__ import annotations

import torch
from torch import Tensor


def causal_maps(batch: int, heads: int, tokens: int, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Returns maps [B, H, T, T] of random rows that see no later token."""
    logits = 2 * torch.randn(batch, heads, tokens, tokens, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    later = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
    return logits.masked_fill(later, -torch.inf).softmax(-1).to(dtype)


def with_padding(x: Tensor, left: int, right: int, *, dims: int = 2) -> tuple[Tensor, Tensor]:
    """Returns x with NaN around its last `dims` token dimensions, and which tokens are real [B, T]."""
    padded = torch.nn.functional.pad(x, (left, right) * dims, value=torch.nan)
    valid = torch.zeros(x.shape[0], x.shape[-1] + left + right, dtype=torch.bool)
    valid[:, left : left + x.shape[-1]] = True
    return padded, valid


def padded_states(
    batch: int, tokens: int, width: int, left: int, right: int, *, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Returns two random states [B, T, D], the same with NaN in padding, and which tokens are real [B, T]."""
    a, b = torch.randn(2, batch, tokens, width, generator=torch.Generator().manual_seed(seed))
    pad = (0, 0, left, right)
    padded_a, padded_b = (torch.nn.functional.pad(x, pad, value=torch.nan) for x in (a, b))
    valid = torch.nn.functional.pad(torch.ones(batch, tokens, dtype=torch.bool), (left, right), value=False)
    return a, b, padded_a, padded_b, valid
