"""What attention maps say: how concentrated the received attention is, where it sinks, how far maps are from one another.

Maps A are […, H, T, T], rows are queries and sum to 1; logarithms are natural and 0 log 0 = 0. `valid` […, T] says which tokens
are real (None: all): rows and columns of the others are dropped first, so T counts the real ones. Numbers are computed in
float32 or wider. Where no token is real they are NaN. A whole map is needed for no mixing number: `attention_sums` of blocks of
rows add up, and `attention_reading` turns the sums into a few numbers per head.

States that hardly move have maps that hardly move: how far apart maps may be is bounded by Proposition 4.2 of "A Mechanistic
Analysis of Looped Language Models". The proposition speaks of X W_Q W_Kᵀ Xᵀ / √d; rotary positions, biases and norms of queries
and keys are outside of it. `rotary_weight_norm` gives a κ under which it holds with rotary positions. `query_key_bound` is not
the proposition's own but one of its kind, from the queries and keys themselves: it holds for every model, and is at most that of
`rotary_weight_norm` where the proposition with it holds.

Stage curves […, n] have one value per layer in order, of any of these numbers. Their x axis is 100 · i / (n − 1) %, so that a block
of 6 layers and a dense model of 16 can be laid over one another and compared.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from loopwright.metrics.score import wide

SINK = 0.3  # a head sinks into a token whose sink score is above this


# sums over rows


def kept_rows(rows: Tensor, valid: Tensor | None, valid_rows: Tensor | None = None) -> Tensor:
    """Returns rows […, H, R, T] in float32 or wider, with zeros where the query or the key is no real token."""
    rows = wide(rows)
    if valid_rows is None:
        valid_rows = valid
    if valid_rows is None:
        return rows
    if valid_rows.shape[-1] != rows.shape[-2]:
        raise ValueError(f"attention: {valid_rows.shape[-1]} valid_rows for {rows.shape[-2]} rows; allowed: one for each")
    real = valid_rows.bool()[..., None, :, None]
    return rows.masked_fill(~(real if valid is None else real & valid.bool()[..., None, None, :]), 0)


@dataclass(frozen=True)
class AttentionSums:
    """What maps leave behind: c_j = Σ_i A_ij, `columns` […, H, T], and Σ_i H(A_i), `entropy` […, H]. Sums of rows add up."""

    columns: Tensor
    entropy: Tensor

    def __add__(self, other: AttentionSums) -> AttentionSums:
        return AttentionSums(self.columns + other.columns, self.entropy + other.entropy)


def attention_sums(rows: Tensor, valid: Tensor | None = None, *, valid_rows: Tensor | None = None) -> AttentionSums:
    """Returns the sums of some rows […, H, R, T]: `valid` […, T] speaks of the keys, `valid_rows` […, R] of the queries.

    For a whole map the queries are the keys, and `valid_rows` is not needed.
    """
    rows = kept_rows(rows, valid, valid_rows)
    return AttentionSums(rows.sum(-2), torch.special.entr(rows).sum((-2, -1)))


def token_count(columns: Tensor, valid: Tensor | None) -> Tensor:
    """Returns the number of real tokens […, 1], which divides per-head numbers […, H]."""
    if valid is None:
        return columns.new_full((1,), columns.shape[-1])
    return valid.bool().sum(-1, keepdim=True).to(columns.dtype)


def concentration_of(columns: Tensor, valid: Tensor | None = None) -> Tensor:
    """Returns the ColSum concentration […, H] of column sums […, H, T]; see `col_sum_concentration`."""
    tokens = token_count(columns, valid)
    entropy = torch.special.entr(columns / tokens[..., None]).sum(-1)
    # a single token receives everything: the limit of one-hot columns, where the formula says 0 / 0
    return torch.where(tokens == 1, 1.0, 1 - entropy / tokens.log())


# whole maps


def col_sum_concentration(attention: Tensor, valid: Tensor | None = None) -> Tensor:
    """Returns C = 1 + (1 / log T) Σ_j (c_j / T) log(c_j / T) with c_j = Σ_i A_ij, per head […, H], in [0, 1].

    0: all tokens receive alike; 1: one token receives everything. Uniform causal rows give c_j = Σ_{i≥j} 1/i, counted from 1.
    """
    return concentration_of(kept_rows(attention, valid).sum(-2), valid)


def sink_score(attention: Tensor, valid: Tensor | None = None) -> Tensor:
    """Returns (1 / T) Σ_i A_ik, the share of the attention that token k receives, per head and token […, H, T]; padding: 0."""
    columns = kept_rows(attention, valid).sum(-2)
    return columns / token_count(columns, valid)[..., None]


def sink_rate(attention: Tensor, valid: Tensor | None = None, *, threshold: float = SINK) -> Tensor:
    """Returns (1 / H) Σ_h 1(sink score_k > threshold), the share of heads that sink into token k […, T]."""
    return _share(sink_score(attention, valid) > threshold)


def any_sink_rate(attention: Tensor, valid: Tensor | None = None, *, threshold: float = SINK) -> Tensor:
    """Returns the share of heads that sink into some token, whichever […]."""
    return _share((sink_score(attention, valid) > threshold).any(-1, keepdim=True))[..., 0]


def mixing_score(attention: Tensor, valid: Tensor | None = None) -> Tensor:
    """Returns (1 / T) Σ_i H(A_i), the mean entropy of a row in nats, per head […, H], in [0, log T]."""
    rows = kept_rows(attention, valid)
    return torch.special.entr(rows).sum((-2, -1)) / token_count(rows[..., 0], valid)


# a few numbers per head


@dataclass(frozen=True)
class AttentionReading:
    """One layer's map in five numbers per head, each […, H].

    `concentration` and `mixing` as above; `first_sink` is the sink score of the first real token, `top_sink` the largest of
    all, `top_token` (long) the index of its token among the real ones.
    """

    concentration: Tensor
    mixing: Tensor
    first_sink: Tensor
    top_sink: Tensor
    top_token: Tensor

    def any_sink_rate(self, threshold: float = SINK) -> Tensor:
        """Returns the share of heads that sink into some token […]."""
        return (self.top_sink > threshold).to(self.mixing.dtype).mean(-1)


def attention_reading(sums: AttentionSums, valid: Tensor | None = None) -> AttentionReading:
    """Returns the numbers per head of a layer, from the sums over all of its rows."""
    tokens = token_count(sums.columns, valid)
    scores = sums.columns / tokens[..., None]
    top_sink, top_token = scores.max(-1)
    first_sink = scores[..., 0]
    if valid is not None:
        first = valid.long().argmax(-1)[..., None, None].expand(*scores.shape[:-1], 1)
        first_sink = scores.gather(-1, first)[..., 0]
        index = valid.long().cumsum(-1)[..., None, :].expand_as(scores) - 1
        top_token = index.gather(-1, top_token[..., None])[..., 0]
    return AttentionReading(concentration_of(sums.columns, valid), sums.entropy / tokens, first_sink, top_sink, top_token)


def _share(heads: Tensor) -> Tensor:
    # counted, not averaged in float32: a rate is a quotient of whole numbers
    return heads.sum(-2).to(torch.float64) / heads.shape[-2]


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
        some = wide(maps[:, row])
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
    x = wide(x)
    x = x if before is None else x - before
    return (x if valid is None else x.masked_fill(~valid.bool()[..., None, :, None], 0)).flatten(-2).norm(dim=-1)


POINTS = 101  # at which curves are compared: every percent


def relative_depth(layers: int) -> Tensor:
    """Returns where the layers of a curve stand, in percent, [n]; a single one stands at 0."""
    return torch.linspace(0, 100, layers, dtype=torch.float64)


def block_curves(prelude: Tensor, core: Tensor, coda: Tensor) -> Tensor:
    """Returns one curve per step […, S, P + L + C], of values of the prelude […, P], core […, S, L] and coda […, C].

    Prelude and coda run once and stand around every step.
    """
    steps = core.shape[-2]
    around = [x[..., None, :].expand(*x.shape[:-1], steps, x.shape[-1]) for x in (prelude, coda)]
    return torch.cat([around[0], core, around[1]], dim=-1)


def block_halves(curves: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the first and the second half of curves […, n], to overlay them (Figure 40); an odd middle layer is in both."""
    half = (curves.shape[-1] + 1) // 2
    return curves[..., :half], curves[..., -half:]


