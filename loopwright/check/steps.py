"""Equalities over steps: depth does what it says, the state starts the same each time, watching changes nothing."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from loopwright.check.probes import DEPTH_NAMES, STATE_NAMES, WIDTH_NAMES, Probe
from loopwright.check.verdict import NotOfferedError, Tally, Verdict
from loopwright.model.forward.selection import Answers
from loopwright.model.looped import LoopedForCausalLM
from loopwright.model.tap import OF_PARTS, POINTS, Recorder


def initial_state(probe: Probe) -> Verdict:
    """Two calls = the same bits, whatever the global generator; the same seed = the same state, with or without batch mates."""
    tally, ids = probe.tally(), probe.ids(3)
    answers = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        answers.append(probe.call_unseeded(ids).logits)
    tally.same("two calls, the global generator in two states", answers[1], answers[0])
    name = probe.argument(STATE_NAMES)
    if probe.own is not None and probe.depth is not None:
        _own_state(probe, probe.own, tally, ids)
    elif probe.own is None and name is not None:
        _given_state(probe, tally, ids, name)
    else:
        tally.notes.append("no initial state to set")
    return tally.verdict()


def _own_state(probe: Probe, model: LoopedForCausalLM, tally: Tally, ids: Tensor) -> None:
    e, p = model.embed(ids)
    state = model.start_state(e, p)
    want = probe.logits(ids)
    tally.same("the model's own state given as initial_state", probe.logits(ids, options={"initial_state": state}), want)
    tally.differ("another initial_state", probe.logits(ids, options={"initial_state": state + 1}), want)
    if not model.state.seeded:
        return
    seeds = torch.tensor([7, 8, 9], device=ids.device)
    by_row = model.start_state(e, p, seeds)
    tally.same("one seed per row, drawn again", model.start_state(e, p, seeds), by_row)
    tally.differ("state_seed 7 and 8", by_row[:1], by_row[1:2])
    few = ids.shape[1] // 2
    for row, seed in enumerate(seeds.tolist()):
        alone, short = model.embed(ids[row : row + 1, :few])
        tally.same(
            f"seed {seed}, fewer tokens and no batch mates", model.start_state(alone, short, seed), by_row[row : row + 1, :few]
        )
    seeded = probe.logits(ids, options={"state_seed": seeds})
    tally.close("state_seed of a row, alone", probe.logits(ids[1:2], options={"state_seed": 8}), seeded[1:2])


def _given_state(probe: Probe, tally: Tally, ids: Tensor, name: str) -> None:
    width = next((w for w in (getattr(probe.config, n, None) for n in WIDTH_NAMES) if isinstance(w, int)), None)
    if width is None:
        tally.notes.append(f"{name} not tried: the config does not say how wide a state is")
        return
    zero = torch.zeros(*ids.shape, width, device=ids.device, dtype=probe.dtype)
    want = probe.logits(ids, options={name: zero})
    tally.same(f"{name} given twice", probe.call_unseeded(ids, options={name: zero}).logits, want)
    tally.differ(f"another {name}", probe.logits(ids, options={name: zero + 1}), want)


def depth_honesty(probe: Probe) -> Verdict:
    """Depth d = d steps, d + 1 is not d, and a steps and then b more = a + b steps at once."""
    if probe.own is None:
        return _depth_argument(probe)
    model, tally, ids = probe.need_core(), probe.tally(), probe.ids(2)
    depths = _depths(model)
    states = _states(model, ids, depths[-1])
    answers = []
    for depth in (*depths, None):
        counter = _StepCounter()
        # by the last step: an answer that mixes steps may be complete before
        answers.append(probe.logits(ids, options={"depth": depth, "tap": counter, "select": "last"}))
        want = model.config.depth if depth is None else depth
        asked = "no depth" if depth is None else f"depth {depth}"
        tally.hold(f"{asked} ran steps {counter.steps}, not {want} of them", counter.steps == list(range(want)))
    for depth in depths[1:]:
        tally.differ(f"depth {depth - 1} and {depth}", answers[depth - 2], answers[depth - 1])
    for first in depths[:-1]:
        e, p = model.embed(ids)
        *_, state = model.unroll(e, depths[-1] - first, p, state=states[first - 1], first_step=first)
        tally.same(f"{first} steps, then {depths[-1] - first} more", state, states[-1])
    tally.notes.append(f"depths {depths[0]} to {depths[-1]}, and the default of {model.config.depth}")
    return tally.verdict()


def _depth_argument(probe: Probe) -> Verdict:
    name = probe.argument(DEPTH_NAMES)
    if name is None:
        raise NotOfferedError(f"forward has none of {', '.join(DEPTH_NAMES)}")
    tally, ids = probe.tally(), probe.ids(2)
    answers = [probe.logits(ids, options={name: depth}) for depth in (1, 2, 3)]
    for depth in (2, 3):
        tally.differ(f"{name} {depth - 1} and {depth}", answers[depth - 2], answers[depth - 1])
    tally.notes.append(f"logits at {name} 1, 2 and 3 compared")
    return tally.verdict()


def last_step(probe: Probe) -> Verdict:
    """The answer = what the last state of the loop reads out to, or what the model's own read-out makes of all of them."""
    model, tally, ids = probe.need_core(), probe.tally(), probe.ids(2)
    for depth in _depths(model):
        e, p = model.embed(ids)
        start = model.start_state(e, p)
        answers = Answers(model, e, p, start)
        for s in model.unroll(e, depth, p, state=start):
            answers.take(s)
        last = probe.logits(ids, options={"depth": depth, "select": "last"})
        tally.same(f"depth {depth}, the last step", last, model.read_out(answers.state, p))
        tally.close(f"depth {depth}", probe.logits(ids, options={"depth": depth}), answers.logits())
    return tally.verdict()


