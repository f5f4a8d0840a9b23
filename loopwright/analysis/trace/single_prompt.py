"""A close look at one prompt, with tensors that a trace of many would not keep: paths, all pairs of depths, maps, spectrum."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from loopwright.analysis.summary import as_list
from loopwright.analysis.trace.collect import Seen, View, attention_rows
from loopwright.analysis.trace.edit import check_edit
from loopwright.analysis.trace.places import Places
from loopwright.analysis.trace.trace import trace
from loopwright.metrics.attention import attention_distances, attention_pair_bytes, residual_pair_bytes
from loopwright.metrics.predictions import KURTOSIS, neuron_moments
from loopwright.metrics.spectrum import leading_eigenvalues, turn_frequency
from loopwright.metrics.states import cycle_path, layer_paths, prompt_path, residual_cosines
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.config import LoopedConfig
from loopwright.model.passes import Pass
from loopwright.model.span import place_tokens
from loopwright.model.taps import Recorder, Tap

PAIR_STEPS = 8
PAIR_PROMPTS = 8  # whose matrices are averaged, one prompt at a time
FLOOR_MAPS = 96  # of a floorplan: fewer steps of a larger core, and of a yet larger model none
FLOOR_STEPS = 4
FLOOR_TOKENS = 24
HEAD_ROWS, HEADS, HEAD_TOKENS = 20, 8, 16  # of a floorplan of single heads, likewise
KRYLOV = 32
COPIES = 2  # of what is compared: as it was seen, and side by side in float32


def pair_bytes(config: LoopedConfig, tokens: int, *, steps: int = PAIR_STEPS, dtype: torch.dtype = torch.float32) -> int:
    """Returns the bytes that comparing all pairs of realised depths holds at once: residuals, queries and keys of one prompt, and
    the maps of one head."""
    depths = Places.of(config, steps).count
    keyed = (config.num_attention_heads + config.num_key_value_heads) * config.head_dim
    seen = depths * tokens * (config.hidden_size + keyed) * dtype.itemsize
    maps = attention_pair_bytes(depths, 1, tokens)
    return seen + COPIES * (maps + residual_pair_bytes(depths, config.hidden_size, tokens))


def path_bytes(config: LoopedConfig, tokens: int, depth: int) -> int:
    """Returns the bytes that the path of a whole prompt holds at once: all its states, which are decomposed in float64."""
    return 4 * residual_pair_bytes(depth, config.hidden_size, tokens, number_bytes=8) if config.is_looped else 0


@torch.no_grad()
def compare_pairs(
    model: LoopedForCausalLM, prompts: Sequence[Sequence[int]], *, steps: int = PAIR_STEPS, edit: Tap | None = None
) -> dict[str, Any]:
    """Returns the matrices over all pairs of realised depths, attention distance and residual cosine, as means over prompts."""
    attention, residual = [], []
    for row in prompts:
        ids = torch.tensor([list(row)], device=model.device)
        places, recorder = _record(model, ids, steps, edit)
        order = [places.name(i) for i in range(places.count)]
        residual.append(residual_cosines(torch.stack([recorder.seen["residual", *place] for place in order])))
        attention.append(_head_distances(model, ids, recorder, order))
    return {
        "steps": places.steps,
        "prompts": len(prompts),
        "attention": as_list(torch.stack(attention).mean(0), digits=4),
        "residual": as_list(torch.stack(residual).mean(0), digits=4),
    }


def _head_distances(model: LoopedForCausalLM, input_ids: Tensor, recorder: Recorder, order: Sequence[Seen]) -> Tensor:
    """Returns the mean over heads of the distances between all maps; one head's maps at a time, for memory's sake."""
    heads, view = model.config.num_attention_heads, _view(model, input_ids)
    shared = heads // model.config.num_key_value_heads
    each = []
    for head in range(heads):
        pairs = [(recorder.seen["query", *at][:, :, [head]], recorder.seen["key", *at][:, :, [head // shared]]) for at in order]
        each.append(attention_distances(torch.stack([_whole(*pair, view) for pair in pairs])))
    return torch.stack(each).mean(0)


@torch.no_grad()
def floorplan(
    model: LoopedForCausalLM, input_ids: Tensor, *, steps: int = FLOOR_STEPS, tokens: int = FLOOR_TOKENS, edit: Tap | None = None
) -> dict[str, Any]:
    """Returns the mean map over heads of every layer of a few steps, of the first tokens of one prompt."""
    ids = input_ids[:, :tokens]
    places, maps = _maps(model, ids, steps, edit)
    return {"places": asdict(places), "maps": [as_list(each.mean(0), digits=3) for each in maps]}


@torch.no_grad()
def floorplan_heads(model: LoopedForCausalLM, input_ids: Tensor, depth: int, *, edit: Tap | None = None) -> dict[str, Any]:
    """Returns the maps of some heads of every layer, of as many steps and tokens as can be told apart; nothing where none can."""
    config, ids = model.config, input_ids[:, :HEAD_TOKENS]
    steps = floor_steps(config, depth, HEAD_ROWS)
    if not steps:
        return {}
    places, maps = _maps(model, ids, steps, edit)
    count = min(config.num_attention_heads, HEADS)
    heads = [h * config.num_attention_heads // count for h in range(count)]
    return {"places": asdict(places), "heads": heads, "maps": [as_list(each[heads], digits=2) for each in maps]}


def floor_steps(config: LoopedConfig, depth: int, most: int = FLOOR_MAPS) -> int:
    """Returns how many steps of a model a floorplan shows: so many that `most` layers as run are not passed, 0 where one step is
    more than can be told apart."""
    steps = range(1, min(FLOOR_STEPS, depth) + 1)
    return max((n for n in steps if Places.of(config, n).count <= most), default=0)


def _maps(model: LoopedForCausalLM, input_ids: Tensor, steps: int, edit: Tap | None) -> tuple[Places, list[Tensor]]:
    """Returns the attention maps [H, T, T] of every layer as run, of one prompt."""
    places, recorder = _record(model, input_ids, steps, edit)
    seen, view, order = recorder.seen, _view(model, input_ids), map(places.name, range(places.count))
    return places, [_whole(seen["query", *at], seen["key", *at], view)[0] for at in order]


def _record(model: LoopedForCausalLM, input_ids: Tensor, steps: int, edit: Tap | None) -> tuple[Places, Recorder]:
    recorder = Recorder(("query", "key", "residual"))

    def tap(name: str, value: Tensor, *, stack: str, step: int | Tensor, layer: int) -> Tensor:
        # no chain, of which a trace would refuse an edit of a later step: these are the first steps of a longer pass
        if edit is not None:
            value = edit(name, value, stack=stack, step=step, layer=layer)
        return recorder(name, value, stack=stack, step=step, layer=layer)

    trace(model, input_ids, steps if model.config.is_looped else None, collect=(), edit=tap)
    return Places.of(model.config, steps), recorder


def _view(model: LoopedForCausalLM, input_ids: Tensor) -> View:
    return View.of(place_tokens(input_ids.shape[0], input_ids.shape[1], input_ids.device), model.config.sliding_window)


def _whole(q: Tensor, k: Tensor, view: View) -> Tensor:
    return torch.cat([rows.attention for rows in attention_rows(q, k, view)], dim=2)


@torch.no_grad()
def state_paths(model: LoopedForCausalLM, input_ids: Tensor, depth: int, *, edit: Tap | None = None) -> dict[str, Any]:
    """Returns paths of one prompt in two directions: of its last token through the core's layers, all layers together and each on
    its own, and of the state of the whole prompt from its start on. Nothing where a state is not finite."""
    traced = trace(model, input_ids, depth, collect=(), capture={"residual": [-1]}, edit=edit)
    states = traced.captured["residual"][0, traced.places.looped, 0].unflatten(0, (traced.places.steps, traced.places.core))
    e, p = model.embed(input_ids, tap=edit)
    start = model.start_state(e, p)
    flat = torch.stack([s[0].cpu() for s in (start, *model.unroll(e, depth, p, state=start))])
    if not states.isfinite().all() or not flat.isfinite().all():
        return {}
    whole, each, prompt = cycle_path(states), layer_paths(states), prompt_path(flat)
    return {
        "points": as_list(whole.coordinates),
        "explained": as_list(whole.explained),
        "layers": as_list(each.coordinates),
        "prompt": as_list(prompt.coordinates),
        "prompt_explained": as_list(prompt.explained),
    }


@torch.no_grad()
def spectrum(
    model: LoopedForCausalLM, input_ids: Tensor, depths: Sequence[int], *, seed: int = 0, edit: Tap | None = None
) -> dict[str, Any]:
    """Returns the leading eigenvalues of the core's derivative at the state after each of some depths, for one prompt; None where
    they are not finite."""
    check_edit(edit, model.config, max(depths))
    e, p = model.embed(input_ids, tap=edit)
    wanted = {depth: s for depth, s in enumerate(model.unroll(e, max(depths), p), start=1) if depth in set(depths)}
    values = [
        leading_eigenvalues(_map(model, e, p, depth - 1), s.float(), krylov=KRYLOV, seed=seed)[0] for depth, s in wanted.items()
    ]
    return {
        "depths": list(wanted),
        "radius": as_list(torch.stack([each.abs().max() for each in values])),
        "frequency": as_list(torch.stack([turn_frequency(each)[0] for each in values])),
        "eigenvalues": [as_list(torch.view_as_real(each)) for each in values],
    }


def _map(model: LoopedForCausalLM, e: Tensor, p: Pass, t: int) -> Callable[[Tensor], Tensor]:
    return lambda s: model.step(s, e, t, p)


@torch.no_grad()
def neuron_shares(model: LoopedForCausalLM) -> dict[str, Any]:
    """Returns, for each layer of prelude, core and coda, the shares of its neurons that predict and that suppress tokens."""
    gain: Any = model.norm.weight if isinstance(getattr(model.norm, "weight", None), Tensor) else None
    if gain is None and model.config.end_norm == "every":
        gain = model.end_norm.weight
    shares = []
    for block in [*model.prelude, *model.core, *model.coda]:
        # what a neuron writes passes the output norm of its own block, too (Ouro, OLMo-2)
        gains = [each for each in (gain, getattr(block.mlp_norms.output, "weight", None)) if each is not None]
        out = math.prod(each.float() for each in gains) if gains else None
        shares.append(neuron_moments(block.mlp.down_proj.weight, model.lm_head.weight, gain=out).shares())
    return {"predict": [a for a, _ in shares], "suppress": [b for _, b in shares], "kurtosis": KURTOSIS}
