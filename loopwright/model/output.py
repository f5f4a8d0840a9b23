"""What a pass returns, and the loss of its logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.modeling_outputs import ModelOutput

from loopwright.model.cache import LoopCache


@dataclass
class LoopedOutput(ModelOutput):
    """What a pass returns. `states` and `step_logits` have one entry per step, with `output_steps`; `exit_probs` is
    [B, T, depth] where the model has learned halting (not in replayed decode passes); `last_hidden_state` is what the head reads,
    under the name by which trainers that bring their own head ask for it."""

    loss: Tensor | None = None
    logits: Tensor | None = None
    past_key_values: LoopCache | None = None
    states: tuple[Tensor, ...] | None = None
    step_logits: tuple[Tensor, ...] | None = None
    exit_probs: Tensor | None = None
    last_hidden_state: Tensor | None = None


def shifted_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Returns the mean cross-entropy of each next token; labels are the input ids, −100 is ignored."""
    if labels.shape != logits.shape[:2]:
        raise ValueError(f"labels: shape {tuple(labels.shape)}; allowed: {tuple(logits.shape[:2])}, the shape of the input ids")
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(wide[:, :-1].flatten(0, 1), labels[:, 1:].flatten().to(logits.device), ignore_index=-100)


def weighted_sum(weights: Tensor, steps: Sequence[Tensor]) -> Tensor:
    """Returns Σ_t weights[..., t] · steps[t] for weights [B, T, depth] and steps of [B, T, …]."""
    total = weights[..., 0, None] * steps[0]
    for t in range(1, len(steps)):
        total = total + weights[..., t, None] * steps[t]
    return total
