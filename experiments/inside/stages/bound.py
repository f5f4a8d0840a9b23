"""Proposition 4.2's own bound on trained models: how far maps move from step to step, and how far the proposition lets them.

The proposition speaks of X, the input of attention after its norm, which passes no tap, and of B, known only after the last step: a
pass keeps every X, query and key of one prompt. With rotary positions its κ = ‖W_Q W_Kᵀ‖ is outside of what is proved; ‖W_Q‖ ‖W_K‖
in its place is inside. Both are spectral norms, the smallest that the proof allows beside Frobenius norms of X.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from loopwright.analysis.summary import as_list
from loopwright.analysis.trace.collect import View, attention_rows
from loopwright.metrics.attention import attention_bound, attention_distance, query_key_bound, rotary_weight_norm, weight_norm
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.span import place_tokens
from loopwright.model.taps import Recorder

KINDS = ("change", "queries and keys", "proposition", "proposition without rotations")


@dataclass(frozen=True)
class Moves:
    """Of one prompt, per step from the second on, layer of the core and head [S − 1, L, H]: how far maps move, and three bounds."""

    change: Tensor
    query_key: Tensor
    rotary: Tensor
    printed: Tensor


@torch.no_grad()
def moves(model: LoopedForCausalLM, row: Sequence[int], depth: int) -> Moves:
    """Returns how far the maps of a prompt move over so many steps, and how far they could."""
    need_plain(model)
    inputs: dict[int, list[Tensor]] = defaultdict(list)
    core = model.core
    hooks = [
        block.self_attn.register_forward_pre_hook(lambda _, given, layer=layer: inputs[layer].append(given[0]))
        for layer, block in enumerate(core)
    ]  # one module runs many times, step after step
    seen = Recorder(("query", "key"))
    ids = torch.tensor([list(row)], device=model.device)
    try:
        model(ids, depth=depth, tap=seen, logits_to_keep=1, use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    view = View.of(place_tokens(1, len(row), ids.device), model.config.sliding_window)
    layers = [_layer(block.self_attn, torch.cat(inputs[layer]), seen, layer, view) for layer, block in enumerate(core)]
    return Moves(*(torch.stack(each, 1).cpu() for each in zip(*layers, strict=True)))


def _layer(attention: Any, inputs: Tensor, seen: Recorder, layer: int, view: View) -> tuple[Tensor, ...]:
    """Returns change and bounds of one layer, each [S − 1, H], from its inputs [S, T, D]."""
    sizes, changes = inputs.flatten(1).norm(dim=1), inputs.diff(dim=0).flatten(1).norm(dim=1)
    width = attention.head_dim
    weights = [each.weight.unflatten(0, (-1, width)) for each in (attention.q_proj, attention.k_proj)]
    bounds = [
        attention_bound(norm(*weights, order=2), sizes.max(), changes, head_dim=width) for norm in (rotary_weight_norm, weight_norm)
    ]
    change, query_key = [], []
    before: tuple[Tensor, Tensor, Tensor] | None = None
    for step in range(len(inputs)):
        q, k = seen.seen["query", "core", step, layer], seen.seen["key", "core", step, layer]
        now = q, k, torch.cat([rows.attention for rows in attention_rows(q, k, view)], dim=2)
        if before is not None:
            change.append(attention_distance(before[2], now[2])[0])
            pairs = [x.transpose(1, 2) for x in (*now[:2], *before[:2])]
            query_key.append(query_key_bound(*pairs)[0])
        before = now
    return torch.stack(change), torch.stack(query_key), *bounds


def need_plain(model: LoopedForCausalLM) -> None:
    """Raises a ValueError where the proposition does not speak of the model's attention."""
    config = model.config
    if not config.is_looped:
        raise ValueError("bound: the model is dense and has one step; take a looped one")
    if config.qk_norm != "none" or {"q", "k"} & set(config.attention_bias):
        raise ValueError("bound: queries and keys have norms or biases, which the proposition leaves out; take a model without")


def bounds(model: LoopedForCausalLM, rows: Sequence[Sequence[int]], depth: int) -> dict[str, Any]:
    """Returns, over prompts, layers and heads: means by step, how often each bound is broken, and how often it says anything.

    Two maps of T tokens are never farther apart than √(2T): a larger bound says nothing.
    """
    means = torch.zeros(len(KINDS), depth - 1, dtype=torch.float64)
    broken, telling = torch.zeros(3, dtype=torch.float64), torch.zeros(3, depth - 1, dtype=torch.float64)
    for row in rows:
        found = moves(model, row, depth)
        each = torch.stack([found.change, found.query_key, found.rotary, found.printed]).double()
        means += each.mean((2, 3)) / len(rows)
        broken += (each[0] > each[1:] * (1 + 1e-5) + 1e-5).double().mean((1, 2, 3)) / len(rows)
        telling += (each[1:] < (2 * len(row)) ** 0.5).double().mean((2, 3)) / len(rows)
    return {
        "kinds": list(KINDS), "prompts": len(rows), "means": as_list(means, digits=4), "broken": as_list(broken),
        "telling": as_list(telling, digits=3),
    }  # fmt: skip
