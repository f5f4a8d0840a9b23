"""The attention of one head of one layer at every step of a pass, and the token into which each head sinks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from loopwright.analysis.trace.edit import Chain
from loopwright.analysis.trace.maps import View, attention_rows
from loopwright.explore.numbers import rounded
from loopwright.explore.passes import unrolled
from loopwright.metrics.attention import SINK, sink_score
from loopwright.model.forward.context import STACKS
from loopwright.model.forward.span import place_tokens
from loopwright.model.looped import LoopedForCausalLM
from loopwright.model.tap import Tap


class LayerRecorder:
    """A tap that keeps the queries and keys of one layer of one stack, by step."""

    def __init__(self, stack: str, layer: int) -> None:
        self.at = (stack, layer)
        self.queries: dict[int, Tensor] = {}
        self.keys: dict[int, Tensor] = {}

    def __call__(self, name: str, value: Tensor, *, stack: str, step: int | Tensor, layer: int) -> Tensor:
        if name in ("query", "key") and (stack, layer) == self.at:
            assert isinstance(step, int)
            (self.queries if name == "query" else self.keys)[step] = value
        return value


@torch.no_grad()
def head_maps(
    model: LoopedForCausalLM, ids: Sequence[int], depth: int, *, stack: str, layer: int, head: int, edit: Tap | None = None
) -> dict[str, Any]:
    """Returns the maps of one head by step, row by row up to the row's own token; and of all heads of the layer the token that
    receives most, with its share. Prelude and coda run once: they have one step (the coda that of the last state)."""
    _check_place(model, stack, layer, head)
    recorder = LayerRecorder(stack, layer)
    through = unrolled(model, ids, depth, edit=recorder if edit is None else Chain((edit, recorder)))
    model.features(through.states[-1], through.p)  # the coda, as the tap sees it
    view = View.of(place_tokens(1, len(ids), model.device), model.config.sliding_window)
    maps, sinks = [], []
    for step, query in sorted(recorder.queries.items()):
        whole = torch.cat([rows.attention for rows in attention_rows(query, recorder.keys[step], view)], dim=2)[0]
        shares = sink_score(whole).max(-1)
        sinks.append(
            [{"token": token, "share": share} for token, share in zip(shares.indices.tolist(), rounded(shares.values), strict=True)]
        )
        maps.append([row[: i + 1] for i, row in enumerate(rounded(whole[head], 3))])
    return {"maps": maps, "sinks": sinks, "sink_above": SINK}


def _check_place(model: LoopedForCausalLM, stack: str, layer: int, head: int) -> None:
    if stack not in STACKS:
        raise ValueError(f"stack: {stack[:40]!r}; allowed: {', '.join(STACKS)}")
    config = model.config
    layers = {"prelude": config.prelude_layers, "core": config.core_layers, "coda": config.coda_layers}[stack]
    if layer >= layers:
        raise ValueError(f"layer must be below {layers}, the layers of the {stack} (got {layer})")
    if head >= config.num_attention_heads:
        raise ValueError(f"head must be below {config.num_attention_heads}, the heads of a layer (got {head})")
