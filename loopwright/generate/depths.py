"""What each step would have said for the next token, from one pass."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from loopwright.model.looped import LoopedForCausalLM

SHOWN_TOKENS = 3


@dataclass(frozen=True)
class StepGuess:
    """The next token as read out after one step (counted from 1): likeliest tokens first.

    `entropy` is that of the whole distribution and `divergence` is KL(this step ‖ last step), both in nats.
    """

    step: int
    tokens: tuple[int, ...]
    probabilities: tuple[float, ...]
    entropy: float
    divergence: float


@torch.no_grad()
def next_token_by_depth(
    model: LoopedForCausalLM,
    input_ids: Tensor,
    depth: int | None = None,
    *,
    top: int = SHOWN_TOKENS,
    state_seed: int | None = None,
) -> list[StepGuess]:
    """Returns one guess per step for the token after `input_ids` ([T] or [1, T]); a dense model gives a single one."""
    ids = input_ids[None] if input_ids.dim() == 1 else input_ids
    if ids.dim() != 2 or ids.shape[0] != 1:
        raise ValueError(f"next_token_by_depth: input_ids of shape {tuple(input_ids.shape)}; allowed: one row, [T] or [1, T]")
    if not 1 <= top <= model.config.vocab_size:
        raise ValueError(f"next_token_by_depth: top {top}; allowed: 1 to {model.config.vocab_size}, the vocabulary")
    output = model(ids, depth=depth, output_steps=True, use_cache=False, state_seed=state_seed, logits_to_keep=1)
    log_probs = torch.stack([logits[0, -1] for logits in output.step_logits]).float().log_softmax(-1)
    probs = log_probs.exp()
    entropy = -(probs * log_probs).sum(-1)
    divergence = (probs * (log_probs - log_probs[-1])).sum(-1)
    best = probs.topk(top)
    return [
        StepGuess(t + 1, tuple(best.indices[t].tolist()), tuple(best.values[t].tolist()), entropy[t].item(), divergence[t].item())
        for t in range(len(probs))
    ]
