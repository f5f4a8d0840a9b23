"""A close look at one prompt, with tensors that a trace of many would not keep: paths, all pairs of depths, maps, spectrum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from loopwright.analysis.maps import View, attention_rows
from loopwright.analysis.places import Places
from loopwright.analysis.summary import as_list
from loopwright.analysis.trace import trace
from loopwright.metrics.distance import attention_distances, attention_pair_bytes, residual_pair_bytes
from loopwright.metrics.neurons import KURTOSIS, neuron_moments
from loopwright.metrics.residual import residual_cosines
from loopwright.metrics.spectrum import leading_eigenvalues, turn_frequency
from loopwright.metrics.trajectory import cycle_path, layer_paths
from loopwright.model.config import LoopedConfig
from loopwright.model.context import Pass
from loopwright.model.looped import LoopedForCausalLM
from loopwright.model.span import place_tokens
from loopwright.model.tap import Recorder

PAIR_STEPS = 8
FLOOR_STEPS = 4
FLOOR_TOKENS = 24
FLOOR_LAYERS = 6  # of the core: a model with more gives no floorplan that can be read
KRYLOV = 32


def pair_bytes(config: LoopedConfig, tokens: int, *, steps: int = PAIR_STEPS) -> int:
    """Returns the bytes that comparing all pairs of realised depths holds at once, for one prompt."""
    depths = Places.of(config, steps).count
    return attention_pair_bytes(depths, config.num_attention_heads, tokens) + residual_pair_bytes(
        depths, config.hidden_size, tokens
    )


@torch.no_grad()
def compare_pairs(model: LoopedForCausalLM, input_ids: Tensor, *, steps: int = PAIR_STEPS) -> dict[str, Any]:
    """Returns the matrices over all pairs of realised depths of one prompt [1, T]: attention distance and residual cosine."""
    places, recorder = _record(model, input_ids, steps)
    order = [places.name(i) for i in range(places.count)]
    residuals = torch.stack([recorder.seen["residual", *place] for place in order])
    maps = torch.stack(_maps(model, input_ids, recorder, order))
    return {
        "steps": places.steps,
        "attention": as_list(attention_distances(maps)),
        "residual": as_list(residual_cosines(residuals)),
    }


@torch.no_grad()
def floorplan(
    model: LoopedForCausalLM, input_ids: Tensor, *, steps: int = FLOOR_STEPS, tokens: int = FLOOR_TOKENS
) -> dict[str, Any]:
    """Returns the mean map over heads of every layer of a few steps, of the first tokens of one prompt."""
    ids = input_ids[:, :tokens]
    places, recorder = _record(model, ids, steps)
    found = _maps(model, ids, recorder, [places.name(i) for i in range(places.count)])
    return {"places": asdict(places), "maps": [[[round(x, 4) for x in row] for row in each[0].mean(0).tolist()] for each in found]}


def _record(model: LoopedForCausalLM, input_ids: Tensor, steps: int) -> tuple[Places, Recorder]:
    recorder = Recorder(("query", "key", "residual"))
    trace(model, input_ids, steps if model.config.is_looped else None, collect=(), edit=recorder)
    return Places.of(model.config, steps), recorder


def _maps(model: LoopedForCausalLM, input_ids: Tensor, recorder: Recorder, order: Sequence[tuple[str, int, int]]) -> list[Tensor]:
    view = View.of(place_tokens(*input_ids.shape, input_ids.device), model.config.sliding_window)
    seen = recorder.seen
    return [_whole(seen["query", *place], seen["key", *place], view) for place in order]


def _whole(q: Tensor, k: Tensor, view: View) -> Tensor:
    return torch.cat([rows.attention for rows in attention_rows(q, k, view)], dim=2)


def token_paths(model: LoopedForCausalLM, input_ids: Tensor, depth: int) -> dict[str, Any]:
    """Returns the path of the last token of one prompt through the core's layers, in two directions: of all layers together, and
    of each layer on its own."""
    found = trace(model, input_ids, depth, collect=(), capture={"residual": [-1]})
    states = found.captured["residual"][0, found.places.looped, 0].unflatten(0, (found.places.steps, found.places.core))
    if not states.isfinite().all():
        return {}
    whole, each = cycle_path(states), layer_paths(states)
    return {"points": as_list(whole.coordinates), "explained": as_list(whole.explained), "layers": as_list(each.coordinates)}


@torch.no_grad()
def spectrum(model: LoopedForCausalLM, input_ids: Tensor, depths: Sequence[int], *, seed: int = 0) -> dict[str, Any]:
    """Returns the leading eigenvalues of the core's derivative at the state after each of some depths, for one prompt."""
    e, p = model.embed(input_ids)
    wanted = {depth: s for depth, s in enumerate(model.unroll(e, max(depths), p), start=1) if depth in set(depths)}
    values = [
        leading_eigenvalues(_map(model, e, p, depth - 1), s.float(), krylov=KRYLOV, seed=seed)[0] for depth, s in wanted.items()
    ]
    return {
        "depths": list(wanted),
        "radius": as_list(torch.stack([each.abs().max() for each in values])),
        "frequency": as_list(torch.stack([turn_frequency(each)[0] for each in values])),
        "eigenvalues": [[[z.real, z.imag] for z in each.tolist()] for each in values],
    }


def _map(model: LoopedForCausalLM, e: Tensor, p: Pass, t: int) -> Callable[[Tensor], Tensor]:
    return lambda s: model.step(s, e, t, p)


@torch.no_grad()
def neuron_shares(model: LoopedForCausalLM) -> dict[str, Any]:
    """Returns, for each layer of prelude, core and coda, the shares of its neurons that predict and that suppress tokens."""
    gain = model.norm.weight if isinstance(getattr(model.norm, "weight", None), Tensor) else None
    if gain is None and model.config.end_norm == "every":
        gain = model.end_norm.weight
    blocks = [*model.prelude, *model.core, *model.coda]
    shares = [neuron_moments(block.mlp.down_proj.weight, model.lm_head.weight, gain=gain).shares() for block in blocks]
    return {"predict": [a for a, _ in shares], "suppress": [b for _, b in shares], "kurtosis": KURTOSIS}
