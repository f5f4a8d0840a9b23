"""What stands before a question: how often the question's tokens come to rest after a system prompt, padding or nothing at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from loopwright.analysis.summary import as_list
from loopwright.analysis.trace.record import pad
from loopwright.analysis.trace.trace import check_lengths, trace, trace_depth
from loopwright.metrics.limits import FIXED_POINT, LIMITS, SHORTEST, LimitCounts, Limits, classify_limit, limit_counts
from loopwright.model.looped import LoopedForCausalLM


def limits_behind(
    model: LoopedForCausalLM,
    opening: Sequence[int],
    questions: Sequence[Sequence[int]],
    *,
    depth: int | None = None,
    batch: int = 8,
    progress: Callable[[int, int], None] | None = None,
) -> LimitCounts:
    """Returns what the tokens of questions settle into when the tokens of an opening stand before each; only theirs are counted.

    The opening is read and attended to like any other tokens, whatever they are: pad tokens too.
    """
    check_lengths(model.config, questions)
    rows = [[*opening, *question] for question in questions]
    counts: LimitCounts | None = None
    done = 0
    for limits, valid in settled(model, rows, depth=depth, batch=batch):
        more = limit_counts(limits.label, valid & (torch.arange(valid.shape[1]) >= len(opening)))
        counts = more if counts is None else counts + more
        done += len(valid)
        if progress is not None:
            progress(done, len(rows))
    assert counts is not None
    return counts


def settled(
    model: LoopedForCausalLM, rows: Sequence[Sequence[int]], *, depth: int | None = None, batch: int = 8
) -> Iterator[tuple[Limits, Tensor]]:
    """Yields, batch by batch, what each layer of the core settles into at every token [L, B, T], and which are real [B, T]."""
    if not model.config.is_looped:
        raise ValueError("openings: the model is dense, so that nothing settles; allowed: a looped one")
    if batch < 1:
        raise ValueError(f"batch: {batch}; allowed: at least 1")
    steps = trace_depth(model.config, depth)
    if steps <= SHORTEST:
        raise ValueError(f"depth: {steps}; allowed: at least {SHORTEST + 1}, for a series of steps to be told apart")
    check_lengths(model.config, rows)
    for start in range(0, len(rows), batch):
        ids, mask = pad(rows[start : start + batch], model.device)
        found = trace(model, ids, steps, attention_mask=mask, collect=("residual", "fixed"))
        series = found.core("token_cosine").double()[:, :-1].permute(2, 0, 3, 1)  # layers, rows, tokens, steps but the last
        yield classify_limit(series), found.valid


def plain_counts(counts: LimitCounts) -> dict[str, Any]:
    """Returns counts as plain data: how many tokens and examples there were, and the share of them that do each thing."""
    return {
        "labels": list(LIMITS), "all_tokens": counts.all_tokens, "all_examples": counts.all_examples,
        "moving_tokens": 1 - int(counts.tokens[FIXED_POINT]) / counts.all_tokens, "tokens": as_list(counts.token_rates()),
        "moving_examples": counts.moving_examples / counts.all_examples, "examples": as_list(counts.example_rates()),
    }  # fmt: skip
