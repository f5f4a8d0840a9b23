"""What a pass sees of a KeyPool: `PooledRows`, each row at its own step and length, or `FixedRows`, a pass of constant shape.

In a pass of constant shape a row with fewer tokens repeats its last one, which writes the same keys once more. Where its tokens
stand and where their keys lie are tensors that change from pass to pass, so that the pass can be captured once and replayed. The
host keeps the books (`Row.place`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from loopwright.model.layers import attend, attend_heads
from loopwright.model.parts.part import RowSteps
from loopwright.model.span import FixedSpan, RowSpan

if TYPE_CHECKING:
    from loopwright.model.keys.pool import KeyPool, Row
    from loopwright.model.passes import Pass, Place, Reading


Layers = Sequence[Tensor]  # of each layer [1, Hk, N, K]


class PooledRows:
    """What a pass sees of a pool: the cells of its rows. Takes the place of a cache in `Pass`.

    The books are host numbers: steps and lengths of the rows are known there, so nothing waits for the device.
    """

    def __init__(self, pool: KeyPool, rows: Sequence[Row], offsets: Sequence[int], length: int) -> None:
        self.pool, self.rows = pool, list(rows)
        offsets = tuple(offsets)
        start = torch.tensor(offsets, device=pool.device)[:, None]
        self.span = RowSpan(offsets, length, start + torch.arange(length, device=pool.device))
        self.views = pool.device.type == "cpu"  # one call per row over views; elsewhere one call over gathered cells
        self._groups: dict[str, list[int]] = {"prelude": [0] * len(self.rows)}  # of each row, at the step or reading at hand
        self._cells: dict[str, Tensor] = {}
        self._masks: dict[object, Tensor] = {}
        self._seen: dict[str, list[tuple[Layers, Layers, Tensor | None]]] = {}

    # what a pass does

    def begin_step(self, t: int | Tensor | RowSteps) -> None:
        """Begins a step of all rows, or one step per row; refused where a row misses earlier tokens of it."""
        assert not isinstance(t, Tensor), "rows of a pool take their steps from the host"
        steps = [t] * len(self.rows) if isinstance(t, int) else list(t.values)
        self._begin("core", steps)

    def begin_reading(self, reading: Reading | None) -> int:
        """Begins the coda at a reading, one for all rows or one per row."""
        if self.pool.layers["coda"]:
            assert reading is not None and not isinstance(reading, Tensor), "rows of a pool take their readings from the host"
            each = reading.values if isinstance(reading, RowSteps) else [reading] * len(self.rows)
            self._begin("coda", [row.readings.index(one) for row, one in zip(self.rows, each, strict=True)])
        return 0

    def attend(self, place: Place, q: Tensor, k: Tensor, v: Tensor, p: Pass, dropout: float = 0.0) -> Tensor:
        """Stores keys and values of the new tokens and returns what their queries q [R, T, H, K] find."""
        if place.stack == "prelude" and place.layer == 0:
            self._begin("prelude", self._groups["prelude"])
        keys, values = self.pool.keys[place.stack][place.layer], self.pool.values[place.stack][place.layer]
        cells = self._own_cells(place.stack)
        keys.index_copy_(0, cells, k.flatten(0, 1).to(keys.dtype))
        values.index_copy_(0, cells, v.flatten(0, 1).to(values.dtype))
        if self.views:
            return self._by_row(place, q)
        return self._gathered(place.stack, q, keys, values, self.pool.config.sliding_window)

    def carried_sum(self, name: str, place: Place, p: Pass, like: Tensor) -> Tensor | None:
        """Returns the running sum [R, W] of each row's last token, or None where no row has one."""
        if not any(self.span.offsets):
            return None
        last = [cell + max(offset - 1, 0) for cell, offset in zip(self._firsts(place.stack), self.span.offsets, strict=True)]
        carried = self.pool.running_sums(place.stack, name, like)[torch.tensor(last, device=like.device)]
        return torch.where((self.span.positions[:, :1] > 0), carried, 0)

    def write_sum(self, name: str, place: Place, running: Tensor, p: Pass) -> Tensor:
        """Stores the running sums of the new tokens [R, T, W] and returns those of all tokens [R, N, W]."""
        table = self.pool.running_sums(place.stack, name, running)
        table.index_copy_(0, self._own_cells(place.stack), running.flatten(0, 1))
        return table[self._all_cells(place.stack)]

    # cells

    def _begin(self, stack: str, groups: list[int]) -> None:
        for row, group, offset in zip(self.rows, groups, self.span.offsets, strict=True):
            row.place(stack, group, offset, self.span.length)
        self._groups[stack] = groups
        for kind in ("", "all "):
            self._cells.pop(kind + stack, None)
        self._seen.pop(stack, None)

    def _firsts(self, stack: str) -> list[int]:
        return [row.cell(stack, group) for row, group in zip(self.rows, self._groups[stack], strict=True)]

    def _own_cells(self, stack: str) -> Tensor:
        """Returns the cells of the new tokens [R·T]; made once for all layers of a stack."""
        if stack not in self._cells:
            first = torch.tensor(self._firsts(stack), device=self.pool.device)[:, None]
            self._cells[stack] = (first + self.span.positions).flatten()
        return self._cells[stack]

    def _all_cells(self, stack: str) -> Tensor:
        """Returns the cells of all tokens [R, N]; a shorter row repeats its last one."""
        name = f"all {stack}"
        if name not in self._cells:
            first = torch.tensor(self._firsts(stack), device=self.pool.device)[:, None]
            index = torch.arange(self.span.extent, device=self.pool.device)
            self._cells[name] = first + torch.minimum(index, self.span.positions[:, -1:])
        return self._cells[name]

    # attention

    def _by_row(self, place: Place, q: Tensor) -> Tensor:
        if place.stack not in self._seen:
            self._seen[place.stack] = self._visible(place.stack, q.dtype)
        rows = []
        for own, (keys, values, mask) in zip(q.transpose(1, 2).split(1), self._seen[place.stack], strict=True):
            causal = self.span.length > 1 and mask is None
            rows.append(attend_heads(own, keys[place.layer], values[place.layer], mask=mask, causal=causal))
        return (rows[0] if len(rows) == 1 else torch.cat(rows)).transpose(1, 2)

    def _visible(self, stack: str, dtype: torch.dtype) -> list[tuple[Layers, Layers, Tensor | None]]:
        """Returns, for each row, keys and values of all layers up to the last new token, and a mask where one is needed.

        Made once for all layers: on a CPU the views would otherwise cost as much as the attention of a short row.
        """
        length, window = self.span.length, self.pool.config.sliding_window
        rows: list[tuple[Layers, Layers, Tensor | None]] = []
        for row, group, offset in zip(self.rows, self._groups[stack], self.span.offsets, strict=True):
            first, count, mask = 0, offset + length, None
            if length == 1 and window is not None and count > window:  # older keys are out of sight
                first, count = count - window, window
            elif length > 1 and (offset or (window is not None and count > window)):
                mask = self._row_mask(offset, window, dtype)
            keys, values = (table.narrow(3, first, count).unbind(0) for table in self.pool.views(row, stack, group))
            rows.append((keys, values, mask))
        return rows

    def _row_mask(self, offset: int, window: int | None, dtype: torch.dtype) -> Tensor:
        """Returns what is added to the scores of the tokens after `offset` [1, 1, T, N]."""
        if offset not in self._masks:
            query = torch.arange(offset, offset + self.span.length)[:, None]
            self._masks[offset] = added_mask(query, torch.arange(offset + self.span.length), window, dtype)[None, None]
        return self._masks[offset]

    def _gathered(self, stack: str, q: Tensor, keys: Tensor, values: Tensor, window: int | None) -> Tensor:
        cells = self._all_cells(stack)
        if "rows" not in self._masks:
            index = torch.arange(self.span.extent, device=q.device)
            self._masks["rows"] = added_mask(self.span.positions[..., None], index, window, q.dtype)[:, None]
        return attend(q, keys[cells], values[cells], mask=self._masks["rows"], causal=False)


def added_mask(query: Tensor, key: Tensor, window: int | None, dtype: torch.dtype) -> Tensor:
    """Returns what is added to the scores of queries at some positions for keys at others: 0, or −inf where a key is not seen."""
    visible = key <= query
    if window is not None:
        visible &= key > query - window
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(~visible, float("-inf"))


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
