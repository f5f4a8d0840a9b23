"""LoopCache: keys and values by (step, layer), preallocated, with a named sharing policy.

Slots: the prelude's layers, then the core step-major, so that depth can grow while decoding; in tensors of their own those of
the coda, reading by reading. A reading is the number of steps after which the state is read out (or `Expected`, the mean of all
states): the coda's keys depend on it as the core's depend on the step. Its slots are made when it is first read out, so that
generation at one depth has one group of them. A slot is [B, capacity, width]; all slots of a kind are one tensor, so that rows at
different steps can gather theirs. Beside keys and values the cache holds running sums (the controller's pooling) and, for rows
that are padded, packed or unequally long, a ledger of which key is real, where its document began and at which position it stands.

Policies: `every` keeps one slot per step and reading (cached = uncached is owed by it alone); `last` one slot for all, Ouro's
last-step reuse; `share(n)` slot = step or reading mod n, Huginn's `compress-sN` counted in steps. Under the last two a prompt that
comes in several passes is another than in one, and a pass of several tokens on held ones warns of it.

A cache is for inference: gradients reach the tokens of the pass itself and stop at those held from earlier passes.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import Tensor
from transformers import Cache

from loopwright.model.keys.slots import Filled, Ledger, SlotTable, by_row, plain_ledger, refusal
from loopwright.model.layers import attend_in
from loopwright.model.parts.part import RowSteps
from loopwright.model.passes import Expected, Pass, Place, Reading
from loopwright.model.room import check_room

if TYPE_CHECKING:
    from loopwright.model.config import LoopedConfig
    from loopwright.model.decode_graph import DecodeGraph
    from loopwright.model.span import Span


KEYS, VALUES = "keys", "values"


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
        self.rows_given = rows > 0
        self.row_lengths = [0] * rows
        self._forget()

    def reset(self) -> None:
        """Forgets every token, storage included."""
        self.row_lengths = [0] * len(self.row_lengths)
        self._forget()

    def _forget(self) -> None:
        self.tables: dict[tuple[str, str], SlotTable] = {}  # by stack (the prelude's keys stand with the core's) and name
        self.graph: DecodeGraph | None = None
        self.graphable = True
        self.steps = 0  # the core has slots for
        self.readings: dict[int | Expected, int] = {}  # the coda has slots for, and their place
        self.filled = Filled()
        # of a plain cache's tokens [B or 1, N], once a caller has given positions of its own
        self.positions: Tensor | None = None
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
    def next_position(self) -> Tensor | None:
        """Where a plain cache's rows go on [B or 1, 1]; None where they go on at their length."""
        return self.positions[:, -1:] + 1 if self.positions is not None and self.length else None

    @property
    def storage_bytes(self) -> int:
        """The bytes allocated for keys, values and running sums."""
        return sum(table.bytes for table in self.tables.values())

    @property
    def keys(self) -> SlotTable:
        """The keys of prelude and core."""
        return self.tables["core", KEYS]

    @property
    def values(self) -> SlotTable:
        """The values of prelude and core."""
        return self.tables["core", VALUES]

    # what a pass does, in order: check, reserve, begin and write many times, advance

    def check(self, depth: int, readings: Iterable[int | Expected]) -> None:
        """Raises where a pass of so many steps with these readings would need keys of earlier tokens that were never made."""
        if not self.length:
            return
        for t in range(min(depth, self.steps + 1)):  # no later step was ever run
            self._refuse_missing("core", t, None)
        for reading in readings if self.config.coda_layers else ():
            self._refuse_missing("coda", reading, None)

    def fit_rows(self, rows: int) -> None:
        """Makes an empty cache one of so many rows; refused where it holds tokens of another number of rows."""
        if len(self.row_lengths) != rows:
            if self.length or self.rows_given:
                raise ValueError(f"cache: it holds {len(self.row_lengths)} rows, the pass has {rows}")
            self._forget()  # nothing is held: what is there is the storage of a pass that failed
            self.row_lengths = [0] * rows

    def reserve(self, span: Span, depth: int, like: Tensor) -> None:
        """Begins a pass: makes room for the tokens of `span` at `depth` steps; `like` gives device and dtype."""
        self.fit_rows(span.rows)
        if self.share is not None and self.share < depth and self.length and span.length > 1:
            warnings.warn(
                f"cache: {span.length} tokens after {self.length} under policy {self.policy!r} are not what one pass gives; "
                "run the whole prompt in one pass, or take policy 'every'",
                stacklevel=2,
            )
        capacity = self.capacity
        if span.extent > capacity:
            if self.fixed:
                raise ValueError(f"cache: {span.extent} tokens do not fit; this cache is fixed at {capacity}")
            capacity = max(span.extent, 2 * capacity, 16)
        self.filled.begin()
        self._make_steps(depth if self.share is None else min(depth, self.share), like, capacity)
        self._make_readings((), like)

    def make_room(self, readings: Iterable[int | Expected]) -> None:
        """Makes the coda's slots of all readings of a pass at once."""
        self._make_readings([self._shared(reading) for reading in readings], self.keys.data)

    def begin_step(self, t: int | Tensor | RowSteps) -> None:
        """Begins a step of all rows, or one step per row [B]; refused where a row misses earlier tokens of it."""
        runs = by_row(t, len(self.row_lengths))
        for step, rows in runs:
            if step < 0:  # it would count from the last slot
                raise ValueError(f"cache: step {step}; allowed: 0 and above")
            self._refuse_missing("core", step, rows)
        for step, rows in runs:
            slot = self._shared(step)
            if slot >= self.steps:
                self._make_steps(slot + 1, self.keys.data)
            self.filled.ran(("core", slot), rows, self.row_lengths)

    def begin_reading(self, reading: Reading | None) -> int | Tensor:
        """Begins a reading, or one per row [B], where no row misses earlier tokens of it; returns which coda slots are its own."""
        if not self.config.coda_layers:
            return 0
        if reading is None:
            raise ValueError("read_out: a cache with a coda needs `reading`, the number of steps after which the state is read")
        places, runs = [], by_row(reading, len(self.row_lengths))
        for one, rows in runs:
            self._refuse_missing("coda", one, rows)
        for one, rows in runs:
            key = self._shared(one)
            self._make_readings([key], self.keys.data)
            self.filled.ran(("coda", key), rows, self.row_lengths)
            places += [(row, self.readings[key]) for row in rows or [0]]
        if not isinstance(reading, Tensor | RowSteps):
            return places[0][1]
        return torch.tensor([place for _, place in sorted(places)], device=self.keys.data.device)

    def write(self, place: Place, key: Tensor, value: Tensor, p: Pass) -> tuple[Tensor, Tensor]:
        """Stores new keys and values [B, T, Hk, K] and returns those of all tokens up to now [B, N, Hk, K]."""
        stack, slot = self.slot_of(place, p)
        return self.tables[stack, KEYS].write(slot, key, p.batch_span), self.tables[stack, VALUES].write(slot, value, p.batch_span)

    def attend(self, place: Place, q: Tensor, k: Tensor, v: Tensor, p: Pass, dropout: float = 0.0) -> Tensor:
        """Stores new keys and values and returns what the queries q [B, T, H, K] find among all tokens up to now."""
        k, v = self.write(place, k, v, p)
        return attend_in(p, place, q, k, v, dropout)

    def carried_sum(self, name: str, place: Place, p: Pass, like: Tensor) -> Tensor | None:
        """Returns the running sum [B, W] of each row's last token at a step or reading, or None where nothing is cached."""
        span = p.batch_span
        if span.offset == 0:
            return None
        last = torch.full((span.rows,), span.offset - 1, device=like.device) if span.index is None else span.index[:, 0] - 1
        carried = self._table((place.stack, name), (like.shape[-1],), like).at(self._group(place, p), last.clamp(min=0))
        return torch.where((last >= 0)[:, None], carried, 0)

    def write_sum(self, name: str, place: Place, running: Tensor, p: Pass) -> Tensor:
        """Stores the running sums of the new tokens [B, T, W] and returns those of all tokens [B, N, W]."""
        return self._table((place.stack, name), (running.shape[-1],), running).write(self._group(place, p), running, p.batch_span)

    def advance(self, span: Span) -> None:
        """Counts the tokens of `span` as held. Called once, when the pass is done."""
        if not span.plain:
            self._ledger = self.ledger(span.rows, span.positions.device)
            self._ledger.extend(span)
            self.positions = None
        elif span.explicit or self.positions is not None:
            self.place(span.positions)
        self.count(span.length)

    def place(self, positions: Tensor) -> None:
        """Notes where the next tokens of a plain cache stand [B or 1, T]."""
        held = self.positions
        if held is None:
            held = torch.arange(self.length, device=positions.device)[None]
        rows = max(held.shape[0], positions.shape[0])
        self.positions = torch.cat([held.expand(rows, -1), positions.expand(rows, -1)], 1)

    def count(self, length: int) -> None:
        """Counts so many more tokens per row, at the steps and readings that were begun."""
        self.filled.advance(self.row_lengths)
        self.row_lengths = [n + length for n in self.row_lengths]

    def retire_graph(self) -> None:
        """Drops the captured decode pass, where there is one, for good: something else moves the rows of this cache."""
        self.graph, self.graphable = None, self.graphable and self.graph is None

    def ledger(self, rows: int, device: torch.device) -> Ledger:
        """Returns the ledger, made from a plain cache's lengths where there was none yet, wide enough for the storage."""
        if self._ledger is None:
            return plain_ledger(self.row_lengths or [0] * rows, self.capacity, self.positions, device)
        return self._ledger.widened(self.capacity)

    # rows

    def crop(self, length: int) -> None:
        """Keeps the first `length` tokens of each row; zero or a negative number removes that many from the end."""
        length = int(length)  # a version of transformers may hand over a tensor
        self.retire_graph()
        self.row_lengths = [max(n + length, 0) if length <= 0 else min(n, length) for n in self.row_lengths]
        if self.positions is not None:
            self.positions = self.positions[:, : self.length]
        self.filled.crop(self.row_lengths)
        if self._ledger is not None:
            self._ledger.crop(self.row_lengths)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Replaces the rows by the chosen ones, in that order (a row may be chosen twice or not at all)."""
        self.retire_graph()
        order = beam_idx.tolist()
        self.row_lengths = [self.row_lengths[i] for i in order]
        self.filled.choose_rows(order)
        for table in self.tables.values():
            table.choose_rows(beam_idx)
        if self.positions is not None and self.positions.shape[0] > 1:
            self.positions = self.positions.index_select(0, beam_idx.to(self.positions.device))
        if self._ledger is not None:
            self._ledger = self._ledger.map_rows(beam_idx.to(self._ledger.lengths.device))

    batch_select_indices = reorder_cache  # type: ignore[assignment]  # ours names its argument as transformers calls it

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeats each row `repeats` times."""
        self.reorder_cache(torch.arange(len(self.row_lengths)).repeat_interleave(repeats))

    def free(self, row: int) -> None:
        """Empties one row, so that another sequence can be admitted to it."""
        if not self.is_initialized:
            return
        self.retire_graph()
        self._make_ledger()
        assert self._ledger is not None
        self.row_lengths[row] = 0
        self.filled.crop(self.row_lengths)
        self._ledger.lengths[row] = 0
        self._ledger.valid[row] = False

    def admit(self, row: int, other: LoopCache, other_row: int = 0) -> None:
        """Copies one row of another cache of the same model and policy into `row`, whatever their lengths."""
        if other.policy != self.policy or not other.is_initialized:
            raise ValueError(f"cache: cannot admit a row of an empty or {other.policy!r} cache into a {self.policy!r} one")
        length = other.row_lengths[other_row]
        if length > self.capacity and self.fixed:
            raise ValueError(f"cache: {length} tokens do not fit; this cache is fixed at {self.capacity}")
        self.retire_graph()
        self._make_steps(other.steps, other.keys.data, length)
        self._make_readings(other.readings, other.keys.data)
        for (stack, name), theirs in other.tables.items():
            ours = self._table((stack, name), theirs.data.shape[3:], theirs.data)
            slots = list(range(theirs.data.shape[0]))
            if stack == "coda":  # the two caches may have met the readings in another order
                each = self.config.coda_layers if name in (KEYS, VALUES) else 1
                slots = [self.readings[reading] * each + i for reading in other.readings for i in range(each)][: len(slots)]
            ours.copy_row(row, theirs, other_row, length, slots)
        self._make_ledger()
        assert self._ledger is not None
        self._ledger.admit(row, other.ledger(len(other.row_lengths), other.keys.data.device), other_row, length)
        self.row_lengths[row] = length
        self.filled.admit(row, other.filled, other_row, self.row_lengths)

    # the names transformers asks for

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """The number of tokens held."""
        return self.length

    def get_max_length(self, layer_idx: int | None = None) -> int:
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
        return self._slots("core", KEYS) + self._slots("coda", KEYS) if self.is_initialized else 0

    def __repr__(self) -> str:
        return f"LoopCache(policy={self.policy!r}, rows={self.row_lengths}, slots={len(self)}, capacity={self.capacity})"

    def _make_ledger(self) -> None:
        self._ledger = self.ledger(len(self.row_lengths), self.keys.data.device)

    def _shared(self, at: Any) -> Any:
        """Returns what stands for a step or a reading under the policy."""
        if self.share is None:
            return at
        return Expected(at.depth % self.share) if isinstance(at, Expected) else at % self.share

    def _group(self, place: Place, p: Pass) -> int | Tensor:
        """Returns the place of a step among the core's, or of a reading among the coda's; one per row, or an int."""
        if place.stack == "prelude":
            return 0
        return p.coda_group if place.stack == "coda" else self._shared(place.step.t)

    def slot_of(self, place: Place, p: Pass) -> tuple[str, int | Tensor]:
        """Returns the stack whose tables hold the keys of a place, and the slot there (one per row, or an int)."""
        if place.stack == "coda":
            return "coda", self._group(place, p) * self.config.coda_layers + place.layer
        if place.stack == "prelude":
            return "core", place.layer
        return "core", self.config.prelude_layers + self._group(place, p) * self.config.core_layers + place.layer

    def _refuse_missing(self, stack: str, at: int | Expected, rows: list[int] | None) -> None:
        short = self.filled.short((stack, self._shared(at)), rows, self.row_lengths)
        if short is None:
            return
        row, held = short
        count = f"{held} of {self.row_lengths[row]} earlier tokens" + (f" of row {row}" if len(self.row_lengths) > 1 else "")
        raise ValueError(refusal(stack, at, count))

    def _make_steps(self, steps: int, like: Tensor, capacity: int = 0) -> None:
        before = self.steps, self.capacity
        self.steps, self.capacity = max(self.steps, steps), max(self.capacity, capacity)
        try:
            self._make_keys("core", like)
        except (ValueError, RuntimeError):  # no room: the cache stays as it was
            self.steps, self.capacity = before
            raise

    def _make_readings(self, keys: Iterable[int | Expected], like: Tensor) -> None:
        if not self.config.coda_layers:
            return
        for key in keys:
            self.readings.setdefault(key, len(self.readings))
        if self.readings:
            self._make_keys("coda", like)

    def _make_keys(self, stack: str, like: Tensor) -> None:
        for name in (KEYS, VALUES):
            self._table((stack, name), (self.config.num_key_value_heads, self.config.head_dim), like)

    def _slots(self, stack: str, name: str) -> int:
        """Returns how many slots a table has: one per layer for keys and values, one per step or reading for running sums."""
        groups = {"prelude": 1, "core": self.steps, "coda": len(self.readings)}[stack]
        if name not in (KEYS, VALUES):
            return groups
        layers = {"core": self.config.core_layers, "coda": self.config.coda_layers}[stack]
        return groups * layers + (self.config.prelude_layers if stack == "core" else 0)

    def _table(self, key: tuple[str, str], entry: tuple[int, ...], like: Tensor) -> SlotTable:
        shape = (self._slots(*key), len(self.row_lengths), self.capacity)
        table = self.tables.get(key)
        if table is None or not table.holds(*shape):
            wanted = math.prod((*shape, *entry)) * like.element_size() * (2 if key[1] == KEYS else 1)
            what = "cache: {:,} slots of {} × {} tokens".format(*shape)
            check_room(what, wanted, like.device, "take a lower depth, fewer tokens or rows, or policy 'last'")
        if table is None:
            table = self.tables[key] = SlotTable((*shape, *entry), like)
        table.grow(*shape)
        return table


def _shared_steps(policy: str) -> int | None:
    if policy == "every":
        return None
    if policy == "last":
        return 1
    match = re.fullmatch(r"share\((\d+)\)", policy)
    if match is None or int(match[1]) < 1:
        raise ValueError(f"cache: unknown policy {policy!r}; allowed: every, last, share(n) with n of at least 1")
    return int(match[1])
