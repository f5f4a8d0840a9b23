"""Grouped-query attention: rotary (half-split or interleaved pairs), q/k norm, biases, one call to SDPA."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from loopwright.model.config import LoopedConfig
from loopwright.model.forward.context import Pass, Place
from loopwright.model.forward.traced import may_be_kept
from loopwright.model.layers.norm import build_norm
from loopwright.model.parts.adapter.effects import Adaptation, project


class Rotary:
    """The rotation angles of a config. Not a module: its table is derived, so it is neither saved, cast nor moved."""

    def __init__(self, config: LoopedConfig) -> None:
        self.config = config
        self.interleaved = config.rope_layout == "interleaved"
        self._tables: dict[torch.device, tuple[Tensor, float]] = {}

    def table(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Returns cos and signed sin, [B or 1, T, 1, K], for positions [B or 1, T]; see `rotate`.

        Interleaved pairs (Huginn) are rotated in float32, half-split ones (Llama, Ouro) in the activation dtype, as the
        released models do.
        """
        frequencies, scale = self._kept(positions.device)
        angle = (positions.float()[..., None] * frequencies)[:, :, None]
        keep = torch.float32 if self.interleaved else dtype
        cos, sin = (angle.cos() * scale).to(keep), (angle.sin() * scale).to(keep)
        if self.interleaved:
            return torch.stack([cos, cos], dim=-1).flatten(-2), torch.stack([-sin, sin], dim=-1).flatten(-2)
        return torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)

    def _kept(self, device: torch.device) -> tuple[Tensor, float]:
        """Returns the frequencies on a device and the scale, made once; those that stand for others are made anew."""
        if device in self._tables:
            return self._tables[device]
        made = inverse_frequencies(self.config, device)
        if may_be_kept(made[0]):
            self._tables[device] = made
        return made


def inverse_frequencies(config: LoopedConfig, device: torch.device) -> tuple[Tensor, float]:
    """Returns the K/2 inverse frequencies and the scale of cos and sin (1 but for yarn)."""
    kind = config.rope_parameters["rope_type"]
    if kind != "default":
        frequencies, scale = ROPE_INIT_FUNCTIONS[kind](config, device)
        return frequencies.to(device), scale
    exponent = torch.arange(0, config.head_dim, 2, dtype=torch.int64, device=device).float() / config.head_dim
    return 1.0 / (config.rope_parameters["rope_theta"] ** exponent), 1.0


def rotate(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool) -> Tensor:
    """Returns x [B, T, H, K] with each pair (a, b) of channels turned: a·cos + b·(−sin), b·cos + a·sin.

    A pair is two neighbours (interleaved) or a channel and the one half a head away; `sin` carries the signs, so that the
    whole rotation is x·cos + partner(x)·sin.
    """
    if interleaved:
        partner = x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
        return (x * cos + partner * sin).to(x.dtype)  # cos and sin are float32, and so is what is between
    return x * cos + x.roll(x.shape[-1] // 2, dims=-1) * sin


def attend(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, causal: bool, dropout: float = 0.0) -> Tensor:
    """Returns softmax(q kᵀ / √K) v for q [B, T, H, K] and k, v [B, N, Hk, K]."""
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    return attend_heads(q, k, v, mask=mask, causal=causal, dropout=dropout).transpose(1, 2)


def attend_heads(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, causal: bool, dropout: float = 0.0) -> Tensor:
    """Returns the same where heads stand before tokens: q [B, H, T, K] and k, v [B, Hk, N, K]."""
    grouped = bool(q.shape[1] != k.shape[1])  # torch.jit.trace has tensors for sizes
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, dropout_p=dropout, enable_gqa=grouped)


def attend_with_map(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, causal: bool, dropout: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Returns what `attend` does, and the map softmax(q kᵀ / √K) [B, H, T, N] before dropout, which SDPA does not give.

    The result is made from the map, so that gradients reach it; it agrees with SDPA's to rounding.
    """
    groups = q.shape[2] // k.shape[2]
    query, key, value = q.transpose(1, 2), *(x.transpose(1, 2).repeat_interleave(groups, dim=1) for x in (k, v))
    kind = torch.promote_types(q.dtype, torch.float32)
    scores = query.to(kind) @ key.to(kind).transpose(-1, -2) * q.shape[-1] ** -0.5
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1), float("-inf"))
    elif mask is not None:
        scores = scores + mask
    weights = scores.softmax(-1).to(q.dtype)
    return (F.dropout(weights, dropout) @ value).transpose(1, 2), weights


def attend_in(p: Pass, place: Place, q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
    """Returns what queries find among keys of the same rows under the mask of a pass, which may want to keep the map."""
    if p.blocks is not None:
        from loopwright.model.layers.block_mask import attend_blocks  # torch's compiler comes with it

        return attend_blocks(q, k, v, p.blocks)
    if p.outputs is None or p.outputs.maps is None:
        return attend(q, k, v, mask=p.mask, causal=p.causal, dropout=dropout)
    y, p.outputs.maps[place] = attend_with_map(q, k, v, mask=p.mask, causal=p.causal, dropout=dropout)
    return y


class Attention(nn.Module):
    """Self-attention over [B, T, D], with Llama's names for its projections."""

    def __init__(self, config: LoopedConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.dropout = config.dropout
        self.interleaved = config.rope_layout == "interleaved"
        width, query = config.hidden_size, config.num_attention_heads * config.head_dim
        key = config.num_key_value_heads * config.head_dim
        bias = config.attention_bias
        self.q_proj = nn.Linear(width, query, bias="q" in bias)
        self.k_proj = nn.Linear(width, key, bias="k" in bias)
        self.v_proj = nn.Linear(width, key, bias="v" in bias)
        self.o_proj = nn.Linear(query, width, bias="o" in bias)
        self.full_width_norm = config.qk_norm == "full"
        if config.qk_norm != "none":
            self.q_norm = build_norm(config.norm, query if self.full_width_norm else config.head_dim)
            self.k_norm = build_norm(config.norm, key if self.full_width_norm else config.head_dim)
        self.has_norm = config.qk_norm != "none"

    def forward(self, x: Tensor, p: Pass, place: Place, adapt: Adaptation | None) -> Tensor:
        linears = {"q_proj": self.q_proj, "k_proj": self.k_proj, "v_proj": self.v_proj}
        q, k, v = project(linears, x, place.layer, adapt)
        v = v.unflatten(-1, (-1, self.head_dim))
        if self.has_norm and self.full_width_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = q.unflatten(-1, (-1, self.head_dim)), k.unflatten(-1, (-1, self.head_dim))
        if self.has_norm and not self.full_width_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        if p.rotary is not None:
            cos, sin = p.rotary
            q = rotate(q, cos, sin, interleaved=self.interleaved)
            k = rotate(k, cos, sin, interleaved=self.interleaved)
        q, k = p.see("query", q, place), p.see("key", k, place)
        dropout = self.dropout if self.training else 0.0
        if p.cache is None:
            y = attend_in(p, place, q, k, v, dropout)
        else:  # who keeps the keys decides who attends to them
            y = p.cache.attend(place, q, k, v, p, dropout)
        return project({"o_proj": self.o_proj}, y.flatten(2), place.layer, adapt)[0]
