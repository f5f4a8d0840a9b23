"""One request from prompt to streamed text, through an engine of one row: what early exits and drafts need."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from loopwright.engine.engine import Engine
from loopwright.engine.speculation import AUTO, draft_depths
from loopwright.generate.generation_config import new_tokens
from loopwright.generate.sampling import Sampling
from loopwright.generate.stream import NEW_TOKENS, Statistics, TextPieces, context_left
from loopwright.model.looped import LoopedForCausalLM


def stream_uneven(
    model: LoopedForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    input_ids: Tensor,
    *,
    write: Callable[[str], object],
    max_new_tokens: int | None = None,
    depth: int | None = None,
    sampling: Sampling | None = None,
    seed: int | None = None,
    state_seed: int | None = None,
    exit: Mapping[str, Any] | None = None,
    draft_depth: int | str | None = None,
    constrain: Mapping[str, Any] | None = None,
) -> tuple[Statistics, str]:
    """Generates after `input_ids` [1, T] with an exit rule or drafts; returns the statistics, and what was saved in words."""
    if max_new_tokens is None:
        max_new_tokens = new_tokens(model, input_ids.shape[1], NEW_TOKENS)
    room = context_left(model, input_ids.shape[1])
    allowed = max_new_tokens if room is None else min(max_new_tokens, room)
    steps = model.config.check_depth(depth)
    pieces = TextPieces(tokenizer, write)
    pieces.put(input_ids.cpu())
    readings = steps if exit is not None else 1 + len(draft_depths(steps)) if draft_depth == AUTO else 2
    tokens = input_ids.shape[1] + allowed
    begin = time.perf_counter()
    with Engine(model, tokenizer, max_rows=1, max_tokens=tokens, depth=steps, readings=readings) as engine:
        request = engine.submit(
            input_ids, depth=depth, max_new_tokens=allowed, seed=seed, state_seed=state_seed, exit=exit, draft_depth=draft_depth,
            constrain=constrain, **vars(sampling or Sampling()),
        )  # fmt: skip
        for token in request:
            pieces.put(torch.tensor([token]))
        pieces.end()
        result, ran = request.result(), engine.ran
    seconds = time.perf_counter() - begin
    count = len(result.tokens)
    context = model.config.max_position_embeddings if count == allowed < max_new_tokens else None
    if exit is None:
        depths = draft_depth if draft_depth != AUTO else ", ".join(map(str, sorted({r for r, _ in ran.rounds}))) or "none"
        saved = f"drafts at depth {depths}: {ran.accepted} of {ran.drafted} held"
    else:
        saved = f"exit by {exit['kind']}: {sum(result.depths) / count:.2f} of {steps} steps a token on average"
    return Statistics(input_ids.shape[1], count, seconds, steps, context), saved