def one_sweep(probe: Probe) -> Verdict:
    """The logits and states of each step of one pass (output_steps) = those of a pass that stops there."""
    model, tally, ids = probe.need_core(), probe.tally(), probe.ids(2)
    depths = _depths(model)
    sweep = model(ids, depth=depths[-1], output_steps=True, select="last")
    tally.same("the sweep's answer and its last step", sweep.logits, sweep.step_logits[-1])
    for depth, state in zip(depths, _states(model, ids, depths[-1]), strict=True):
        alone = probe.logits(ids, options={"depth": depth, "select": "last"})
        tally.same(f"logits of step {depth - 1}", sweep.step_logits[depth - 1], alone)
        tally.same(f"state of step {depth - 1}", sweep.states[depth - 1], state)
    return tally.verdict()


def tap(probe: Probe) -> Verdict:
    """Logits with a tap that reads every point = logits without."""
    if probe.own is None:
        raise NotOfferedError("forward has no tap")
    tally, ids, recorder = probe.tally(), probe.ids(2), Recorder()
    tally.same("tap on and off", probe.logits(ids, options={"tap": recorder}), probe.logits(ids))
    owed = set(POINTS) - set(OF_PARTS) - (set() if probe.depth is not None else {"state"})
    unseen = sorted(owed - {name for name, *_ in recorder.seen})
    tally.hold(f"the tap never saw {', '.join(unseen)}", not unseen)
    return tally.verdict()


class _StepCounter:
    """A tap that notes the step of every state that passes."""

    def __init__(self) -> None:
        self.steps: list[Any] = []

    def __call__(self, name: str, value: Tensor, *, stack: str, step: int | Tensor, layer: int) -> Tensor:
        if name == "state":
            self.steps.append(step)
        return value


def _depths(model: LoopedForCausalLM) -> list[int]:
    """Returns the depths to compare: from one to three steps, fewer where per-step tables end before."""
    limit = model.config.max_steps if model.config.beyond_max_steps == "refuse" else None
    return list(range(1, 1 + min(3, limit or 3)))


def _states(model: LoopedForCausalLM, ids: Tensor, depth: int) -> list[Tensor]:
    e, p = model.embed(ids)
    return list(model.unroll(e, depth, p))
