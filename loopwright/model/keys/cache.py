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

Which rows miss earlier tokens of a step or a reading, `Filled` says in plain numbers on the host. A row that was not run at a group
(the slots that one run of a stack writes) for some token can never be run there again: its later tokens would attend to keys that
were never made. So only the rows that fell behind are kept, and a pass at an unchanged depth changes nothing there.

A cache is for inference: gradients reach the tokens of the pass itself and stop at those held from earlier passes.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import torch
from torch import Tensor
from transformers import Cache

from loopwright.model.layers import attend_in
from loopwright.model.parts.part import RowSteps
from loopwright.model.passes import Expected, Pass, Place, Reading
from loopwright.model.room import check_room
from loopwright.model.span import Ledger, Span, plain_ledger

if TYPE_CHECKING:
    from loopwright.model.config import LoopedConfig


class SlotTable:
    """A tensor [slots, B, capacity, …] with a ready view of each slot: a decode step writes hundreds of times."""

    def __init__(self, shape: tuple[int, ...], like: Tensor) -> None:
        self._hold(torch.zeros(shape, dtype=like.dtype, device=like.device))

    def _hold(self, data: Tensor) -> None:
        self.data = data
        self.views = data.unbind(0)

    @property
    def bytes(self) -> int:
        """The bytes allocated."""
        return self.data.numel() * self.data.element_size()

    def holds(self, slots: int, rows: int, capacity: int) -> bool:
        """Whether there is room for this many slots, rows and tokens."""
        return all(have >= want for have, want in zip(self.data.shape, (slots, rows, capacity), strict=False))

    def grow(self, slots: int, rows: int, capacity: int) -> None:
        """Makes at least this many slots, rows and tokens, keeping what is there."""
        old = self.data
        wanted = tuple(max(have, want) for have, want in zip(old.shape, (slots, rows, capacity), strict=False))
        if wanted != old.shape[:3]:
            new = old.new_zeros(wanted + old.shape[3:])
            new[: old.shape[0], : old.shape[1], : old.shape[2]] = old
            self._hold(new)

    def choose_rows(self, rows: Tensor) -> None:
        """Replaces the rows by the chosen ones, in that order."""
        self._hold(self.data.index_select(1, rows.to(self.data.device)))

    def at(self, slot: int | Tensor, index: Tensor) -> Tensor:
        """Returns the entries [B, …] at one token index per row, of one slot or one per row."""
        return self.data[slot, torch.arange(len(index), device=self.data.device), index]

    def write(self, slot: int | Tensor, new: Tensor, span: Span) -> Tensor:
        """Stores `new` [B, T, …] at the span, in one slot or one per row; returns all up to the span's end [B, N, …]."""
        if isinstance(slot, int) and span.plain:
            view = self.views[slot]
            if torch.is_grad_enabled():  # even where `new` is frozen: autograd keeps what attention reads
                with torch.no_grad():
                    view.narrow(1, span.offset, span.length).copy_(new)
                # what autograd may follow: earlier tokens as constants, the new ones as they came
                return torch.cat([view.narrow(1, 0, span.offset).clone(), new.to(view.dtype)], dim=1)
            view.narrow(1, span.offset, span.length).copy_(new)
            return view.narrow(1, 0, span.extent)
        if new.requires_grad and torch.is_grad_enabled():
            raise ValueError("cache: rows that are padded, packed or at their own steps are cached under torch.no_grad() only")
        new = new.to(self.data.dtype)
        if isinstance(slot, int):
            self.views[slot].flatten(0, 1).index_copy_(0, span.flat_index(self.data.shape[2]), new.flatten(0, 1))
            return self.views[slot].narrow(1, 0, span.extent)
        rows = torch.arange(span.rows, device=self.data.device)
        index = span.index
        if index is None:
            index = torch.arange(span.offset, span.extent, device=self.data.device).expand(span.rows, -1)
        slot = slot.to(self.data.device)
        self.data[slot[:, None], rows[:, None], index] = new
        return self.data[slot, rows, : span.extent]


Group = tuple[str, Hashable]  # the stack, and the step or the reading


