"""A pass over the flat batch of another engine, which keeps the keys: one slot of its cache per (stack, step, layer).

All new tokens of all requests stand in one row, one after another, each at its own position. Which of them belong together, and
where their earlier keys lie, only the engine knows: `Slot` takes queries, keys and values and returns what was found.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.config import LoopedConfig
from loopwright.model.parts.part import RowSteps
from loopwright.model.passes import Pass, Place, Reading

# (queries [T, H·K], keys and values [T, Hk·K]) → what the queries find [T, H·K]
Slot = Callable[[Tensor, Tensor, Tensor], Tensor]
SlotName = str


def slot_name(stack: str, step: int, layer: int) -> SlotName:
    """Returns the name of the keys of one layer at one step."""
    return f"{stack}.{step}.{layer}"


def sum_name(adapter: str, stack: str, step: int, part: int) -> SlotName:
    """Returns the name of one part of what an adapter sums over earlier tokens at one step."""
    return f"{adapter}.{stack}.{step}.{part}"


def slot_names(config: LoopedConfig, depth: int) -> Iterator[SlotName]:
    """Yields the name of every slot that passes of `depth` steps write keys to."""
    for stack, steps in (("prelude", 1), ("core", depth), ("coda", 1)):
        for step in range(steps):
            yield from (slot_name(stack, step, layer) for layer in range(getattr(config, f"{stack}_layers")))


def sum_names(model: LoopedForCausalLM, depth: int) -> Iterator[SlotName]:
    """Yields the name of every slot that holds what an adapter sums over earlier tokens."""
    width = model.config.num_key_value_heads * model.config.head_dim
    for adapter in cast(Any, model.adapters):
        for step in range(depth if adapter.stack == "core" else 1):
            yield from (sum_name(adapter.key, adapter.stack, step, part) for part in range(-(-adapter.cached_numbers // width)))


@dataclass(frozen=True)
class FlatSpan:
    """New tokens of many requests in one row; a request's positions count from 0."""

    positions: Tensor  # [1, T]
    rows: int = 1
    plain: bool = False
    explicit: bool = True

    @property
    def length(self) -> int:
        """The number of new tokens, of all requests."""
        return self.positions.shape[1]

    def mask(self, window: int | None) -> tuple[None, bool]:
        """Returns that there is no mask: who keeps the keys knows which of them a token sees."""
        return None, False

    def ordinal(self) -> Tensor:
        """Returns how many tokens of its request stand up to each new one, itself included."""
        return self.positions + 1

    def document_sum(self, x: Tensor, carried: Tensor | None) -> Tensor:
        """Returns the running sum of x, which `FlatPass.carried_sum` has made already."""
        assert carried is not None
        return carried


class FlatPass:
    """What a flat pass sees of the engine's slots. Takes the place of a cache in `Pass`."""

    def __init__(self, config: LoopedConfig, slots: Mapping[SlotName, Slot], span: FlatSpan) -> None:
        self.config, self.slots, self.span = config, slots, span

    def begin_step(self, t: int | Tensor | RowSteps) -> None:
        """Begins a step: the same for all tokens, so that its slots have one name."""
        assert isinstance(t, int), "tokens of a flat batch take their steps together"

    def begin_reading(self, reading: Reading | None) -> int:
        """Begins the coda: a request is read at one depth, so one slot per layer is enough."""
        return 0

    def attend(self, place: Place, q: Tensor, k: Tensor, v: Tensor, p: Pass, dropout: float = 0.0) -> Tensor:
        """Returns what queries q [1, T, H, K] find; their keys and values are kept for later tokens."""
        assert isinstance(place.step.t, int)
        slot = self.slots[slot_name(place.stack, place.step.t, place.layer)]
        return slot(*(x[0].flatten(1) for x in (q, k, v))).view(q.shape)

    def carried_sum(self, name: str, place: Place, p: Pass, like: Tensor) -> Tensor:
        """Returns the running sums of `like` [1, T, W] over each token's request, the token included.

        A query of zeros finds every key equally near, so that attention returns the mean of the values so far. The values lie in
        slots of the same shape as keys, several where one is too narrow, so that the engine has one kind of page.
        """
        assert isinstance(place.step.t, int)
        heads, groups, size = self.config.num_attention_heads, self.config.num_key_value_heads, self.config.head_dim
        parts = like[0].split(groups * size, dim=-1)
        means = []
        for part, values in enumerate(parts):
            wide = F.pad(values, (0, groups * size - values.shape[1]))
            nothing = wide.new_zeros(wide.shape[0], heads * size)
            carried = self.slots[sum_name(name, place.stack, place.step.t, part)](nothing, torch.zeros_like(wide), wide)
            first = carried.view(-1, groups, heads // groups, size)[:, :, 0]  # the heads of a group find the same
            means.append(first.flatten(1)[:, : values.shape[1]])
        return torch.cat(means, dim=-1)[None] * self.span.ordinal()[..., None]

    def write_sum(self, name: str, place: Place, running: Tensor, p: Pass) -> Tensor:
        """Returns the running sums of the new tokens: those of single earlier ones cannot be had here."""
        return running


def flat_features(
    model: LoopedForCausalLM,
    slots: Mapping[SlotName, Slot],
    x: Tensor,
    positions: Tensor,
    *,
    depth: int,
    depths: Tensor | None = None,
) -> Tensor:
    """Returns what the head reads [T, D] of embedded tokens x [T, D] at positions [T], after `depth` steps.

    `depths` [T] may be less for single tokens: their state then stays as it is while the others go on. All tokens of a request
    have one depth, so that what they write in later steps is never read.
    """
    span = FlatSpan(positions[None])
    e, p = model.embed_at(x[None], cast(Any, span), cache=cast(Any, FlatPass(model.config, slots, span)))

    def step(s: Tensor, e: Tensor, t: int, p: Pass) -> Tensor:
        after = model.step(s, e, t, p)
        return after if depths is None else torch.where((depths > t)[None, :, None], after, s)

    s = deque(model.unroll(e, depth, p, state=model.start_state(e, p), step=step), maxlen=1).pop()
    return model.features(s, p, reading=depth)[0]
