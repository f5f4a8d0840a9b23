"""KeyPool: keys and values of many sequences, each at its own depth, length and step, in storage that is sized once.

A *cell* holds one token of one group: the prelude, a step of the core, or a reading of the coda. All layers of a stack share the
numbering of its cells. A sequence is admitted with one run of cells per stack, groups one after another, so that the cells of a
group are consecutive: attention reads them as a view, and a paged kernel would read them as pages. Depth costs what it needs: a
sequence at depth 2 takes a quarter of the core cells of one at depth 8. What a former sequence left in a cell is never read:
a group is read up to the tokens that its present owner wrote.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from loopwright.model.keys.cache import refusal
from loopwright.model.passes import STACKS, Expected
from loopwright.model.room import check_room

if TYPE_CHECKING:
    from loopwright.model.config import LoopedConfig


class Cells:
    """The free cells of a stack: first fit, neighbours merged."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.free = [(0, count)] if count else []

    def take(self, count: int) -> int | None:
        """Returns the first of `count` consecutive cells, or None where no gap is wide enough."""
        for i, (start, size) in enumerate(self.free):
            if size >= count:
                self.free[i : i + 1] = [(start + count, size - count)] if size > count else []
                return start
        return None

    def give(self, start: int, count: int) -> None:
        """Takes cells back."""
        if not count:
            return
        at = bisect.bisect(self.free, (start, 0))
        if at < len(self.free) and start + count == self.free[at][0]:
            count += self.free.pop(at)[1]
        if at and sum(self.free[at - 1]) == start:
            before, size = self.free.pop(at - 1)
            start, count, at = before, size + count, at - 1
        self.free.insert(at, (start, count))


@dataclass
class Row:
    """One sequence of a pool: room for `capacity` tokens at `steps` steps and the given readings."""

    capacity: int
    steps: int
    readings: tuple[int | Expected, ...]
    starts: dict[str, int]  # the first cell of each stack
    stacks: tuple[str, ...]  # that have layers, and so keys
    filled: dict[tuple[str, int], int] = field(default_factory=dict)  # the tokens that a group holds; absent: none
    views: dict[tuple[str, int], tuple[Tensor, Tensor]] = field(default_factory=dict, repr=False)

    def groups(self, stack: str) -> int:
        """Returns how many groups of cells the row has in a stack."""
        return {"prelude": 1, "core": self.steps, "coda": len(self.readings)}[stack]

    def cell(self, stack: str, group: int) -> int:
        """Returns the first cell of a group."""
        return self.starts[stack] + group * self.capacity

    def held(self, stack: str, group: int) -> int:
        """Returns how many tokens a group holds."""
        return self.filled.get((stack, group), 0)

    @property
    def complete(self) -> int:
        """The tokens that every group of the row holds."""
        return min((self.held(stack, group) for stack in self.stacks for group in range(self.groups(stack))), default=0)

    def place(self, stack: str, group: int, offset: int, length: int) -> None:
        """Counts `length` tokens after the first `offset` of a group; refused where those were never made or none fit."""
        held = self.held(stack, group)
        if held < offset:
            at = self.readings[group] if stack == "coda" else group
            raise ValueError(refusal(stack, at, f"{held} of {offset} earlier tokens"))
        if offset + length > self.capacity or group >= self.groups(stack):
            raise ValueError(
                f"pool: {offset + length} tokens of {stack} group {group} do not fit; the row has room for {self.capacity} tokens "
                f"of {self.groups(stack)} groups"
            )
        self.filled[stack, group] = offset + length

    def crop(self, length: int) -> None:
        """Keeps the first `length` tokens of every group."""
        self.filled = {group: min(held, length) for group, held in self.filled.items()}


