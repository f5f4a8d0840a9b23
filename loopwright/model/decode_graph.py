"""DecodeGraph: one-token passes replayed as a CUDA graph, where a fixed cache makes every shape constant.

A decode step of a looped model is hundreds of small kernels per token; launched one by one they leave the GPU waiting for
the host. The graph runs the very same `embed`, `unroll` and `read_out`, over the whole capacity with a mask, and the stacks that
have a fused form in it; it differs from the plain path by rounding alone. Whatever changes the cache behind its back
(beams, crops, other passes), or puts other tensors in the place of weights, retires it, and the plain path goes on. Weights that
change where they lie are seen: the graph reads them there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from loopwright.model.fused_support import fused_stacks
from loopwright.model.keys.cache import LoopCache
from loopwright.model.passes import Pass
from loopwright.model.quantised import plain_tensors
from loopwright.model.span import Span

if TYPE_CHECKING:
    from loopwright.model.causal_lm import LoopedForCausalLM
    from loopwright.model.fused_stack import FusedStacks


class Addresses:
    """Where the weights of a model lie and which modules it has: a captured pass reads these addresses."""

    def __init__(self, model: nn.Module) -> None:
        self.tables = [table for m in model.modules() for table in (m._parameters, m._buffers, m._modules)]
        self.found = self._find()

    @property
    def hold(self) -> bool:
        """Whether they are what they were; values that changed in place are no change."""
        return self._find() == self.found

    def _find(self) -> list[int]:
        entries = (entry for table in self.tables for entry in table.values())
        return [place for entry in entries for place in (_places(entry) if isinstance(entry, Tensor) else [id(entry)])]


def _places(x: Tensor) -> list[int]:
    return [one.data_ptr() for one in plain_tensors(x)]


class DecodeGraph:
    """The captured decode pass of one model, cache, depth and state seed."""

    def __init__(self, model: LoopedForCausalLM, cache: LoopCache, depth: int, seed: int | None) -> None:
        # the cache owns its graph; a reference back would keep its storage alive until the collector comes round
        self.model, self.depth, self.seed = model, depth, seed
        self.device = cache.keys.data.device
        self.rows = len(cache.row_lengths)
        self.ledger = cache.ledger(self.rows, self.device)
        segment, first, position = self.ledger.last()
        self.token = torch.zeros(self.rows, 1, dtype=torch.long, device=self.device)
        self.index = self.ledger.lengths[:, None].clone()
        self.segment, self.first = segment.clamp(min=0)[:, None], first.clamp(min=0)[:, None]
        self.positions = position[:, None] + 1
        self.left = _standing(cache)
        self.weights = Addresses(model)
        self.fused = self._fused(cache)
        self._capture(cache)

    def fits(self, cache: LoopCache, depth: int, seed: int | None) -> bool:
        """Whether the cache stands where this graph left it, and the pass is the one captured."""
        if (depth, seed) != (self.depth, self.seed) or cache.length >= cache.capacity:
            return False
        return _standing(cache) == self.left and self.weights.hold

    def step(self, cache: LoopCache, token: Tensor) -> Tensor:
        """Returns the logits [B, 1, V] after one more token per row [B, 1]."""
        self.token.copy_(token)
        self.graph.replay()
        if cache.positions is not None:
            cache.place(self.positions - 1)  # the replay has counted on
        self._count(cache)
        self.left = _standing(cache)
        return self.logits.clone()

    def _fused(self, cache: LoopCache) -> FusedStacks | None:
        stacks = fused_stacks(self.model, self.rows)
        if not stacks:
            return None
        from loopwright.model.fused_stack import FusedStacks  # Triton comes with torch, where there is a GPU

        masked = not cache.plain or self.model.config.sliding_window is not None
        return FusedStacks(self.model, stacks, self.rows, cache.capacity, masked=masked)

    def _capture(self, cache: LoopCache) -> None:
        kept = [t.clone() for t in self._moving()]
        side = torch.cuda.Stream(device=self.device)
        side.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(side):
            for _ in range(2):
                self._pass(cache)
                for tensor, value in zip(self._moving(), kept, strict=True):  # the next token may be the last that fits
                    tensor.copy_(value)
        torch.cuda.current_stream(self.device).wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.logits = self._pass(cache)

    def _count(self, cache: LoopCache) -> None:
        """Counts on the host what a replay ran: a replay runs no Python code."""
        cache.filled.begin()
        for t in range(self.depth if self.model.config.is_looped else 0):
            cache.begin_step(t)
        cache.begin_reading(self.depth)
        cache.count(1)

    def _moving(self) -> list[Tensor]:
        book = self.ledger
        return [self.index, self.positions, book.lengths, book.valid, book.first, book.positions, book.segments]

    def _pass(self, cache: LoopCache) -> Tensor:
        e, p = self.begin(cache)
        *_, s = self.model.unroll(e, self.depth, p, state=self.model.start_state(e, p, self.seed))
        logits = self.model.read_out(s, p, reading=self.depth)
        for counter in (self.index, self.positions, self.ledger.lengths):
            counter.add_(1)
        return logits

    def begin(self, cache: LoopCache) -> tuple[Tensor, Pass]:
        """Places one more token per row, and returns its input and its pass."""
        book, index = self.ledger, self.index
        for table, value in ((book.first, self.first), (book.positions, self.positions), (book.segments, self.segment)):
            table.scatter_(1, index, value)
        book.valid.scatter_(1, index, torch.ones_like(index, dtype=torch.bool))
        span = Span(self.rows, 1, cache.capacity - 1, self.positions, index, self.first, book.valid, self.segment)
        return self.model.embed_at(self.model.token_vectors(self.token), span, cache=cache, fused=self.fused)


def _standing(cache: LoopCache) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns where the storage lies and how long the rows are: a captured pass writes to these addresses."""
    return tuple(table.data.data_ptr() for table in cache.tables.values()), tuple(cache.row_lengths)