def resample(curve: Tensor, points: int = POINTS) -> Tensor:
    """Returns curves […, n] at `points` equal steps of relative depth […, points], linear in between, in float64."""
    n = curve.shape[-1]
    if n < 1 or points < 2:
        raise ValueError(f"stages: {n} layers at {points} points; allowed: a layer or more, 2 points or more")
    curve = curve.double()
    if n == 1:
        return curve.expand(*curve.shape[:-1], points)
    place = torch.linspace(0, n - 1, points, dtype=torch.float64, device=curve.device)
    left = place.floor().long().clamp(max=n - 2)
    return torch.lerp(curve[..., left], curve[..., left + 1], place - left)


def curve_distance(a: Tensor, b: Tensor, *, points: int = POINTS) -> Tensor:
    """Returns ∫ |a(x) − b(x)| dx over relative depth x in [0, 1], in units of the metric […]: the mean gap between the curves.

    The curves may have different numbers of layers; leading dimensions broadcast, so one dense curve meets all steps at once.
    """
    gap = (resample(a, points) - resample(b, points)).abs()
    return torch.trapezoid(gap, dx=1 / (points - 1))


def curve_correlation(a: Tensor, b: Tensor, *, points: int = POINTS) -> Tensor:
    """Returns Pearson's correlation of two curves over relative depth […], in [−1, 1]: alike in shape, whatever level and scale.

    NaN where a curve is flat.
    """
    a, b = (x - x.mean(-1, keepdim=True) for x in (resample(a, points), resample(b, points)))
    sizes = a.norm(dim=-1) * b.norm(dim=-1)
    return torch.where(sizes > 0, (a * b).sum(-1) / sizes, torch.nan)
