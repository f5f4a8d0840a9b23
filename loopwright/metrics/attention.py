"""What attention maps say about mixing: how concentrated the received attention is, where it sinks, how wide the rows look.

Maps A are […, H, T, T], rows are queries and sum to 1; logarithms are natural and 0 log 0 = 0. `valid` […, T] says which tokens
are real (None: all): rows and columns of the others are dropped first, so T counts the real ones. Numbers are computed in
float32 or wider. Where no token is real they are NaN.

A whole map is needed for none of them: `attention_sums` of blocks of rows add up, and `attention_reading` turns the sums into a
few numbers per head.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

SINK = 0.3  # a head sinks into a token whose sink score is above this


# sums over rows


def kept_rows(rows: Tensor, valid: Tensor | None, valid_rows: Tensor | None = None) -> Tensor:
    """Returns rows […, H, R, T] in float32 or wider, with zeros where the query or the key is no real token."""
    rows = rows.to(torch.promote_types(rows.dtype, torch.float32))
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

    def first_sink_rate(self, threshold: float = SINK) -> Tensor:
        """Returns the share of heads that sink into the first real token […]: the sink rate that is usually drawn."""
        return (self.first_sink > threshold).to(self.mixing.dtype).mean(-1)

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
