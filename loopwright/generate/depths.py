"""What each step would have said for the next token, from one pass."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from loopwright.model.cost.room import check_room
from loopwright.model.forward.output import choosable
from loopwright.model.forward.selection import Answers
from loopwright.model.looped import LoopedForCausalLM

SHOWN_TOKENS = 3
KEPT = 5  # float32 tables of steps × vocabulary: logits one by one and stacked, log-probabilities, probabilities, one between


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
    steps = model.config.check_depth(depth)
    what = f"next_token_by_depth: the logits of {steps:,} steps"
    check_room(what, KEPT * 4 * steps * model.config.vocab_size, model.device, "take a lower depth")
    e, p = model.embed(ids)
    start = model.start_state(e, p, state_seed)
    answers, read = Answers.of_steps(model, e, p, start), []
    for s in model.unroll(e, steps, p, state=start):
        answers.take(s)
        read.append(model.head(answers.features()[:, -1:], p)[0, -1])
    logits = torch.stack(read).float()
    wrong = [t + 1 for t, row in enumerate(choosable(logits).tolist()) if not row]
    if wrong:
        raise ValueError(
            f"next_token_by_depth: logits are not finite after {len(wrong)} of {steps} steps, first after step {wrong[0]}, or "
            "all the same; `loopwright check` looks for the cause (weights that are NaN, or values too large for the dtype)"
        )
    log_probs = logits.log_softmax(-1)
    probs = log_probs.exp()
    entropy = -(probs * log_probs).sum(-1)
    divergence = (probs * (log_probs - log_probs[-1])).sum(-1)
    best = probs.topk(top)
    return [
        StepGuess(t + 1, tuple(best.indices[t].tolist()), tuple(best.values[t].tolist()), entropy[t].item(), divergence[t].item())
        for t in range(len(probs))
    ]
