"""How the controller sums up the state before it decides: one pooled vector per token, from the past alone.

`prefix`: the mean over the document up to the token. `chunk`: that mean at the first token of the token's chunk.
`token`: the token itself. `none`: nothing, so that the controller knows the step alone, which is what the others are measured
against. `sequence`: the mean over the whole row, which lets every token see the future; it exists to reproduce the Ouroboros
paper, only where `leak_future` is set, and never in generation. The place says which running sum of the cache is meant: each step
of the core and each reading of the coda has its own.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from loopwright.model.forward.context import Pass, Place

Pool = Callable[[Tensor, str, Place, Pass, int], Tensor]


def pool_prefix(x: Tensor, name: str, place: Place, p: Pass, chunk: int) -> Tensor:
    """Returns the mean of x [B, T, W] over each token's document up to it."""
    running, _ = _running(x, name, place, p)
    return (running / p.span.ordinal()[..., None]).to(x.dtype)


def pool_chunk(x: Tensor, name: str, place: Place, p: Pass, chunk: int) -> Tensor:
    """Returns the prefix mean at the first token of each token's chunk of the document."""
    _, history = _running(x, name, place, p)
    ordinal = p.span.ordinal()
    into = (ordinal - 1) % chunk
    boundary = p.span.back(into)
    at = history.gather(1, boundary[..., None].expand(-1, -1, history.shape[-1]))
    return (at / (ordinal - into)[..., None]).to(x.dtype)


def pool_token(x: Tensor, name: str, place: Place, p: Pass, chunk: int) -> Tensor:
    """Returns x itself."""
    return x


def pool_none(x: Tensor, name: str, place: Place, p: Pass, chunk: int) -> Tensor:
    """Returns zeros: what the controller says then is the same for every input."""
    return torch.zeros_like(x)


def pool_sequence(x: Tensor, name: str, place: Place, p: Pass, chunk: int) -> Tensor:
    """Returns the mean over all real tokens of the row, future ones included."""
    if p.cache is not None:
        raise ValueError("controller: pooling 'sequence' reads future tokens, so it cannot be cached; use prefix, chunk or token")
    if p.span.plain:
        return x.mean(1, keepdim=True)
    span = p.batch_span
    assert span.valid is not None and span.first is not None
    real = span.valid[..., None].to(x.dtype)
    return (x * real).sum(1, keepdim=True) / real.sum(1, keepdim=True).clamp(min=1)


def _running(x: Tensor, name: str, place: Place, p: Pass) -> tuple[Tensor, Tensor]:
    """Returns float32 running sums over documents: of the new tokens [B, T, W] and of all tokens [B, N, W]."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    if p.cache is None:
        running = p.span.document_sum(wide, None)
        return running, running
    running = p.span.document_sum(wide, p.cache.carried_sum(name, place, p, wide))
    return running, p.cache.write_sum(name, place, running, p)


POOLINGS: dict[str, Pool] = {
    "prefix": pool_prefix,
    "chunk": pool_chunk,
    "token": pool_token,
    "none": pool_none,
    "sequence": pool_sequence,
}
