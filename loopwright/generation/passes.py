"""Passes: the prelude, a step or the coda over the next tokens of some rows, of each row as many as it brings.

A prompt brings many tokens, an early exit those that left before a step that is needed now, a draft all that wait to be verified.
What is returned holds until the next pass. Prompts go in chunks beside the ticks, rows that bring equally many tokens to equal
depths together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from loopwright.generation.rows import Running
from loopwright.generation.scores import score_prompts
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.keys.pool import KeyPool, Row
from loopwright.model.keys.rows import PooledRows
from loopwright.model.parts.part import row_steps
from loopwright.model.parts.state import signed
from loopwright.model.passes import Answers, Pass, mixes_states, open_pass

if TYPE_CHECKING:
    from loopwright.generation.mixed_depth import StateHistory

Run = Callable[[list[int], Pass], tuple[Tensor, ...]]  # of some of the rows, as a batch [R, T, …]


def mean_read(model: LoopedForCausalLM) -> bool:
    """Returns whether a model answers by the mean of its states, by halting weight."""
    return mixes_states(model.config.read_out, model.halting)


class Passes:
    """Runs them kernel by kernel, rows that bring equally many tokens together. `first`: how many tokens each row has before."""

    def __init__(self, model: LoopedForCausalLM, pool: KeyPool) -> None:
        self.model, self.pool = model, pool
        self._last: tuple[object, Pass] | None = None

    def refresh(self, weights_address: int) -> None:
        """Is told the weights' address: here nothing depends on it."""

    def embed(
        self, rows: Sequence[Row], first: Sequence[int], ids: Sequence[Sequence[int]], seeds: Sequence[int | None]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Returns input and first state [T, D] of the tokens of each row; `seeds` are those of the states, None for the model's."""

        def run(some: list[int], p: Pass) -> tuple[Tensor, Tensor]:
            given = torch.tensor([list(ids[i]) for i in some], device=self.pool.device)
            e = self.model.run_prelude(self.model.token_vectors(given), p)
            return e, self.model.start_state(e, p, self.seeds([seeds[i] for i in some]))

        pairs = self._by_length(rows, first, list(map(len, ids)), run)
        return [e for e, _ in pairs], [s for _, s in pairs]

    def step(
        self, rows: Sequence[Row], first: Sequence[int], states: Sequence[Tensor], inputs: Sequence[Tensor], steps: Sequence[int]
    ) -> list[Tensor]:
        """Returns the states [T, D] of each row's tokens after its step."""

        def run(some: list[int], p: Pass) -> tuple[Tensor]:
            s, e = (torch.stack([given[i] for i in some]) for given in (states, inputs))
            return (self.model.step(s, e, row_steps([steps[i] for i in some], s.device), p),)

        return [s for (s,) in self._by_length(rows, first, list(map(len, states)), run)]

    def unroll(
        self, rows: list[Row], first: list[int], states: Sequence[Tensor], inputs: Sequence[Tensor], depth: int
    ) -> Iterator[Sequence[Tensor]]:
        """Yields the states [T, D] of each row's tokens, of every row as many, after each of `depth` steps."""

        def step(s: Tensor, e: Tensor, t: int, p: Pass) -> Tensor:
            return torch.stack(self.step(rows, first, s.unbind(0), e.unbind(0), [t] * len(rows)))

        s, e = torch.stack(list(states)), torch.stack(list(inputs))
        unrolled = self.model.unroll(e, depth, self.open(rows, first, e.shape[1]), state=s, step=step)
        return (state.unbind(0) for state in unrolled)

    def features(
        self, rows: Sequence[Row], first: Sequence[int], states: Sequence[Tensor], readings: Sequence[int]
    ) -> list[Tensor]:
        """Returns what the head reads of the states of each row's tokens [T, D], as its reading says."""

        def run(some: list[int], p: Pass) -> tuple[Tensor]:
            s = torch.stack([states[i] for i in some])
            return (self.model.features(s, p, reading=row_steps([readings[i] for i in some], s.device)),)

        return [y for (y,) in self._by_length(rows, first, list(map(len, states)), run)]

    def step_histories(
        self, histories: Sequence[StateHistory], first: Sequence[int], ends: Sequence[int], steps: Sequence[int]
    ) -> None:
        """Runs a step of the tokens of each row from `first` to its end, from the states that were kept, and keeps the new ones."""
        rows, places = [history.row for history in histories], list(zip(histories, first, ends, steps, strict=True))
        inputs = [history.inputs[a:end] for history, a, end, _ in places]
        states = self.step(rows, first, [history.states(t, a, end) for history, a, end, t in places], inputs, steps)
        for (history, a, _, t), new in zip(places, states, strict=True):
            history.keep(t, a, new)

    def read_histories(
        self, histories: Sequence[StateHistory], first: Sequence[int], ends: Sequence[int], readings: Sequence[int]
    ) -> list[Tensor]:
        """Returns what the head reads of the kept states of each row's tokens [T, D], as its reading says."""
        states = [history.states(t, a, end) for history, a, end, t in zip(histories, first, ends, readings, strict=True)]
        return self.features([history.row for history in histories], first, states, readings)

    def seeds(self, asked: Sequence[int | None]) -> Tensor | None:
        """Returns the seeds of first states as a tensor, None where all are the model's own."""
        if all(seed is None for seed in asked):
            return None
        return torch.tensor(self.seed_numbers(asked), device=self.pool.device)

    def seed_numbers(self, asked: Sequence[int | None]) -> list[int]:
        """Returns the seeds of first states as the device takes them, the model's own where None is asked for."""
        return [signed(self.model.state.seed if seed is None else seed) for seed in asked]

    def _by_length(self, rows: Sequence[Row], first: Sequence[int], lengths: Sequence[int], run: Run) -> list[tuple[Tensor, ...]]:
        groups: dict[int, list[int]] = {}
        for i, length in enumerate(lengths):
            groups.setdefault(length, []).append(i)
        results: dict[int, tuple[Tensor, ...]] = {}
        for length, some in groups.items():
            outputs = run(some, self.open([rows[i] for i in some], [first[i] for i in some], length))
            results.update(zip(some, zip(*outputs, strict=True), strict=True))
        return [results[i] for i in range(len(rows))]

    def open(self, rows: list[Row], first: list[int], length: int) -> Pass:
        """Returns the pass of `length` tokens in each row; the last one again, if it is asked for again."""
        key = tuple(map(id, rows)), first, length  # the pass holds the rows, so that their numbers are nobody else's
        if self._last is None or self._last[0] != key:
            cache, config = PooledRows(self.pool, rows, first, length), self.model.config
            dtype = self.pool.keys["core"].dtype
            self._last = key, open_pass(cache.span, self.model.rotary, config.sliding_window, dtype, cache=cache)
        return self._last[1]


def prefill(passes: Passes, running: Sequence[Running], chunk: int) -> Iterator[tuple[list[Running], int, Tensor | None]]:
    """Runs at most `chunk` prompt tokens, oldest requests first; yields rows, the tokens that each of them ran, and, where these
    were the last, the logits [R, V] that follow."""
    left = chunk
    groups: dict[tuple[int, int, bool, str | None], list[Running]] = {}
    for run in running:
        rest = run.to_prefill - run.prefilled
        if run.phase == "prefill" and left > 0:
            count = min(rest, left)
            left -= count
            keys = None if run.history is None else run.request.options.exit_keys
            groups.setdefault((count, run.steps, count == rest, keys), []).append(run)
    for (count, steps, last, keys), runs in groups.items():
        if keys is None:
            yield runs, count, _even(passes, runs, count, steps, last)
        else:
            _mixed_depth(passes, runs, count, steps, keys)
            yield runs, count, None


def _even(passes: Passes, runs: list[Running], count: int, steps: int, last: bool) -> Tensor | None:
    rows, first, e, start = _enter(passes, runs, count)
    s = _answering(passes, rows, first, e, start, steps)
    scored = any(run.request.options.prompt_logprobs for run in runs)
    if last or scored or passes.pool.layers["coda"]:  # the coda keeps keys of every token
        features = passes.features(rows, first, s, [run.request.options.depth for run in runs])
    if scored:
        score_prompts(passes.model, runs, features)
    return passes.model.lm_head(torch.stack([y[-1] for y in features])) if last else None


def _answering(
    passes: Passes, rows: list[Row], first: list[int], e: Sequence[Tensor], start: Sequence[Tensor], steps: int
) -> Sequence[Tensor]:
    """Returns the states [T, D] of each row's tokens that answer: the last ones, or the means where the model answers by these."""
    states = passes.unroll(rows, first, start, e, steps)
    if not mean_read(passes.model):
        *_, s = states
        return s
    inputs, p = torch.stack(list(e)), passes.open(rows, first, len(e[0]))
    answers = Answers(passes.model, inputs, p, torch.stack(list(start)))
    for state in states:
        answers.take(torch.stack(list(state)))
    return answers.answering().unbind(0)


def _mixed_depth(passes: Passes, runs: list[Running], count: int, steps: int, keys: str) -> None:
    """Runs prompt tokens at full depth and keeps their states, for readings that later tokens may ask for."""
    rows, first, e, start = _enter(passes, runs, count)
    coda = bool(passes.pool.layers["coda"])
    for t, s in enumerate(passes.unroll(rows, first, start, e, steps)):
        for run, states in zip(runs, s, strict=True):
            if coda:
                assert run.history is not None
                run.history.keep(t, run.prefilled, states)
        # the last reading as a plain prefill makes it; the others are filled when a token asks, unless keys are copied there
        scored = t + 1 == steps and any(run.request.options.prompt_logprobs for run in runs)
        if scored or (coda and (keys == "copy" or t + 1 == steps)):
            features = passes.features(rows, first, s, [t + 1] * len(runs))
        if scored:
            score_prompts(passes.model, runs, features)


def _enter(passes: Passes, runs: list[Running], count: int) -> tuple[list[Row], list[int], list[Tensor], list[Tensor]]:
    """Returns the rows, where their next `count` prompt tokens stand, and their inputs and first states."""
    rows, first = [run.row for run in runs], [run.prefilled for run in runs]
    requested = [run.request.options for run in runs]
    ids = [options.prompt[a : a + count] for options, a in zip(requested, first, strict=True)]
    return rows, first, *passes.embed(rows, first, ids, [options.state_seed for options in requested])
