"""The residual stream in numbers: its size, its spread, how far one state is from another, and how fast steps shrink.

States are […, T, D]. `valid` […, T] says which tokens are real (None: all); the others never count. Numbers are computed in float32
or wider.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

# per token


def token_norms(x: Tensor) -> Tensor:
    """Returns ‖x_i‖ per token […, T]."""
    return _wide(x).norm(dim=-1)


def token_cosines(a: Tensor, b: Tensor) -> Tensor:
    """Returns a_i · b_i / (‖a_i‖ ‖b_i‖) per token […, T], in [−1, 1]; two zeros are alike (1), one zero is like nothing (0)."""
    a, b = _wide(a), _wide(b)
    sizes_a, sizes_b = a.norm(dim=-1), b.norm(dim=-1)
    # each is brought to norm 1 first: the product of two large norms overflows
    cosine = (_unit(a, sizes_a) * _unit(b, sizes_b)).sum(-1).clamp(-1, 1)
    return torch.where((sizes_a == 0) & (sizes_b == 0), 1.0, cosine)


def token_distances(a: Tensor, b: Tensor) -> Tensor:
    """Returns ‖a_i − b_i‖ / ‖b_i‖ per token […, T]; 0 where both are zero, ∞ where b_i alone is."""
    apart, sizes = token_norms(_wide(a) - _wide(b)), token_norms(b)
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
    return token_mean(token_norms(_wide(b) - _wide(a)), valid)


def residual_cosine(a: Tensor, b: Tensor, *, valid: Tensor | None = None) -> Tensor:
    """Returns (1 / T) Σ_i cos(a_i, b_i) […]."""
    return token_mean(token_cosines(a, b), valid)


def residual_cosines(states: Tensor, valid: Tensor | None = None) -> Tensor:
    """Returns the mean cosine of every pair of states [R, B, T, D] over rows and real tokens, [R, R]; zeros are like nothing."""
    states = _wide(states)
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
    x = _wide(x)
    return (x if valid is None else x.masked_fill(~valid[..., None].bool(), 0)).flatten(1).norm(dim=1)


def _ratio(a: Tensor, b: Tensor) -> Tensor:
    return torch.where((a == 0) & (b == 0), 0.0, a / b)  # what stands still does not move, whatever its size


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _unit(x: Tensor, sizes: Tensor) -> Tensor:
    return x / sizes.clamp(min=torch.finfo(x.dtype).tiny)[..., None]
