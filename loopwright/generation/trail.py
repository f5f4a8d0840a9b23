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

from loopwright.generation.exit_rules import mean_state
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.keys.pool import KeyPool, Row
from loopwright.model.passes import mixes_states

if TYPE_CHECKING:
    from loopwright.generation.passes import Passes
    from loopwright.generation.rows import Running


class Trail:
    """Inputs of a row's tokens, and their states after every step, in the pool's storage; captured ticks and passes write there.

    `mixes` says that the mean of a token's states is read out, not the last one.
    """

    def __init__(self, pool: KeyPool, row: Row, *, mixes: bool = False) -> None:
        inputs, states = pool.states
        self.row, self.mixes = row, mixes
        self.input_cell = row.cell(pool.input_stack, 0)
        self.inputs = inputs[self.input_cell : self.input_cell + row.capacity]
        self.after = states[row.cell("core", 0) : row.cell("core", row.steps)].unflatten(0, (row.steps, row.capacity))

    def begin(self, first: int, e: Tensor, s: Tensor) -> None:
        """Keeps inputs and start states [T, D] of the tokens from `first` on."""
        self.inputs[first : first + len(e)], self.after[-1, first : first + len(e)] = e, s

    def keep(self, t: int, first: int, s: Tensor) -> None:
        """Keeps the states [T, D] after step `t` of the tokens from `first` on."""
        self.after[t, first : first + len(s)] = s

    def states(self, t: int, first: int, end: int) -> Tensor:
        """Returns the states [T, D] before step `t` of the tokens from `first` to `end`.

        Those before the first step stand in the place of those after the last, which are made when nobody needs them any more.
        """
        return self.after[t - 1, first:end]

    def cell(self, depth: int) -> int:
        """Returns the cell of the first token's state after so many steps."""
        return self.row.cell("core", (depth - 1) % self.row.steps)


def mean_read(model: LoopedForCausalLM) -> bool:
    """Returns whether a model answers by the mean of its states, by halting weight."""
    return mixes_states(model.config.read_out, model.halting)


def check_mean_read(model: LoopedForCausalLM, what: str) -> None:
    """Raises a ValueError where the mean of states cannot be read of tokens that are not equally deep: `what` asks for such."""
    if not mean_read(model):
        return
    if model.config.coda_layers:
        why = "a coda, whose keys belong to the mean at full depth"
    elif model.halting.reads == "before":
        why = f"halting {model.config.halting['kind']!r}, which reads states before their step"
    else:
        return
    raise ValueError(f"{what}: the model answers by the mean of its states and has {why}; leave it out, or set read_out to 'last'")


def misses_none(run: Running) -> bool:
    """Returns whether all tokens before a row's present one have run its present step: then it can go alone."""
    return run.trail is None or _first_missing(run) == run.offset


def step_trails(passes: Passes, runs: Sequence[Running]) -> None:
    """Runs the next step of each row's present token with all earlier ones that miss it."""
    if not runs:
        return
    first = [_first_missing(run) for run in runs]
    ends, steps = [run.offset + 1 for run in runs], [run.t for run in runs]
    passes.step_trails([_of(run) for run in runs], first, ends, steps)
    for run, a, end in zip(runs, first, ends, strict=True):
        run.t += 1
        run.work += end - a


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

    first, ends = [held(run) for run in runs], [run.offset + 1 for run in runs]
    depths, trails = [run.t for run in runs], [_of(run) for run in runs]
    if any(trail.mixes for trail in trails):
        rows = [run.row for run in runs]
        states = [_read(passes, trail, *place) for trail, *place in zip(trails, depths, first, ends, strict=True)]
        features = passes.features(rows, first, states, depths)
    else:
        features = passes.read_trails(trails, first, ends, depths)
    kept = [y[-keep(run) :] for run, y in zip(runs, features, strict=True)]
    logits = model.lm_head(torch.cat(kept)).split([len(y) for y in kept])
    return list(zip(runs, logits, strict=True))


def _read(passes: Passes, trail: Trail, depth: int, first: int, end: int) -> Tensor:
    """Returns what is read out of the tokens from `first` to `end`."""
    if trail.mixes:
        return mean_state(passes.model, trail.after[:depth, first:end].unbind(0))
    return trail.states(depth, first, end)


def _of(run: Running) -> Trail:
    assert run.trail is not None
    return run.trail
