"""Somebody else's looped model, written so that each usual mistake is one overridden method away."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Foreign(nn.Module):
    """One attention block run `depth` times over learned positions, with masks, a cache per step, labels and a depth."""

    def __init__(self, vocabulary: int = 23, width: int = 16) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(64, width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary)
        self.config = SimpleNamespace(vocab_size=vocabulary, max_position_embeddings=64, hidden_size=width)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        past_key_values: dict[int, tuple[Tensor, Tensor]] | None = None,
        use_cache: bool = False,
        depth: int = 3,
        labels: Tensor | None = None,
    ) -> SimpleNamespace:
        cache = dict(past_key_values or {})
        length = input_ids.shape[1]
        past = cache[0][0].shape[1] if cache else 0
        where = torch.arange(past, past + length) if position_ids is None else position_ids
        x = self.tokens(input_ids) + self.places(where)
        visible = torch.ones(length, past + length).tril(past).bool()[None]
        mask = self.seen(attention_mask)
        if mask is not None:
            visible = visible & mask[:, None, :].bool() | torch.eye(length, past + length, dtype=torch.bool)
        s = self.start(x)
        held = dict(cache)
        for t in range(self.steps(depth)):
            s = self.norm(s + x + self.out(self.attend(s, visible, cache, held, self.slot(t))) + self.pooled(s))
        logits = self.head(s)
        return SimpleNamespace(
            logits=logits, loss=None if labels is None else self.loss(logits, labels), past_key_values=held if use_cache else None
        )

    def attend(self, s: Tensor, visible: Tensor, cache: dict[int, Any], held: dict[int, Any], slot: int) -> Tensor:
        q, k, v = self.qkv(s).chunk(3, dim=-1)
        if slot in cache:
            k, v = torch.cat([cache[slot][0], k], dim=1), torch.cat([cache[slot][1], v], dim=1)
        held[slot] = (k, v)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=visible)

    # the places where mistakes are made

    def slot(self, t: int) -> int:
        return t

    def seen(self, attention_mask: Tensor | None) -> Tensor | None:
        return attention_mask

    def pooled(self, s: Tensor) -> Tensor:
        return torch.zeros_like(s)

    def steps(self, depth: int) -> int:
        return depth

    def start(self, x: Tensor) -> Tensor:
        return x

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


class Bare(nn.Module):
    """The least there is: ids in, logits out, and causal only because nothing mixes positions."""

    def __init__(self, vocabulary: int = 19) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(vocabulary, 8)
        self.head = nn.Linear(8, vocabulary)

    def forward(self, idx: Tensor) -> Tensor:
        return self.head(torch.tanh(self.table(idx)))
