"""Rows whose tokens are not all equally deep: early exits and drafts. Missing steps of earlier tokens run with the present one.

A token that left the loop after x steps has no keys at step x. The first later token that goes there brings it along: the tokens
that miss a step are always the last ones of the row, so both run as one chunk from the states that were kept. The result is
exactly that of a full pass, and nothing is run that nobody needs. The coda's readings are filled in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from loopwright.generate.exit_rules import mean_state
from loopwright.model.cache.pool import KeyPool
from loopwright.model.cache.rows import PooledRows
from loopwright.model.forward.context import Pass, open_pass
from loopwright.model.looped import LoopedForCausalLM
from loopwright.model.parts.part import RowSteps

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


def step_trails(model: LoopedForCausalLM, pool: KeyPool, runs: Sequence[Running]) -> list[tuple[Running, Tensor, Tensor]]:
    """Runs the next step of each row's present token with all earlier ones that miss it; returns its state before and after."""
    groups = _by_length(runs, lambda run: run.row.held("core", run.t))
    return [moved for length, group in groups for moved in _step_group(model, pool, group, length)]


def _step_group(
    model: LoopedForCausalLM, pool: KeyPool, runs: Sequence[Running], length: int
) -> Iterable[tuple[Running, Tensor, Tensor]]:
    first = [run.offset + 1 - length for run in runs]
    s = torch.stack([_of(run).newest[a : a + length] for run, a in zip(runs, first, strict=True)])
    e = torch.stack([_of(run).inputs[a : a + length] for run, a in zip(runs, first, strict=True)])
    steps = [run.t for run in runs]
    t = steps[0] if len(set(steps)) == 1 else RowSteps(steps, s.device)
    new = model.step(s, e, t, _pass(model, pool, runs, first, length))
    for i, run in enumerate(runs):
        _of(run).keep(run.t, first[i], new[i])
        run.t += 1
        run.work += length
        yield run, s[i, -1], new[i, -1]


def read_trails(
    model: LoopedForCausalLM, pool: KeyPool, runs: Sequence[Running], keep: Callable[[Running], int]
) -> Iterable[tuple[Running, Tensor]]:
    """Yields the logits [keep, V] of each row's last tokens after `run.t` steps; the coda fills what earlier tokens miss there."""
    coda = bool(pool.layers["coda"])

    def held(run: Running) -> int:
        return run.row.held("coda", run.row.readings.index(run.t)) if coda else run.offset + 1 - keep(run)

    for length, group in _by_length(runs, held):
        first = [run.offset + 1 - length for run in group]
        s = torch.stack([_states(model, run, a, length) for run, a in zip(group, first, strict=True)])
        p = _pass(model, pool, group, first, length)
        reading = RowSteps([run.t for run in group], s.device)
        widest = max(keep(run) for run in group)
        logits = model.read_out(s, p, reading=reading, keep=widest)
        for i, run in enumerate(group):
            yield run, logits[i, -keep(run) :]


def _states(model: LoopedForCausalLM, run: Running, first: int, length: int) -> Tensor:
    trail = _of(run)
    if trail.mixes:
        assert trail.after is not None
        return mean_state(model, trail.after[: run.t, first : first + length].unbind(0))
    states = trail.newest if trail.after is None else trail.after[run.t - 1]
    return states[first : first + length]


def _of(run: Running) -> Trail:
    assert run.trail is not None
    return run.trail


def _by_length(runs: Sequence[Running], held: Callable[[Running], int]) -> Iterable[tuple[int, list[Running]]]:
    """Returns the rows grouped by how many tokens they have to run: what is missing, up to the present token."""
    groups: dict[int, list[Running]] = {}
    for run in runs:
        groups.setdefault(run.offset + 1 - held(run), []).append(run)
    return groups.items()


def _pass(model: LoopedForCausalLM, pool: KeyPool, runs: Sequence[Running], first: list[int], length: int) -> Pass:
    cache = PooledRows(pool, [run.row for run in runs], first, length)
    return open_pass(cache.span, model.rotary, model.config.sliding_window, pool.keys["core"].dtype, cache=cache)
