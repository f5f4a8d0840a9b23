"""Rows whose tokens are not all equally deep: early exits and drafts. Missing steps of earlier tokens run with the present one.

A token that left the loop after x steps has no keys at step x. The first later token that goes there brings it along: the tokens
that miss a step are always the last ones of the row, so both run as one chunk from the states that were kept. The result is
exactly that of a full pass, and nothing is run that nobody needs. The coda's readings are filled in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from loopwright.engine.passes import Passes
from loopwright.generate.exit_rules import mean_state
from loopwright.model.looped import LoopedForCausalLM

if TYPE_CHECKING:
    from loopwright.engine.running import Running


class Trail:
    """Inputs and newest states of a row's tokens; with a coda, or where the mean of the states is read out (`mixes`), the states
    after every step as well."""

    def __init__(self, capacity: int, steps: int, like: Tensor, *, coda: bool, mixes: bool = False) -> None:
        width = like.shape[-1]
        self.inputs = like.new_zeros(capacity, width)
        self.newest = like.new_zeros(capacity, width)
        self.after = like.new_zeros(steps, capacity, width) if coda or mixes else None
        self.mixes = mixes

    def begin(self, first: int, e: Tensor, s: Tensor) -> None:
        """Keeps inputs and start states [T, D] of the tokens from `first` on."""
        self.inputs[first : first + len(e)], self.newest[first : first + len(e)] = e, s

    def keep(self, t: int, first: int, s: Tensor) -> None:
        """Keeps the states [T, D] after step `t` of the tokens from `first` on."""
        self.newest[first : first + len(s)] = s
        if self.after is not None:
            self.after[t, first : first + len(s)] = s


def step_trails(passes: Passes, runs: Sequence[Running]) -> list[tuple[Running, Tensor, Tensor]]:
    """Runs the next step of each row's present token with all earlier ones that miss it; returns its state before and after."""
    if not runs:
        return []
    first = [_first_missing(run) for run in runs]
    states = [_of(run).newest[a : run.offset + 1] for run, a in zip(runs, first, strict=True)]
    inputs = [_of(run).inputs[a : run.offset + 1] for run, a in zip(runs, first, strict=True)]
    before = torch.stack([s[-1] for s in states])
    made = passes.step([run.row for run in runs], first, states, inputs, [run.t for run in runs])
    for run, a, new in zip(runs, first, made, strict=True):
        _of(run).keep(run.t, a, new)
        run.t += 1
        run.work += len(new)
    return [(run, old, new[-1]) for run, old, new in zip(runs, before, made, strict=True)]


def _first_missing(run: Running) -> int:
    """Returns the first of a row's tokens that has not run the present step."""
    return run.row.held("core", run.t)


def read_trails(passes: Passes, runs: Sequence[Running], keep: Callable[[Running], int]) -> list[tuple[Running, Tensor]]:
    """Returns the logits [keep, V] of each row's last tokens after `run.t` steps; the coda fills what earlier tokens miss there."""
    if not runs:
        return []
    model, coda = passes.model, bool(passes.pool.layers["coda"])

    def held(run: Running) -> int:
        return run.row.held("coda", run.row.readings.index(run.t)) if coda else run.offset + 1 - keep(run)

    first = [held(run) for run in runs]
    states = [_states(model, run, a) for run, a in zip(runs, first, strict=True)]
    features = passes.features([run.row for run in runs], first, states, [run.t for run in runs])
    kept = [y[-keep(run) :] for run, y in zip(runs, features, strict=True)]
    logits = model.lm_head(torch.cat(kept)).split([len(y) for y in kept])
    return list(zip(runs, logits, strict=True))


def _states(model: LoopedForCausalLM, run: Running, first: int) -> Tensor:
    """Returns what is read out of the tokens from `first` to the present one."""
    trail, end = _of(run), run.offset + 1
    if trail.mixes:
        assert trail.after is not None
        return mean_state(model, trail.after[: run.t, first:end].unbind(0))
    states = trail.newest if trail.after is None else trail.after[run.t - 1]
    return states[first:end]


def _of(run: Running) -> Trail:
    assert run.trail is not None
    return run.trail
