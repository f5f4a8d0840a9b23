"""FixedRows: what a pass of constant shape sees of a KeyPool, as many new tokens in each row.

A row with fewer tokens repeats its last one, which writes the same keys once more. Where the tokens stand and where their keys lie
are tensors that change from pass to pass, so that the pass can be captured once and replayed. The host keeps the books
(`Row.place`).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from loopwright.model.cache.pool import KeyPool
from loopwright.model.cache.rows import RowSpan, added_mask
from loopwright.model.forward.context import Pass, Place, Reading
from loopwright.model.layers.attention import attend
from loopwright.model.parts.part import RowSteps


class FixedSpan(RowSpan):
    """New tokens of which a row's last one may be there several times."""

    def document_sum(self, x: Tensor, carried: Tensor | None) -> Tensor:
        """Returns the running sum of x [R, T, W], repeated tokens counted once; `carried` [R, W] is the sum of those before."""
        if self.length > 1:
            new = torch.ones_like(self.positions, dtype=torch.bool)
            new[:, 1:] = self.positions[:, 1:] != self.positions[:, :-1]
            x = torch.where(new[..., None], x, 0)
        return super().document_sum(x, carried)


class FixedRows:
    """Rows whose new tokens stand at `positions` [R, T]; of each stack, the keys of a row begin at the cells `starts` [R].

    No row is longer than `reach`. Rows may be named twice: both then write the same keys to the same cells.
    """

    def __init__(self, pool: KeyPool, positions: Tensor, starts: Mapping[str, Tensor], reach: int) -> None:
        self.pool, self.positions, self.starts = pool, positions, starts
        self.span = FixedSpan((reach - positions.shape[1],) * len(positions), positions.shape[1], positions)
        self._masks: dict[torch.dtype, Tensor] = {}
        self._index: Tensor | None = None

    def begin_step(self, t: int | Tensor | RowSteps) -> None:
        """Counts nothing: the host does."""

    def begin_reading(self, reading: Reading | None) -> int:
        """Counts nothing: the host does."""
        return 0

    def attend(self, place: Place, q: Tensor, k: Tensor, v: Tensor, p: Pass, dropout: float = 0.0) -> Tensor:
        """Stores keys and values of the new tokens and returns what their queries q [R, T, H, K] find."""
        start = self.starts[place.stack][:, None]
        keys, values = self.pool.keys[place.stack][place.layer], self.pool.values[place.stack][place.layer]
        own = (start + self.span.positions).flatten()
        keys.index_copy_(0, own, k.flatten(0, 1).to(keys.dtype))
        values.index_copy_(0, own, v.flatten(0, 1).to(values.dtype))
        if q.dtype not in self._masks:
            window, every = self.pool.config.sliding_window, torch.arange(self.span.extent, device=q.device)
            self._masks[q.dtype] = added_mask(self.span.positions[..., None], every, window, q.dtype)[:, None]
        cells = start + self._all()
        return attend(q, keys[cells], values[cells], mask=self._masks[q.dtype], causal=False)

    def carried_sum(self, name: str, place: Place, p: Pass, like: Tensor) -> Tensor:
        """Returns the running sum [R, W] of each row's last token before the new ones; 0 where there is none."""
        table, first = self.pool.running_sums(place.stack, name, like), self.positions[:, 0]
        last = self.starts[place.stack] + (first - 1).clamp(min=0)
        return torch.where(first[:, None] > 0, table[last], 0)

    def write_sum(self, name: str, place: Place, running: Tensor, p: Pass) -> Tensor:
        """Stores the running sums of the new tokens [R, T, W] and returns those of all tokens [R, reach, W]."""
        table, start = self.pool.running_sums(place.stack, name, running), self.starts[place.stack][:, None]
        table.index_copy_(0, (start + self.span.positions).flatten(), running.flatten(0, 1))
        return table[start + self._all()]

    def _all(self) -> Tensor:
        """Returns the index of every token of each row [R, reach]; a shorter row repeats its last one, unseen."""
        if self._index is None:  # fused kernels do without it
            every = torch.arange(self.span.extent, device=self.positions.device)
            self._index = torch.minimum(every, self.positions[:, -1:])
        return self._index
