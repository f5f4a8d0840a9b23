"""Prompts, in chunks beside the ticks: rows that bring equally many tokens to equal depths go together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from loopwright.engine.passes import Passes
from loopwright.engine.running import Running
from loopwright.engine.scores import score_prompts
from loopwright.engine.trail import mean_read
from loopwright.model.cache.pool import Row
from loopwright.model.forward.selection import Answers


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
            keys = None if run.trail is None else run.request.wish.exit_keys
            groups.setdefault((count, run.steps, count == rest, keys), []).append(run)
    for (count, steps, last, keys), runs in groups.items():
        if keys is None:
            yield runs, count, _even(passes, runs, count, steps, last)
        else:
            _uneven(passes, runs, count, steps, keys)
            yield runs, count, None


def _even(passes: Passes, runs: list[Running], count: int, steps: int, last: bool) -> Tensor | None:
    rows, first, e, start = _enter(passes, runs, count)
    s = _answering(passes, rows, first, e, start, steps)
    scored = any(run.request.wish.prompt_logprobs for run in runs)
    if last or scored or passes.pool.layers["coda"]:  # the coda keeps keys of every token
        features = passes.features(rows, first, s, [run.request.wish.depth for run in runs])
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


def _uneven(passes: Passes, runs: list[Running], count: int, steps: int, keys: str) -> None:
    """Runs prompt tokens at full depth and keeps their states, for readings that later tokens may ask for."""
    rows, first, e, start = _enter(passes, runs, count)
    coda = bool(passes.pool.layers["coda"])
    for t, s in enumerate(passes.unroll(rows, first, start, e, steps)):
        for run, own in zip(runs, s, strict=True):
            if coda:
                assert run.trail is not None
                run.trail.keep(t, run.prefilled, own)
        # the last reading as a plain prefill makes it; the others are filled when a token asks, unless keys are copied there
        scored = t + 1 == steps and any(run.request.wish.prompt_logprobs for run in runs)
        if scored or (coda and (keys == "copy" or t + 1 == steps)):
            features = passes.features(rows, first, s, [t + 1] * len(runs))
        if scored:
            score_prompts(passes.model, runs, features)


def _enter(passes: Passes, runs: list[Running], count: int) -> tuple[list[Row], list[int], list[Tensor], list[Tensor]]:
    """Returns the rows, where their next `count` prompt tokens stand, and their inputs and first states."""
    rows, first = [run.row for run in runs], [run.prefilled for run in runs]
    wishes = [run.request.wish for run in runs]
    ids = [wish.prompt[a : a + count] for wish, a in zip(wishes, first, strict=True)]
    return rows, first, *passes.embed(rows, first, ids, [wish.state_seed for wish in wishes])