class KeyPool:
    """Storage for `tokens` tokens at `depth` steps and `readings` of the coda, in all. A deeper sequence takes more of it."""

    def __init__(self, config: LoopedConfig, tokens: int, like: Tensor, *, depth: int | None = None, readings: int = 1) -> None:
        if tokens < 1:
            raise ValueError(f"pool: tokens must be at least 1 (got {tokens})")
        self.config = config
        steps = (depth or config.depth) if config.is_looped else 0
        self.layers = {"prelude": config.prelude_layers, "core": config.core_layers, "coda": config.coda_layers}
        counts = {"prelude": tokens, "core": tokens * steps, "coda": tokens * readings}
        # stacks without layers need no cells, and must not limit admission
        self.cells = {stack: Cells(counts[stack] if self.layers[stack] else 0) for stack in STACKS}
        entry = (config.num_key_value_heads, config.head_dim)
        shapes = {stack: (self.layers[stack], self.cells[stack].count, *entry) for stack in STACKS}
        wanted = sum(2 * torch.Size(shape).numel() for shape in shapes.values()) * like.element_size()
        check_room(f"pool: {tokens:,} tokens at depth {steps}", wanted, like.device, "take fewer tokens")
        self.keys, self.values = ({stack: like.new_zeros(shape) for stack, shape in shapes.items()} for _ in range(2))
        self.sums: dict[tuple[str, str], Tensor] = {}  # running sums [cells, W] by stack and adapter
        self._states: tuple[Tensor, Tensor] | None = None

    @property
    def storage_bytes(self) -> int:
        """The bytes allocated for keys, values, running sums and states."""
        tensors = [*self.keys.values(), *self.values.values(), *self.sums.values(), *(self._states or ())]
        return sum(x.numel() * x.element_size() for x in tensors)

    @property
    def device(self) -> torch.device:
        """Where the storage lies."""
        return self.keys["core"].device

    def views(self, row: Row, stack: str, group: int) -> tuple[Tensor, Tensor]:
        """Returns keys and values of a group [layers, 1, Hk, capacity, K]."""
        name = stack, group
        if name not in row.views:
            first = row.cell(stack, group)
            keys, values = (
                table[stack][:, None, first : first + row.capacity].transpose(2, 3) for table in (self.keys, self.values)
            )
            row.views[name] = keys, values
        return row.views[name]

    def running_sums(self, stack: str, name: str, like: Tensor) -> Tensor:
        """Returns the running sums that an adapter keeps of a stack's cells [cells, W]; made when they are first asked for."""
        if (stack, name) not in self.sums:
            self.sums[stack, name] = like.new_zeros(self.cells[stack].count, like.shape[-1])
        return self.sums[stack, name]

    @property
    def input_stack(self) -> str:
        """The stack by whose cells inputs of the core are numbered: one for each token, where there is a prelude with keys."""
        return "prelude" if self.layers["prelude"] else "core"

    @property
    def states(self) -> tuple[Tensor, Tensor]:
        """Inputs [cells + 1, D], by the cells of `input_stack`, and states after each step [cells + 1, D], by those of the core.

        For tokens that may run further later; made when first asked for. Nobody reads the last line of either: rows that keep
        nothing may write there.
        """
        if self._states is None:
            like, width = self.keys["core"], self.config.hidden_size
            counts = [self.cells[stack].count + 1 for stack in (self.input_stack, "core")]
            wanted = sum(counts) * width * like.element_size()
            check_room("pool: states that exits and drafts keep", wanted, like.device, "build the engine with a smaller max_tokens")
            inputs, states = (like.new_empty(count, width) for count in counts)
            self._states = inputs, states
        return self._states

    def need(self, tokens: int, steps: int, readings: int = 1) -> dict[str, int]:
        """Returns the cells that a sequence takes, by stack."""
        groups = {"prelude": 1, "core": steps if self.config.is_looped else 0, "coda": readings}
        return {stack: groups[stack] * tokens if self.layers[stack] else 0 for stack in STACKS}

    def check_fits(self, tokens: int, steps: int, readings: int = 1) -> None:
        """Raises a ValueError with the numbers where a sequence would not fit into the empty pool."""
        for stack, cells in self.need(tokens, steps, readings).items():
            if cells > self.cells[stack].count:
                at = f"{tokens} tokens at depth {steps}" + (f" with {readings} readings" if readings > 1 else "")
                raise ValueError(
                    f"request: {at} take {cells:,} {stack} cells and the pool has {self.cells[stack].count:,}; ask for fewer "
                    "tokens or a lower depth, or build the engine with a larger max_tokens"
                )

    def admit(self, tokens: int, steps: int, readings: tuple[int | Expected, ...]) -> Row | None:
        """Returns a row for a sequence, or None where it does not fit now."""
        starts: dict[str, int] = {}
        need = self.need(tokens, steps, len(readings))
        for stack, count in need.items():
            start = self.cells[stack].take(count) if count else 0
            if start is None:
                for taken, first in starts.items():
                    self.cells[taken].give(first, need[taken])
                return None
            starts[stack] = start
        stacks = tuple(stack for stack in STACKS if self.layers[stack])
        return Row(tokens, steps if self.config.is_looped else 0, readings, starts, stacks)

    def free(self, row: Row) -> None:
        """Takes the cells of a row back; the row must not be used again."""
        for stack, count in self.need(row.capacity, row.steps, len(row.readings)).items():
            self.cells[stack].give(row.starts[stack], count)
        row.starts, row.views = {}, {}

    def copy_token(self, row: Row, stack: str, index: int, source: int, groups: Iterable[int]) -> None:
        """Copies what one group holds of a token to other groups, which must hold all tokens before it."""
        if not self.layers[stack]:
            return
        tables = [self.keys[stack], self.values[stack], *(table[None] for (of, _), table in self.sums.items() if of == stack)]
        for group in groups:
            row.place(stack, group, index, 1)
            for table in tables:
                table[:, row.cell(stack, group) + index] = table[:, row.cell(stack, source) + index]

    def copy_prefix(self, source: Row, target: Row, length: int) -> None:
        """Copies the first `length` tokens of a row of equal depth and readings, with everything the cells hold."""
        for stack in STACKS:
            for group in range(target.groups(stack)):
                if not self.layers[stack] or source.held(stack, group) < length:
                    continue
                old, new = source.cell(stack, group), target.cell(stack, group)
                tables = [self.keys[stack], self.values[stack]]
                tables += [table[None] for (of, _), table in self.sums.items() if of == stack]
                for table in tables:
                    table[:, new : new + length] = table[:, old : old + length]
                target.filled[stack, group] = length
