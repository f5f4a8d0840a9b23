"""Attention maps as the model's own attention makes them: SDPA on the values of the identity. What streaming is held against."""

from __future__ import annotations

import torch
from torch import Tensor

import loopwright as lw
from loopwright.model.layers import attend
from loopwright.model.taps import Recorder

Maps = dict[tuple[str, int, int], Tensor]


@torch.no_grad()
def dense_maps(model: lw.LoopedForCausalLM, ids: Tensor, depth: int | None, mask: Tensor | None = None) -> tuple[Maps, Recorder]:
    """Returns the whole map [B, H, T, T] of every place, and everything else that passed the taps."""
    recorder = Recorder()
    _, p = model.embed(ids, attention_mask=mask)
    model(ids, attention_mask=mask, depth=depth, tap=recorder)
    places = [key[1:] for key in recorder.seen if key[0] == "key"]
    maps = {}
    for place in places:
        q, k = recorder.seen["query", *place], recorder.seen["key", *place]
        unit = torch.eye(k.shape[1])[None, :, None].expand(k.shape[0], -1, k.shape[2], -1)
        maps[place] = attend(q, k, unit, mask=p.mask, causal=p.causal).transpose(1, 2)
    return maps, recorder
