"""How far attention maps are from one another, and how far Proposition 4.2 allows (of "A Mechanistic Analysis of Looped Language
Models"): states that hardly move have maps that hardly move.

Maps are […, H, T, T]; `valid` […, T] says which tokens are real (None: all). The proposition speaks of X W_Q W_Kᵀ Xᵀ / √d; rotary
positions, biases and norms of queries and keys are outside of it. `rotary_weight_norm` gives a κ under which it holds with rotary
positions. `query_key_bound` is not the proposition's own but one of its kind, from the queries and keys themselves: it holds for
every model, and is at most that of `rotary_weight_norm` where the proposition with it holds.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from loopwright.metrics.attention import kept_rows

SOFTMAX_LIPSCHITZ = 0.5  # of a softmax, in the Euclidean norm: so of all rows, in the Frobenius norm


# measured


def squared_attention_distance(a: Tensor, b: Tensor, *, valid: Tensor | None = None, valid_rows: Tensor | None = None) -> Tensor:
    """Returns Σ_ij (A_ij − B_ij)² per head […, H], for whole maps or for the same block of rows of both; blocks add up."""
    return (kept_rows(a, valid, valid_rows) - kept_rows(b, valid, valid_rows)).square().sum((-2, -1))


def attention_distance(a: Tensor, b: Tensor, *, valid: Tensor | None = None) -> Tensor:
    """Returns ‖A − B‖_F per head […, H], in [0, √(2T)]; figures draw its mean over heads and rows."""
    return squared_attention_distance(a, b, valid=valid).sqrt()


def attention_distances(maps: Tensor, valid: Tensor | None = None) -> Tensor:
    """Returns the mean of ‖A − B‖_F over rows and heads for every pair of maps [R, B, H, T, T]: [R, R], its diagonal 0.

    All R maps of a row must be there at once: see `attention_pair_bytes`. A new map against those before it is a row of this:
    `attention_distance(earlier, new)`.
    """
    each = []
    for row in range(maps.shape[1]):
        some = maps[:, row].to(torch.promote_types(maps.dtype, torch.float32))
        if valid is not None:
            real = valid[row].bool().nonzero()[:, 0]
            some = some[:, :, real][..., real]
        flat = some.flatten(-2).transpose(0, 1)
        # differences, not ‖A‖² + ‖B‖² − 2⟨A, B⟩: what is nearly equal would drown in rounding
        each.append(torch.cdist(flat, flat, compute_mode="donot_use_mm_for_euclid_dist").mean(0))
    return torch.stack(each).mean(0)


def attention_pair_bytes(depths: int, heads: int, tokens: int, *, rows: int = 1, number_bytes: int = 4) -> int:
    """Returns the bytes of all the maps that `attention_distances` compares: depths · rows · heads · tokens² numbers."""
    return depths * rows * heads * tokens * tokens * number_bytes


def residual_pair_bytes(depths: int, width: int, tokens: int, *, rows: int = 1, number_bytes: int = 4) -> int:
    """Returns the bytes of all the states that `residual_cosines` compares: depths · rows · tokens · width numbers."""
    return depths * rows * tokens * width * number_bytes


# allowed


def weight_norm(w_q: Tensor, w_k: Tensor, *, order: str | int = "fro") -> Tensor:
    """Returns κ = ‖W_Q W_Kᵀ‖ per head [H]: Frobenius, or spectral with `order` 2, which is smaller and holds as well.

    The weights are as a linear map stores them, [H, K, D] and [G, K, D] with G key heads; the D × D product is never formed.
    """
    w_q, w_k = w_q.float(), _each_head(w_k.float(), w_q.shape[-3])
    left, right = (torch.linalg.qr(w.mT, mode="r").R for w in (w_q, w_k))
    return torch.linalg.matrix_norm(left @ right.mT, ord=order)


def rotary_weight_norm(w_q: Tensor, w_k: Tensor, *, order: str | int = "fro") -> Tensor:
    """Returns κ = ‖W_Q‖ ‖W_K‖ per head [H], at least `weight_norm`: rotations stand between the two, and change no norm."""
    w_q, w_k = w_q.float(), _each_head(w_k.float(), w_q.shape[-3])
    return torch.linalg.matrix_norm(w_q, ord=order) * torch.linalg.matrix_norm(w_k, ord=order)


def attention_bound(kappa: Tensor, size: Tensor, change: Tensor, *, head_dim: int) -> Tensor:
    """Returns ½ (2 B κ / √d) ‖X_t − X_{t−1}‖_F, the most that ‖A_t − A_{t−1}‖_F can be, per head […, H].

    `kappa` [H] is of the layer; `size` […] is B, the largest ‖X‖_F of its attention inputs (after the norm) over the steps, and
    `change` […] is ‖X_t − X_{t−1}‖_F.
    """
    return SOFTMAX_LIPSCHITZ * 2 * (size * change)[..., None] * kappa / math.sqrt(head_dim)


def query_key_bound(query: Tensor, key: Tensor, query_before: Tensor, key_before: Tensor, *, valid: Tensor | None = None) -> Tensor:
    """Returns (‖Q_t − Q_{t−1}‖_F ‖K_t‖_F + ‖Q_{t−1}‖_F ‖K_t − K_{t−1}‖_F) / 2√d, the bound before weights enter it, […, H].

    Queries are […, H, T, d], keys […, G, T, d]. It holds with rotary positions, biases and norms, and whether they are seen
    before or after they are rotated is the same.
    """
    heads = query.shape[-3]
    key, key_before = _each_head(key, heads), _each_head(key_before, heads)
    moved = _size(query, valid, query_before), _size(key, valid, key_before)
    return bound_of_sizes(moved[0], _size(query_before, valid), _size(key, valid), moved[1], head_dim=query.shape[-1])


def bound_of_sizes(query_moved: Tensor, query_before: Tensor, key: Tensor, key_moved: Tensor, *, head_dim: int) -> Tensor:
    """Returns the bound of `query_key_bound` from ‖Q_t − Q_{t−1}‖_F, ‖Q_{t−1}‖_F, ‖K_t‖_F and ‖K_t − K_{t−1}‖_F, each […, H]."""
    return SOFTMAX_LIPSCHITZ / math.sqrt(head_dim) * (query_moved * key + query_before * key_moved)


def _each_head(x: Tensor, heads: int) -> Tensor:
    """Returns keys or their weights […, G, ·, ·] once for each of the query heads that share them […, H, ·, ·]."""
    if heads % x.shape[-3]:
        raise ValueError(f"attention: {heads} query heads for {x.shape[-3]} key heads; allowed: a multiple")
    return x.repeat_interleave(heads // x.shape[-3], dim=-3)


def _size(x: Tensor, valid: Tensor | None, before: Tensor | None = None) -> Tensor:
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    x = x if before is None else x - before
    return (x if valid is None else x.masked_fill(~valid.bool()[..., None, :, None], 0)).flatten(-2).norm(dim=-1)
