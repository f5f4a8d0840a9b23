"""What each step would have said: entropy, change and flips of the predictions that are read out step by step.

Logits are […, V]; logarithms are natural. One step and the one before it are all that is needed at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class LensReading:
    """One step's predictions in numbers, each […]: `answer` (long) is the likeliest token and `flipped` says that it changed.

    At the first step there is nothing to compare with: `divergence` is NaN and `flipped` false.
    """

    entropy: Tensor
    divergence: Tensor
    answer: Tensor
    flipped: Tensor


def lens_reading(logits: Tensor, before: Tensor | None = None) -> LensReading:
    """Returns the numbers of a step, given its logits and those of the step before (None at the first)."""
    entropy, answer = prediction_entropy(logits), logits.argmax(-1)
    if before is None:
        return LensReading(entropy, torch.full_like(entropy, torch.nan), answer, torch.zeros_like(answer, dtype=torch.bool))
    return LensReading(entropy, prediction_divergence(logits, before), answer, answer != before.argmax(-1))


def prediction_entropy(logits: Tensor) -> Tensor:
    """Returns −Σ_v p_v log p_v with p = softmax(logits), in nats, in [0, log V]."""
    return torch.special.entr(_log_p(logits).exp()).sum(-1)


def prediction_divergence(now: Tensor, before: Tensor) -> Tensor:
    """Returns KL(now ‖ before) = Σ_v p_v (log p_v − log q_v), in nats; 0 where nothing changed, infinite where q rules p out."""
    p, q = _log_p(now), _log_p(before)
    # a token that p rules out adds nothing, whatever q says of it
    return torch.where(p == -torch.inf, 0, p.exp() * (p - q)).sum(-1).clamp(min=0)


def answer_flips(answers: Tensor) -> Tensor:
    """Returns where the answer of a step is not that of the step before, for answers [S, …]: [S − 1, …], booleans."""
    return answers[1:] != answers[:-1]


def settled_step(answers: Tensor) -> Tensor:
    """Returns the first step, counted from 0, from which the answer stays that of the last step, for answers [S, …]: […]."""
    same = (answers == answers[-1]).long()
    return answers.shape[0] - same.flip(0).cumprod(0).sum(0)


def _log_p(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
