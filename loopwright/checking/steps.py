"""Equalities over steps, plain, on a cache and with early exits.

Depth does what it says, the state starts the same each time, and a tap that only reads changes nothing. What a pass reads of cached
tokens must have been made at the same step and reading: a cache that keeps one set of the coda's keys for all steps, or that counts
a step as run for rows that never ran it, gives wrong answers without an error. A cache may refuse what it does not hold; what it
accepts must be exact. An exit rule that never lets a token leave changes nothing, and tokens that leave early cost no exactness.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from loopwright.checking.probes import DEPTH_NAMES, STATE_NAMES, WIDTH_NAMES, NotOfferedError, Probe, Tally, Verdict
from loopwright.generation.exit_rules import ExitRule, Memory, Never
from loopwright.generation.mixed_depth import check_mean_read
from loopwright.generation.passes import mean_read
from loopwright.generation.request import Request, RequestOptions, Result
from loopwright.generation.scheduler import Scheduler
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.keys.cache import LoopCache
from loopwright.model.passes import Answers, rules_of
from loopwright.model.taps import OF_PARTS, POINTS, Recorder

DEEPEST = 3
CHANGES = ((3, 1), (3, 2), (1, 2), (2, 3))  # of depth between two passes: down and up
PROMPT, PLAN = 4, (1, 3, 2, 3, 1)  # deep tokens after shallow ones need keys that these have not made


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


def _depths(model: LoopedForCausalLM | None) -> range:
    """Returns the depths to compare: from one step on, fewer where per-step tables end before."""
    config = None if model is None else model.config
    limit = None if config is None or config.beyond_max_steps != "refuse" else config.max_steps
    return range(1, 1 + min(DEEPEST, limit or DEEPEST))


def _states(model: LoopedForCausalLM, ids: Tensor, depth: int) -> list[Tensor]:
    e, p = model.embed(ids)
    return list(model.unroll(e, depth, p))


def steps_on_a_cache(probe: Probe) -> Verdict:
    """The logits of every step, and of every select rule, in chunks on a cache = those of one uncached pass."""
    if probe.own is not None:
        probe.need_core()
    for name in ("past_key_values", "output_steps"):
        probe.need(name)
    tally, ids = probe.tally(), probe.ids(2, seed=3)
    half = ids.shape[1] // 2
    sizes = [half, 1, ids.shape[1] - half - 1]
    want = probe.call(ids, options={"output_steps": True}).steps
    got = [answer.steps for answer in probe.cached_answers(ids, [(size, {"output_steps": True}) for size in sizes])]
    if want is None or None in got:
        raise NotOfferedError("forward takes output_steps, but returned no step_logits")
    for t, logits in enumerate(want):
        tally.close(f"step {t}", torch.cat([steps[t] for steps in got if steps is not None], dim=1), logits)
    for select in rules_of(probe.own.halting) if probe.own is not None else ():
        options = {"select": select}
        answers = probe.cached_answers(ids, [(size, options) for size in sizes])
        logits = torch.cat([answer.logits for answer in answers], dim=1)
        tally.close(f"select={select!r}", logits, probe.logits(ids, options=options))
    return tally.verdict()


def depth_on_a_cache(probe: Probe) -> Verdict:
    """A pass at another depth than the cached tokens were run at = an uncached one at that depth, or it is refused."""
    if probe.own is not None:
        probe.need_core()
    probe.need("past_key_values")
    name = probe.argument(DEPTH_NAMES)
    if name is None:
        raise NotOfferedError(f"forward has none of {', '.join(DEPTH_NAMES)}")
    tally, ids, refused = probe.tally(), probe.ids(2, seed=4), 0
    refusals = ValueError if probe.own is not None else Exception  # others' refusals have no one type
    changes = [pair for pair in CHANGES if max(pair) in _depths(probe.own)]
    half = ids.shape[1] // 2
    for before, after in changes:
        answers = probe.cached_answers(ids, [(half, {name: before}), (1, {name: after})])
        next(answers)
        try:
            got = next(answers).logits
        except refusals:
            refused += 1
            continue
        tally.close(f"{name} {before}, then {after}", got, probe.logits(ids[:, : half + 1], options={name: after})[:, half:])
    tried = len(changes)
    if probe.own is not None and tried:
        refused += _rows_at_their_own_steps(probe, probe.own, tally, ids)
        tried += 2
    if not tried:
        raise NotOfferedError("the model has parameters for one step alone")
    tally.notes.append(f"of {tried} changes of {name} {tried - refused} exact, {refused} refused")
    return tally.verdict()


def _rows_at_their_own_steps(probe: Probe, model: LoopedForCausalLM, tally: Tally, ids: Tensor) -> int:
    """Compares passes after a token that ran one step by one index per row; returns how many were refused."""
    half, refused = ids.shape[1] // 2, 0
    for depth in (1, 2):
        cache = _one_index_per_row(model, ids, half)
        try:
            got = model(ids[:, half + 1 :], depth=depth, past_key_values=cache).logits
        except ValueError:
            refused += 1
            continue
        want = probe.logits(ids, options={"depth": depth})[:, half + 1 :]
        tally.close(f"a token at step 0 by one index per row, then depth {depth}", got, want)
    return refused


def _one_index_per_row(model: LoopedForCausalLM, ids: Tensor, half: int) -> LoopCache:
    """Returns a cache of half the tokens at depth 1, and of one more whose single step was given as one index per row."""
    cache = LoopCache(model.config)
    model(ids[:, :half], depth=1, past_key_values=cache)
    e, p = model.embed(ids[:, half : half + 1], cache=cache)
    first = torch.zeros(len(ids), dtype=torch.long, device=ids.device)
    model.read_out(model.step(model.start_state(e, p), e, first, p), p, reading=first + 1)
    cache.advance(p.batch_span)
    return cache


class Planned(ExitRule):
    """Tokens leave after the numbers of steps of a plan, in their order: exits of all sizes, whatever the weights are."""

    def __init__(self, depths: Sequence[int]) -> None:
        self.depths, self.token = depths, -1

    def measure(self, model: LoopedForCausalLM, before: Tensor, after: Tensor, logits: Tensor | None, memory: Memory) -> Tensor:
        if not memory:  # the first step of a token
            self.token += 1
        memory["steps"] = memory.get("steps", after.new_zeros(after.shape[:-1])) + 1
        return memory["steps"]

    def reached(self, model: LoopedForCausalLM, measured: Tensor) -> Tensor:
        return measured >= self.depths[self.token]


def early_exits(probe: Probe) -> Verdict:
    """Decoding with a rule that never leaves = plain decoding, bit for bit; with exits = a full pass at each token's exit depth."""
    model = probe.own
    if model is None:
        raise NotOfferedError("not a loopwright model")
    probe.need_core()
    deepest = _depths(model)[-1]
    if deepest < 2:
        raise NotOfferedError("the model has parameters for one step alone")
    if model.leaks_future:
        raise NotOfferedError("the model reads future tokens, so it has no cache")
    try:
        check_mean_read(model, "exit")
    except ValueError as error:
        raise NotOfferedError(str(error)) from None
    tally, prompt = probe.tally(), tuple(probe.ids(1, seed=5)[0, :PROMPT].tolist())
    plain, never = (_answer(model, prompt, deepest, rule) for rule in (None, Never()))
    tally.hold(f"never leaving draws {never.tokens}, plain decoding {plain.tokens}", never.tokens == plain.tokens)
    tally.same("never leaving", torch.tensor(never.logprobs), torch.tensor(plain.logprobs))
    plan = [min(steps, deepest) for steps in PLAN]
    exits = _answer(model, prompt, deepest, Planned(plan))
    tally.hold(f"tokens left after {exits.depths} steps, planned were {plan}", exits.depths == plan)
    for place, (token, depth, logprob) in enumerate(zip(exits.tokens, exits.depths, exits.logprobs or [], strict=True)):
        ids = torch.tensor([[*prompt, *exits.tokens[:place]]], device=model.device)
        select = "expected" if mean_read(model) else "last"
        logits = probe.logits(ids, options={"depth": depth, "select": select})[0, -1].double()
        size = logits.abs().max()  # rounding is as large as the logits allow, however sure the token is
        tally.close(f"token {place} after {depth} steps", size + logprob, size + logits.log_softmax(-1)[token])
    return tally.verdict()


def _answer(model: LoopedForCausalLM, prompt: tuple[int, ...], depth: int, rule: ExitRule | None) -> Result:
    """Returns a greedy answer under a rule; the last prompt token is run alone, as a rule needs it."""
    scheduler = Scheduler(model, rows=1, tokens=PROMPT + len(PLAN), depth=depth, readings=depth, chunk=PROMPT - 1, lag=0)
    request = Request(RequestOptions(prompt, depth, len(PLAN), logprobs=True, exit=rule))
    scheduler.add(request)
    while scheduler.busy:
        scheduler.tick()
    return request.result(0)
