"""LoopCache: keys and values by (step, layer), preallocated, with a named sharing policy.

Slots: the prelude's layers, the coda's, then the core step-major, so that depth can grow while decoding. A slot is
[B, capacity, width]; all slots of a kind are one tensor, so that rows at different steps can gather theirs. Beside keys
and values the cache holds running sums (the controller's pooling) and, for rows that are padded, packed or unequally long,
a ledger of which key is real, where its document began and at which position it stands.

Policies: `every` keeps one slot per step (cached = uncached is owed by it alone); `last` one slot for all steps; `share(n)`
slot = step mod n.

A cache is for inference: gradients reach the tokens of the pass itself and stop at those held from earlier passes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import torch
from torch import Tensor
from transformers import Cache

from loopwright.model.context import Place
from loopwright.model.slots import SlotTable
from loopwright.model.span import Span

if TYPE_CHECKING:
    from loopwright.model.config import LoopedConfig
    from loopwright.model.graph import DecodeGraph


PER_KEY = ("valid", "first", "positions", "segments")


@dataclass
class Ledger:
    """What is known of each cached key [B, capacity], and how long each row is [B]."""

    lengths: Tensor
    valid: Tensor
    first: Tensor
    positions: Tensor
    segments: Tensor

    def last(self) -> tuple[Tensor, Tensor, Tensor]:
        """Returns segment, first index and position of the last real token of each row; −1 where there is none."""
        order = torch.arange(1, self.valid.shape[1] + 1, device=self.valid.device)
        latest, at = (self.valid * order).max(1)
        some = latest > 0
        pick = (table.gather(1, at[:, None])[:, 0] for table in (self.segments, self.first, self.positions))
        segment, first, position = (torch.where(some, value, -1) for value in pick)
        return segment, first, position

    def map_rows(self, rows: Tensor) -> Ledger:
        """Returns the ledger of the chosen rows, in that order."""
        return Ledger(*(getattr(self, name).index_select(0, rows) for name in self.__dataclass_fields__))


class LoopCache(Cache):
    """Keys and values of a looped model. Grows by doubling; with `fixed` it never outgrows `capacity`."""

    def __init__(
        self, config: LoopedConfig, *, rows: int = 0, capacity: int = 0, policy: str = "every", fixed: bool = False
    ) -> None:
        super().__init__(layers=[])
        self.config = config
        self.policy = policy
        self.share = _shared_steps(policy)
        self.capacity = capacity
        self.fixed = fixed
        self.once = config.prelude_layers + config.coda_layers
        self.row_lengths = [0] * rows
        self._forget()

    def reset(self) -> None:
        """Forgets every token, storage included."""
        self.row_lengths = [0] * len(self.row_lengths)
        self._forget()

    def _forget(self) -> None:
        self.tables: dict[str, SlotTable] = {}
        self.graph: DecodeGraph | None = None
        self.graphable = True
        self.filled: list[int] = []
        # where a plain cache's rows go on [B or 1, 1], once a caller has given positions of its own
        self.next_position: Tensor | None = None
        self._ledger: Ledger | None = None

    @property
    def length(self) -> int:
        """The number of tokens held (of the longest row)."""
        return max(self.row_lengths, default=0)

    @property
    def plain(self) -> bool:
        """Whether every row is equally long, unpadded and one document."""
        return self._ledger is None

    @property
    def storage_bytes(self) -> int:
        """The bytes allocated for keys, values and running sums."""
        return sum(table.bytes for table in self.tables.values())

    # what a pass does, in order: reserve, write many times, advance

    def reserve(self, span: Span, depth: int, like: Tensor) -> None:
        """Makes room for the tokens of `span` at `depth` steps; `like` gives device and dtype."""
        if self.row_lengths and len(self.row_lengths) != span.rows:
            raise ValueError(f"cache: it holds {len(self.row_lengths)} rows, the pass has {span.rows}")
        if not self.row_lengths:
            self.row_lengths = [0] * span.rows
        if span.extent > self.capacity:
            if self.fixed:
                raise ValueError(f"cache: {span.extent} tokens do not fit; this cache is fixed at {self.capacity}")
            self.capacity = max(span.extent, 2 * self.capacity, 16)
        steps = depth if self.share is None else min(depth, self.share)
        slots = max(self.once + steps * self.config.core_layers, len(self.filled))
        heads = (self.config.num_key_value_heads, self.config.head_dim)
        self.keys = self._table("keys", slots, span.rows, heads, like)
        self.values = self._table("values", slots, span.rows, heads, like)
        self.filled += [0] * (slots - len(self.filled))

    def write(self, place: Place, key: Tensor, value: Tensor, span: Span) -> tuple[Tensor, Tensor]:
        """Stores new keys and values [B, T, Hk, K] and returns those of all tokens up to now [B, N, Hk, K]."""
        slot = self._slot(place)
        self._check_filled(slot, place, span)
        return self.keys.write(slot, key, span), self.values.write(slot, value, span)

    def carried_sum(self, name: str, step: int | Tensor | None, span: Span, like: Tensor) -> Tensor | None:
        """Returns the running sum [B, W] of each row's last token at this step (None: of a stack that runs once), or
        None where nothing is cached."""
        if span.offset == 0:
            return None
        if span.index is None:
            last = torch.full((span.rows,), span.offset - 1, device=like.device)
        else:
            last = span.index[:, 0] - 1
        found = self._sums(name, step, span, like).at(self._step_slot(step), last.clamp(min=0))
        return torch.where((last >= 0)[:, None], found, 0)

    def write_sum(self, name: str, step: int | Tensor | None, running: Tensor, span: Span) -> Tensor:
        """Stores the running sums of the new tokens [B, T, W] and returns those of all tokens [B, N, W]."""
        return self._sums(name, step, span, running).write(self._step_slot(step), running, span)

    def advance(self, span: Span) -> None:
        """Counts the tokens of `span` as held. Called once, when the pass is done."""
        if not span.plain:
            assert span.index is not None and span.first is not None
            ledger = self.ledger(span.rows, span.positions.device)
            index = span.index
            ledger.valid[:, : span.extent] = span.valid
            ledger.first.scatter_(1, index, span.first)
            ledger.positions.scatter_(1, index, span.positions.expand(span.rows, span.length))
            ledger.segments.scatter_(1, index, span.segments)
            ledger.lengths = ledger.lengths + span.length
            self._ledger = ledger
        if span.explicit or self.next_position is not None:
            self.next_position = span.positions[:, -1:] + 1
        self.row_lengths = [n + span.length for n in self.row_lengths]

    def retire_graph(self) -> None:
        """Drops the captured decode pass for good: something else moves the rows of this cache."""
        self.graph, self.graphable = None, False

    def ledger(self, rows: int, device: torch.device) -> Ledger:
        """Returns the ledger, made from a plain cache's lengths where there was none yet, wide enough for the storage."""
        lengths = self.row_lengths or [0] * rows
        old = self._ledger
        if old is None:
            held = torch.tensor(lengths, device=device)
            order = torch.arange(self.capacity, device=device).expand(rows, -1)
            zeros = torch.zeros_like(order)
            shift = 0 if self.next_position is None else self.next_position - held[:, None]
            old = Ledger(held, order < held[:, None], zeros.clone(), (order + shift).clone(), zeros.clone())
        missing = self.capacity - old.valid.shape[1]
        if missing > 0:
            wide = {name: torch.nn.functional.pad(getattr(old, name), (0, missing)) for name in PER_KEY}
            old = Ledger(old.lengths, **wide)
        return old

    # rows

    def crop(self, length: int) -> None:
        """Keeps the first `length` tokens of each row; zero or a negative number removes that many from the end."""
        before = self.length
        self.row_lengths = [max(n + length, 0) if length <= 0 else min(n, length) for n in self.row_lengths]
        if self.next_position is not None:
            self.next_position = self.next_position - (before - self.length)
        self.filled = [min(n, self.length) for n in self.filled]
        if self._ledger is not None:
            held = torch.tensor(self.row_lengths, device=self._ledger.lengths.device)
            order = torch.arange(self._ledger.valid.shape[1], device=held.device)
            self._ledger.lengths = held
            self._ledger.valid = self._ledger.valid & (order < held[:, None])

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Replaces the rows by the chosen ones, in that order (a row may be chosen twice or not at all)."""
        self.row_lengths = [self.row_lengths[i] for i in beam_idx.tolist()]
        for table in self.tables.values():
            table.choose_rows(beam_idx)
        if self.next_position is not None and self.next_position.shape[0] > 1:
            self.next_position = self.next_position.index_select(0, beam_idx.to(self.next_position.device))
        if self._ledger is not None:
            self._ledger = self._ledger.map_rows(beam_idx.to(self._ledger.lengths.device))

    batch_select_indices = reorder_cache

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeats each row `repeats` times."""
        self.reorder_cache(torch.arange(len(self.row_lengths)).repeat_interleave(repeats))

    def free(self, row: int) -> None:
        """Empties one row, so that another sequence can be admitted to it."""
        if not self.is_initialized:
            return
        self._make_ledger()
        assert self._ledger is not None
        self.row_lengths[row] = 0
        self._ledger.lengths[row] = 0
        self._ledger.valid[row] = False

    def admit(self, row: int, other: LoopCache, other_row: int = 0) -> None:
        """Copies one row of another cache of the same model and policy into `row`, whatever their lengths."""
        if other.policy != self.policy or not other.is_initialized:
            raise ValueError(f"cache: cannot admit a row of an empty or {other.policy!r} cache into a {self.policy!r} one")
        length = other.row_lengths[other_row]
        if length > self.capacity and self.fixed:
            raise ValueError(f"cache: {length} tokens do not fit; this cache is fixed at {self.capacity}")
        self.capacity = max(self.capacity, length)
        for name, theirs in other.tables.items():
            ours = self._table(name, theirs.data.shape[0], len(self.row_lengths), theirs.data.shape[3:], theirs.data)
            ours.copy_row(row, theirs, other_row, length)
        self.keys, self.values = self.tables["keys"], self.tables["values"]
        # a slot counts as filled only where the rows here and the new row both went that deep
        slots = len(self.keys.views)
        mine = [n >= self.length for n in _padded(self.filled, slots)]
        theirs_full = [n >= length for n in _padded(other.filled, slots)]
        self._make_ledger()
        assert self._ledger is not None
        source = other.ledger(len(other.row_lengths), other.keys.data.device)
        for table in PER_KEY:
            getattr(self._ledger, table)[row] = 0
            getattr(self._ledger, table)[row, :length] = getattr(source, table)[other_row, :length]
        self._ledger.lengths[row] = length
        self.row_lengths[row] = length
        self.filled = [self.length if a and b else 0 for a, b in zip(mine, theirs_full, strict=True)]

    # the names transformers asks for

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """The number of tokens held."""
        return self.length

    def get_max_length(self) -> int:
        """The number of tokens that fit, or −1 where the cache grows."""
        return self.capacity if self.fixed else -1

    get_max_cache_shape = get_max_length

    @property
    def is_compileable(self) -> bool:
        """Always False: its Python-int lengths are not for a compiled whole-model forward."""
        return False

    @property
    def is_initialized(self) -> bool:
        """Whether storage is allocated."""
        return bool(self.tables)

    def activate_past_recording(self) -> None:
        """Nothing to switch on: any crop can be undone by running the tokens again."""

    def update(self, *args: object, **kwargs: object) -> NoReturn:
        """Refused: without the step a key has no slot."""
        raise TypeError("LoopCache.update: a looped model writes by (step, layer); only loopwright models can use this cache")

    def __len__(self) -> int:
        return len(self.filled)

    def __repr__(self) -> str:
        return f"LoopCache(policy={self.policy!r}, rows={self.row_lengths}, slots={len(self.filled)}, capacity={self.capacity})"

    def _make_ledger(self) -> None:
        self._ledger = self.ledger(len(self.row_lengths), self.keys.data.device)

    def _step_slot(self, step: int | Tensor | None) -> int | Tensor:
        if step is None:
            return 0
        return step if self.share is None else step % self.share

    def _slot(self, place: Place) -> int | Tensor:
        if place.stack == "prelude":
            return place.layer
        if place.stack == "coda":
            return self.config.prelude_layers + place.layer
        return self.once + self._step_slot(place.step) * self.config.core_layers + place.layer

    def _check_filled(self, slot: int | Tensor, place: Place, span: Span) -> None:
        if isinstance(slot, Tensor):  # rows at their own steps: the scheduler vouches for them
            self.filled = [span.extent] * len(self.filled)
            return
        if self.filled[slot] < span.offset:
            raise ValueError(
                f"cache: step {place.step} holds {self.filled[slot]} of {span.offset} earlier tokens, so they were run less "
                "deep; keep one depth for a sequence, or use policy 'last'"
            )
        self.filled[slot] = span.extent

    def _table(self, name: str, slots: int, rows: int, entry: tuple[int, ...], like: Tensor) -> SlotTable:
        if name not in self.tables:
            self.tables[name] = SlotTable((slots, rows, self.capacity, *entry), like)
        self.tables[name].grow(slots, rows, self.capacity)
        return self.tables[name]

    def _sums(self, name: str, step: int | Tensor | None, span: Span, like: Tensor) -> SlotTable:
        steps = 1 if step is None else (len(self.keys.views) - self.once) // self.config.core_layers
        return self._table(name, steps, span.rows, (like.shape[-1],), like)


def _shared_steps(policy: str) -> int | None:
    if policy == "every":
        return None
    if policy == "last":
        return 1
    found = re.fullmatch(r"share\((\d+)\)", policy)
    if found is None or int(found[1]) < 1:
        raise ValueError(f"cache: unknown policy {policy!r}; allowed: every, last, share(n) with n of at least 1")
    return int(found[1])


def _padded(values: list[int], length: int) -> list[int]:
    return values + [0] * (length - len(values))
