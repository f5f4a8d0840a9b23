"""What stands before a question: how often the question's tokens come to rest after a system prompt, padding or nothing at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from loopwright.analysis.summary import as_list
from loopwright.analysis.trace.record import pad
from loopwright.analysis.trace.trace import check_lengths, trace_depth
from loopwright.metrics.limits import FIXED_POINT, LIMITS, SHORTEST, LimitCounts, Limits, classify_limit, limit_counts
from loopwright.metrics.states import token_cosines
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.taps import Tap


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
        limits = classify_limit(cosines_to_the_end(model, ids, mask, steps))
        on_cpu = {field.name: getattr(limits, field.name).cpu() for field in fields(limits)}
        yield Limits(**on_cpu), mask.bool().cpu()


@torch.no_grad()
def cosines_to_the_end(model: LoopedForCausalLM, ids: Tensor, mask: Tensor, steps: int) -> Tensor:
    """Returns how near each token's residual is to that of the last step, by core layer and step [L, B, T, steps − 1], on the
    model's device.

    These are the numbers that `lw.trace` calls token_cosine. A trace gathers many others, each with kernels of its own at every
    step and layer; with rows this short a GPU waits for their launches most of the time.
    """
    ends: dict[int, Tensor] = {}
    cosines = torch.zeros(model.config.core_layers, *ids.shape, steps - 1, dtype=torch.half, device=ids.device)

    def keep(name: str, value: Tensor, *, stack: str, step: int | Tensor, layer: int) -> Tensor:
        if (name, stack, step) == ("residual", "core", steps - 1):
            ends[layer] = value
        return value

    def compare(name: str, value: Tensor, *, stack: str, step: int | Tensor, layer: int) -> Tensor:
        if (name, stack) == ("residual", "core") and step != steps - 1:
            cosines[layer, ..., step] = token_cosines(value, ends[layer])
        return value

    training = model.training
    model.eval()
    try:
        for tap in (keep, compare):
            _run_core(model, ids, mask, steps, tap)
    finally:
        model.train(training)
    return cosines.double()


def _run_core(model: LoopedForCausalLM, ids: Tensor, mask: Tensor, steps: int, tap: Tap) -> None:
    e, p = model.embed(ids, attention_mask=mask, tap=tap)
    for _ in model.unroll(e, steps, p, state=model.start_state(e, p, None)):
        pass


def plain_counts(counts: LimitCounts) -> dict[str, Any]:
    """Returns counts as plain data: how many tokens and examples there were, and the share of them that do each thing."""
    return {
        "labels": list(LIMITS), "all_tokens": counts.all_tokens, "all_examples": counts.all_examples,
        "moving_tokens": 1 - int(counts.tokens[FIXED_POINT]) / counts.all_tokens, "tokens": as_list(counts.token_rates()),
        "moving_examples": counts.moving_examples / counts.all_examples, "examples": as_list(counts.example_rates()),
    }  # fmt: skip
