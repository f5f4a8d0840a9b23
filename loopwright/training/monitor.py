"""Measuring a run without touching it: the true spectral radius of a step, and how far the state still moves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from loopwright.data.batch import Batch
from loopwright.metrics.spectrum import frobenius_reading, spectral_radius
from loopwright.metrics.states import contraction, relative_step
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.passes import Pass
from loopwright.model.taps import OF_PARTS


def measure(
    model: LoopedForCausalLM, batch: Batch, depth: int, *, rows: int = 4, krylov: int = 32, seed: int = 0
) -> dict[str, float]:
    """Returns what one more step would do to the state after `depth` steps, and how it got there; changes nothing.

    Of the last step's map at that state, on `rows` rows spread over the batch: the spectral radius ρ (`radius_mean`,
    `radius_least`, `radius_largest`) and the mean of ‖Jv‖² for random v of norm 1 (`reading`: what JSRR trains on, not a radius).
    Of all rows: the relative size of the last step (`drift_mean`, `drift_largest`) and, from depth 2 on, the factor by which
    that step is shorter than the one before (`contraction`, geometric mean). Always in the precision of the weights.
    """
    if not model.config.is_looped:
        raise ValueError("monitor: this model has no core, so no step to measure; allowed: core_layers above 0")
    depth = model.config.check_depth(depth)
    with evaluating(model), torch.no_grad(), torch.autocast(batch.input_ids.device.type, enabled=False):
        e, p, states = last_states(model, batch, depth)
        s = states[-1]
        valid = batch.valid if batch.padded else None
        drift = relative_step(states[-2], states[-1], valid)
        chosen = torch.linspace(0, len(batch) - 1, min(rows, len(batch)), device=e.device).round().long()
        f = state_map(model, e[chosen], p.rows(chosen), depth - 1)
        mask = None if valid is None else valid[chosen]
        radius = spectral_radius(f, s[chosen], mask=mask, krylov=krylov, seed=seed)
        numbers = {
            "radius_mean": radius.mean(), "radius_least": radius.min(), "radius_largest": radius.max(),
            "reading": frobenius_reading(f, s[chosen], mask=mask, seed=seed).mean(),
            "drift_mean": drift.mean(), "drift_largest": drift.max(),
        }  # fmt: skip
        if depth > 1:
            numbers["contraction"] = contraction(states, valid).log().mean().exp()
    return dict(zip(numbers, torch.stack([x.double() for x in numbers.values()]).tolist(), strict=True))


def parts_by_step(model: LoopedForCausalLM, batch: Batch, depth: int) -> dict[str, dict[int, float]]:
    """Returns, by step from 1, how far the gate is open (`gate`, mean over tokens and channels) and how large the diagonals of the
    core's adapters are (`diagonal`, root mean square); nothing of what the model does not have. Changes nothing."""
    sums: dict[str, dict[int, list[Tensor]]] = {}
    if not (model.config.is_looped and (model.gate.opens or any(adapter.diagonal for adapter in model.adapters))):
        return {}

    def note(name: str, value: Tensor, *, stack: str, step: int | Tensor, layer: int) -> Tensor:
        if name in OF_PARTS and stack == "core" and isinstance(step, int):
            real = value.float() if not batch.padded else value.float()[batch.valid]
            size = real.mean() if name == "gate" else real.square().mean().sqrt()
            sums.setdefault(name, {}).setdefault(step + 1, []).append(size)
        return value

    with evaluating(model), torch.no_grad():
        e, p = model.embed(batch.input_ids, attention_mask=batch.attention_mask, segment_ids=batch.segment_ids, tap=note)
        for _ in model.unroll(e, depth, p):
            pass
    return {name: {step: float(torch.stack(each).mean()) for step, each in found.items()} for name, found in sorted(sums.items())}


def last_states(model: LoopedForCausalLM, batch: Batch, depth: int) -> tuple[Tensor, Pass, list[Tensor]]:
    """Returns the input, the pass, and the last three states of a batch at a depth (two at depth 1), the start state counted."""
    e, p = model.embed(batch.input_ids, attention_mask=batch.attention_mask, segment_ids=batch.segment_ids)
    states = [model.start_state(e, p)]
    for s in model.unroll(e, depth, p, state=states[0]):
        states = [*states[-2:], s]
    return e, p, states


def state_map(model: LoopedForCausalLM, e: Tensor, p: Pass, t: int) -> Callable[[Tensor], Tensor]:
    """Returns s ↦ the state after step `t` at the input e: the map whose derivative is J."""
    return lambda s: model.step(s, e, t, p)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model without dropout; afterwards every module is in the mode it was in."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
