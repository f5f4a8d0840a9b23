"""Equalities over steps on a cache: what a pass reads of earlier tokens must have been made at the same step and reading.

A cache that keeps one set of the coda's keys for all steps, or that counts a step as run for rows that never ran it, answers
wrongly without a word. A cache may refuse what it does not hold; what it accepts must be exact.
"""

from __future__ import annotations

import torch
from torch import Tensor

from loopwright.check.probes import DEPTH_NAMES, Probe
from loopwright.check.verdict import NotOfferedError, Tally, Verdict
from loopwright.model.cache.cache import LoopCache
from loopwright.model.forward.selection import rules_of
from loopwright.model.looped import LoopedForCausalLM

CHANGES = ((3, 1), (3, 2), (1, 2), (2, 3))  # of depth between two passes: down and up


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
    changes = [pair for pair in CHANGES if max(pair) <= _deepest(probe)]
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


def _deepest(probe: Probe) -> int:
    config = None if probe.own is None else probe.own.config
    limit = None if config is None or config.beyond_max_steps != "refuse" else config.max_steps
    return min(3, limit or 3)
