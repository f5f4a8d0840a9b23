"""What a pass returns, and the loss of its logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Cache
from transformers.modeling_outputs import ModelOutput

from loopwright.model.config import LoopedConfig
from loopwright.model.forward.context import STACKS, Place
from loopwright.model.forward.span import Span


@dataclass
class LoopedOutput(ModelOutput):
    """What a pass returns. `states` and `step_logits` have one entry per step, with `output_steps`; `exit_probs` is
    [B, T, depth] where the model has learned halting (not in replayed decode passes); `last_hidden_state` is what the head reads,
    under the name by which trainers that bring their own head ask for it. `hidden_states` and `attentions`: see `LayerOutputs`."""

    loss: Tensor | None = None
    logits: Tensor | None = None
    past_key_values: Cache | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    states: tuple[Tensor, ...] | None = None
    step_logits: tuple[Tensor, ...] | None = None
    exit_probs: Tensor | None = None
    last_hidden_state: Tensor | None = None

    def __repr__(self) -> str:
        return _shapes(self)


@dataclass
class LoopedModelOutput(ModelOutput):
    """What a pass without a head returns: `LoopedOutput` without logits."""

    last_hidden_state: Tensor | None = None
    past_key_values: Cache | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    exit_probs: Tensor | None = None

    def __repr__(self) -> str:
        return _shapes(self)


def _shapes(output: ModelOutput) -> str:
    """What there is, and its shapes: the numbers would fill a screen. One number is shown."""

    def told(x: Any) -> str:
        if isinstance(x, tuple):
            return f"{len(x)} × {told(x[0])}" if len({told(one) for one in x}) == 1 else ", ".join(map(told, x)).join("()")
        return str(list(x.shape)) if isinstance(x, Tensor) and x.dim() else repr(x)

    return f"{type(output).__name__}({', '.join(f'{name}={told(x)}' for name, x in output.items())})"


@dataclass(frozen=True)
class Unrolled:
    """A pass before it is packed for its caller: the `answer` that was selected (logits, or features where there is no head), the
    `results` of each reading that it was selected from, and the `features` that the head read last."""

    answer: Tensor
    results: list[Tensor]
    features: Tensor
    states: list[Tensor]
    exit_probs: Tensor | None
    span: Span


class LayerOutputs:
    """Keeps what `output_hidden_states` and `output_attentions` ask for: one entry per layer as it runs, in that order.

    The first of the `hidden_states` is the embedding; the entry of the core's last layer is the state that its step leaves; the
    last entry is what the head reads, after the final norm. Entries are kept by place, so that a layer that runs there again (the
    coda at a later reading, a layer that is recomputed for its gradient) takes the place of its first run.
    """

    def __init__(self, *, hidden_states: bool, attentions: bool) -> None:
        self.states: dict[Place, Tensor] | None = {} if hidden_states else None
        self.maps: dict[Place, Tensor] | None = {} if attentions else None
        self.last: Tensor | None = None

    @property
    def hidden_states(self) -> tuple[Tensor, ...] | None:
        """The states [B, T, D], one more than there are layer runs; None where they were not asked for."""
        if self.states is None:
            return None
        assert self.last is not None
        return (*_in_order(self.states)[:-1], self.last)

    @property
    def attentions(self) -> tuple[Tensor, ...] | None:
        """The maps [B, H, T, N], one per layer run; None where they were not asked for."""
        return None if self.maps is None else tuple(_in_order(self.maps))


def layer_outputs(config: LoopedConfig, hidden_states: bool | None, attentions: bool | None) -> LayerOutputs | None:
    """Returns where a pass keeps what its layers leave, or None where nobody asks; the config decides what the call leaves open."""
    hidden_states = config.output_hidden_states if hidden_states is None else hidden_states
    attentions = config.output_attentions if attentions is None else attentions
    return LayerOutputs(hidden_states=bool(hidden_states), attentions=bool(attentions)) if hidden_states or attentions else None


def _in_order(entries: dict[Place, Tensor]) -> list[Tensor]:
    return [entries[place] for place in sorted(entries, key=lambda place: (STACKS.index(place.stack), place.step.t, place.layer))]


def next_token_loss(logits: Tensor, labels: Tensor, *, shifted: bool = False, items: Tensor | int | None = None) -> Tensor:
    """Returns the mean cross-entropy of each next token, over `items` tokens where the caller counts those of several batches.

    Labels are the input ids, or those of the next tokens where they are `shifted` already; −100 is ignored.
    """
    if labels.shape != logits.shape[:2]:
        raise ValueError(f"labels: shape {tuple(labels.shape)}; allowed: {tuple(logits.shape[:2])}, the shape of the input ids")
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if not shifted:
        wide, labels = wide[:, :-1], labels[:, 1:]
    targets, reduction = labels.flatten().to(logits.device), "mean" if items is None else "sum"
    try:
        loss = F.cross_entropy(wide.flatten(0, 1), targets, ignore_index=-100, reduction=reduction)
    except IndexError as error:  # on a CPU; a GPU checks in its kernel
        most = logits.shape[-1] - 1
        raise ValueError(f"labels: must be token ids from 0 to {most}, or -100 where nothing is predicted ({error})") from None
    return loss if items is None else loss / (items.to(loss.device) if isinstance(items, Tensor) else items)


def kept(x: Tensor, keep: int | Tensor) -> Tensor:
    """Returns the last `keep` positions of x [B, T, …], all where it is 0; or those that a tensor of places names."""
    if isinstance(keep, Tensor):
        return x[:, keep]
    return x[:, -keep:] if keep else x


def choosable(logits: Tensor) -> Tensor:
    """Returns from which logits [..., V] a token can be chosen: all of them are finite, and they are not all the same.

    They are all the same where a norm has overflowed: it divides by an infinite length, which leaves zeros. The device decides, and
    nobody waits for it here.
    """
    low, high = logits.aminmax(dim=-1)  # both are NaN where one logit is
    finite = low * 0 + high * 0 == 0  # their difference may overflow where they are finite
    return finite & (low < high) if logits.shape[-1] > 1 else finite


def weighted_sum(weights: Tensor, steps: Sequence[Tensor]) -> Tensor:
    """Returns Σ_t weights[..., t] · steps[t] for weights [B, T, depth] and steps of [B, T, …]."""
    total = weights[..., 0, None] * steps[0]
    for t in range(1, len(steps)):
        total = total + weights[..., t, None] * steps[t]
    return total