class Filled:
    """For each group, the rows that miss tokens, with the number of tokens that they hold."""

    def __init__(self) -> None:
        self.missing: dict[Group, dict[int, int]] = {}
        self._ran: dict[Group, set[int] | None] = {}  # by the pass at hand; None: all rows

    def begin(self) -> None:
        """Begins a pass. What a pass that failed had run is not counted: its tokens are not held."""
        self._ran = {}

    def short(self, group: Group, rows: Iterable[int] | None, lengths: Sequence[int]) -> tuple[int, int] | None:
        """Returns the first of the rows (None: all) that misses tokens of a group and how many it holds, or None."""
        missing = self.missing.get(group)
        if missing is not None and not missing:
            return None
        for row in range(len(lengths)) if rows is None else rows:
            if missing is None and lengths[row]:
                return row, 0
            if missing is not None and row in missing:
                return row, missing[row]
        return None

    def ran(self, group: Group, rows: Iterable[int] | None, lengths: Sequence[int]) -> None:
        """Notes that the pass ran these rows (None: all) at a group."""
        if group not in self.missing:
            self.missing[group] = {row: 0 for row, length in enumerate(lengths) if length}
        before = self._ran.get(group, set())
        self._ran[group] = None if rows is None or before is None else before | set(rows)

    def advance(self, lengths: Sequence[int]) -> None:
        """Ends a pass over rows that held `lengths` tokens before it: whoever was not run at a group falls behind there."""
        for group, missing in self.missing.items():
            ran = self._ran.get(group, set())
            if ran is not None:
                for row, length in enumerate(lengths):
                    if row not in ran:
                        missing.setdefault(row, length)
        self._ran = {}

    def crop(self, lengths: Sequence[int]) -> None:
        """Keeps these many tokens per row: a row that holds as many of a group misses none of it."""
        for missing in self.missing.values():
            for row in [row for row, held in missing.items() if held >= lengths[row]]:
                del missing[row]

    def choose_rows(self, rows: Sequence[int]) -> None:
        """Replaces the rows by the chosen ones, in that order."""
        for group, missing in self.missing.items():
            self.missing[group] = {new: missing[old] for new, old in enumerate(rows) if old in missing}


def refusal(stack: str, at: int | Expected, count: str) -> str:
    """Returns the line that refuses a step or a reading of which only `count` earlier tokens are there."""
    if stack == "core":
        return f"cache: step {at} holds {count}, so they were run less deep; keep one depth for a sequence, or use policy 'last'"
    if isinstance(at, Expected):
        where, how = f"the expected state of depth {at.depth}", "run them with select='expected' at that depth too"
    else:
        where, how = f"depth {at}", f"run them at depth={at} too, or at every depth with output_steps=True"
    return f"cache: the coda read {count} at {where}; {how}, or use policy 'last'"


def by_row(at: int | Tensor | RowSteps | Expected, count: int) -> list[tuple[Any, list[int] | None]]:
    """Returns each step or reading with its rows (None: all). The one place where one per row is brought to the host."""
    if not isinstance(at, Tensor | RowSteps):
        return [(at, None)]
    shape = at.shape if isinstance(at, Tensor) else (len(at.values),)
    if shape != (count,):
        raise ValueError(f"cache: steps of shape {tuple(shape)}; allowed: one number, or one per row ({count},)")
    rows: dict[int, list[int]] = {}
    for row, one in enumerate(at.tolist() if isinstance(at, Tensor) else at.values):
        rows.setdefault(one, []).append(row)
    return list(rows.items())


class ReplayedDecode(Protocol):
    """A decode pass over this cache that was captured, to be replayed for as long as nothing else moves the rows."""

    def fits(self, cache: LoopCache, depth: int, seed: int | None) -> bool:
        """Says whether the cache stands where this pass left it, and the pass asked for is the one captured."""

    def step(self, cache: LoopCache, token: Tensor) -> Tensor:
        """Returns the logits [B, 1, V] after one more token per row [B, 1]."""


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
        self.graph: ReplayedDecode | None = None
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
