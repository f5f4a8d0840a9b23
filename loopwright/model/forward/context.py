"""What one pass carries from layer to layer: where its tokens stand, what they may see, the cache, the watcher."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from loopwright.model.forward.span import Span
from loopwright.model.parts.part import RowSteps, StepIndex
from loopwright.model.tap import Tap

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

    from loopwright.model.cache.borrowed import BorrowedCache
    from loopwright.model.cache.cache import LoopCache
    from loopwright.model.cache.fixed_rows import FixedRows
    from loopwright.model.cache.rows import PooledRows, RowSpan
    from loopwright.model.forward.output import LayerOutputs
    from loopwright.model.layers.attention import Rotary
    from loopwright.model.parts.adapter.effects import Adaptation


STACKS = ("prelude", "core", "coda")


@dataclass(frozen=True)
class Place:
    """Where in the network: one of the stacks, the step and the layer."""

    stack: str
    step: StepIndex  # not its number: a compiled step that reads the number is compiled anew for each
    layer: int


@dataclass(frozen=True)
class Expected:
    """The reading of the mean of all states by exit probability, in a pass of `depth` steps."""

    depth: int


# what the coda reads: the state after so many steps (an int, or one per row), or the mean of all states
Reading = int | Tensor | RowSteps | Expected


class StackRunner(Protocol):
    """Another way of running the layers of a stack than one after the other: by fused kernels, or compiled."""

    block_masks: bool  # whether attention skips the blocks of a mask in which nobody sees anybody

    def takes(self, stack: str, adapt: Adaptation | None) -> bool:
        """Says whether a stack runs here, with what its adapters do at the step."""

    def run(self, stack: str, x: Tensor, p: Pass, step: StepIndex) -> Tensor:
        """Returns what the layers of a stack make of x."""


@dataclass(frozen=True)
class Pass:
    """One forward pass. `rotary` holds cos and sin; `mask` [B, 1, T, N] is added to attention scores; where it is None,
    `blocks` (a mask by blocks) or `causal` decides. `coda_group` says which of the cache's coda slots belong to the reading at hand
    (one per row, or an int); `outputs` keeps what the layers leave, where the caller wants it; `fused` runs the stacks that have
    another form."""

    span: Span | RowSpan
    rotary: tuple[Tensor, Tensor] | None
    mask: Tensor | None
    causal: bool
    cache: LoopCache | BorrowedCache | PooledRows | FixedRows | None = None
    tap: Tap | None = None
    coda_group: int | Tensor = 0
    outputs: LayerOutputs | None = None
    fused: StackRunner | None = None
    blocks: BlockMask | None = None

    @property
    def batch_span(self) -> Span:
        """The span of a batch, for what never meets the rows of a pool."""
        assert isinstance(self.span, Span)
        return self.span

    def see(self, name: str, value: Tensor, place: Place) -> Tensor:
        """Shows a tensor to the tap, and returns what the tap makes of it."""
        if self.tap is None:
            return value
        return self.tap(name, value, stack=place.stack, step=place.step.t, layer=place.layer)

    def keep_state(self, x: Tensor, place: Place) -> None:
        """Keeps what a layer leaves, where the caller asks for `hidden_states`."""
        if self.outputs is not None and self.outputs.states is not None:
            self.outputs.states[place] = x

    def at_reading(self, reading: Reading | None) -> Pass:
        """Returns the pass as the coda sees it at a reading; on a cache it says which of the coda's slots are meant."""
        if self.cache is None:
            return self
        return replace(self, coda_group=self.cache.begin_reading(reading))

    def rows(self, index: Tensor) -> Pass:
        """Returns the pass of the batch rows that `index` [N] names, in that order, a row as often as it is named; no cache."""

        def pick(x: Any) -> Any:
            return x if x is None or x.shape[0] == 1 != self.span.rows else x[index]

        span = self.batch_span
        held: dict[str, Any] = {name: pick(getattr(span, name)) for name in ("positions", "index", "first", "valid", "segments")}
        chosen = Span(index.numel(), span.length, span.offset, explicit=span.explicit, padded=span.padded, **held)
        rotary = None if self.rotary is None else (pick(self.rotary[0]), pick(self.rotary[1]))
        blocks = None if self.blocks is None else _block_mask(chosen)
        return Pass(chosen, rotary, pick(self.mask), self.causal, None, self.tap, fused=self.fused, blocks=blocks)


def open_pass(
    span: Span | RowSpan,
    rotary: Rotary | None,
    window: int | None,
    dtype: torch.dtype,
    *,
    cache: LoopCache | BorrowedCache | PooledRows | FixedRows | None = None,
    tap: Tap | None = None,
    outputs: LayerOutputs | None = None,
    fused: StackRunner | None = None,
) -> Pass:
    """Returns the pass of tokens that stand at `span`: their rotations, and a mask where one is needed, in `dtype`."""
    table = None if rotary is None else rotary.table(span.positions, dtype)
    if fused is not None and fused.block_masks and window is None and isinstance(span, Span) and not (span.plain or span.padded):
        return Pass(span, table, None, False, None, tap, outputs=outputs, fused=fused, blocks=_block_mask(span))
    visible, causal = span.mask(window)
    # added to the scores: made once here, where a boolean mask would be converted by every layer of every step
    mask = None if visible is None else torch.zeros_like(visible, dtype=dtype).masked_fill_(~visible, float("-inf"))
    return Pass(span, table, mask, causal, cache, tap, outputs=outputs, fused=fused)


def _block_mask(span: Span) -> BlockMask:
    from loopwright.model.layers.block_mask import block_mask  # torch's compiler comes with it

    return block_mask(span)
