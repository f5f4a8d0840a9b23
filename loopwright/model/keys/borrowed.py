"""BorrowedCache: a cache of transformers as a pass of a looped model sees it.

Its layer index is our slot: the prelude's layers, those of the core step by step, those of the coda reading by reading, and then a
layer for each running sum of a controller. Which index a step or a reading begins at is noted on the cache itself, so that it goes
where the cache goes (copies, another turn of a conversation). Everything else, rows, lengths, reordering and cropping, stays with
the cache. It knows one document a row: padding is what the mask says, positions are those of the mask where the caller gives none.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import Cache
from transformers.cache_utils import DynamicLayer, StaticLayer

from loopwright.model.keys.cache import refusal
from loopwright.model.layers import attend_in
from loopwright.model.passes import Expected, Pass, Place, Reading
from loopwright.model.span import Ledger

if TYPE_CHECKING:
    from loopwright.model.config import LoopedConfig
    from loopwright.model.parts.part import RowSteps
    from loopwright.model.span import Span

BOOK = "loop_slots"  # the attribute of the cache that says where a step, a reading or a sum begins
DOCUMENT = "loop_document"  # and the one that says which number the document of every row has


class SumLayer(DynamicLayer):
    """Running sums [B, 1, N, W] in the place of keys: few numbers, so they are not sent away where others are offloaded."""

    def offload(self) -> None:
        """Stays where it is."""

    def prefetch(self) -> None:
        """Is there already."""


class BorrowedCache:
    """One pass over a cache that is not ours. Takes the place of a `LoopCache` in `Pass`."""

    next_position = None

    def __init__(self, config: LoopedConfig, theirs: Cache, mask: Tensor | None) -> None:
        self.layers: list[Any] = getattr(theirs, "layers", [None])
        if not all(isinstance(layer, DynamicLayer | StaticLayer) for layer in self.layers):
            raise TypeError(
                f"past_key_values: {type(theirs).__name__}; allowed: a LoopCache, or a dynamic, static or quantised cache of "
                "transformers"
            )
        self.config, self.theirs = config, theirs
        self.length = int(theirs.get_seq_length())
        self.book: dict[Any, tuple[int, int]] = theirs.__dict__.setdefault(BOOK, {})  # name → first layer, number of layers
        if self.length and not self.book:
            raise ValueError(f"past_key_values: {self._name} holds {self.length} tokens that no looped model has put there")
        if mask is not None and self.length and mask.shape[1] <= self.length and not bool(mask.all()):
            raise ValueError(
                f"attention_mask: {mask.shape[1]} entries; {self._name} does not know padding, so it needs one for each of its "
                f"{self.length} tokens and for the new ones"
            )
        self.sums: dict[int, Tensor] = {}  # of this pass: a halting value of what the layers take in asks for them again
        held = None if mask is None or mask.shape[1] <= self.length else mask[:, : self.length].bool()
        self.padding = None if held is None or bool(held.all()) else held

    @property
    def plain(self) -> bool:
        """Whether no row has padding among its earlier tokens."""
        return self.padding is None

    # what a pass does, in order

    def check(self, depth: int, readings: Iterable[int | Expected]) -> None:
        """Finds the layers of every step and reading of a pass; raises where one lacks earlier tokens, or cannot be had."""
        self._find("prelude", self.config.prelude_layers)
        for t in range(depth):
            self._find(("core", t), self.config.core_layers)
        for reading in readings if self.config.coda_layers else ():
            self._find(("coda", reading), self.config.coda_layers)
        needed = sum(count for _, count in self.book.values())
        while len(self.layers) < needed:
            make = self.theirs.layer_class_to_replicate
            self.layers.append(deepcopy(self.layers[0]) if make is None else make())

    def fit_rows(self, rows: int) -> None:
        """Refuses another number of rows than the cache holds."""
        keys = self.layers[0].keys if self.length else None
        if isinstance(keys, Tensor) and keys.dim() == 4 and keys.shape[0] != rows:
            raise ValueError(f"cache: it holds {keys.shape[0]} rows, the pass has {rows}")

    def ledger(self, rows: int, device: torch.device) -> Ledger:
        """Returns what is known of the earlier tokens: padding by the mask, one document a row."""
        valid = torch.ones(rows, self.length, dtype=torch.bool, device=device) if self.padding is None else self.padding.to(device)
        first = valid.long().argmax(1)
        positions = (valid.long().cumsum(1) - 1).clamp(min=0)
        lengths = torch.full((rows,), self.length, device=device)
        return Ledger(lengths, valid, first[:, None].expand_as(positions), positions, torch.full_like(positions, self._document))

    def reserve(self, span: Span, depth: int, like: Tensor) -> None:
        """Refuses tokens that the cache cannot take as they stand."""
        if span.segments is not None and span.index is not None and span.valid is not None:
            numbers = set(span.segments[span.valid.gather(1, span.index)].tolist())
            if self.length:
                numbers.add(self._document)
            if len(numbers) > 1:
                raise ValueError(
                    f"past_key_values: {self._name} knows one document a row, of one number in all; others need a LoopCache"
                )
            setattr(self.theirs, DOCUMENT, min(numbers, default=0))
        elif not self.length:
            setattr(self.theirs, DOCUMENT, 0)
        layer = self.layers[0]
        most = layer.get_max_length()
        if not layer.is_sliding and 0 <= most < span.extent:
            raise ValueError(f"cache: {span.extent} tokens do not fit; this {self._name} is fixed at {most}")
        if layer.is_sliding and span.valid is not None and bool((span.valid[:, :-1] & ~span.valid[:, 1:]).any()):
            raise ValueError(
                f"past_key_values: {self._name} keeps the last places of a window, padding among them; pad on the left, or take a "
                "LoopCache"
            )

    def make_room(self, readings: Iterable[int | Expected]) -> None:
        """Makes nothing: `check` has found the layers."""

    def begin_step(self, t: int | Tensor | RowSteps) -> None:
        """Begins a step of all rows."""
        if not isinstance(t, int):
            raise ValueError(
                f"past_key_values: {self._name} takes one step for all rows; rows at steps of their own need a LoopCache"
            )

    def begin_reading(self, reading: Reading | None) -> int:
        """Begins the coda at a reading of all rows; returns its first layer."""
        if not self.config.coda_layers:
            return 0
        if not isinstance(reading, int | Expected):
            raise ValueError(f"past_key_values: {self._name} takes one reading for all rows; others need a LoopCache")
        return self.book["coda", reading][0]

    def attend(self, place: Place, q: Tensor, k: Tensor, v: Tensor, p: Pass, dropout: float = 0.0) -> Tensor:
        """Stores new keys and values and returns what the queries q [B, T, H, K] find among all tokens up to now."""
        keys, values = self.theirs.update(k.transpose(1, 2), v.transpose(1, 2), self._layer(place, p))
        count, extent = keys.shape[2], p.batch_span.extent
        if count > extent:  # a static layer gives the places behind the last token too
            keys, values = keys[:, :, :extent], values[:, :, :extent]
        elif count < extent:  # a layer that slides gives the last ones
            p = replace(p, mask=None if p.mask is None else p.mask[..., -count:])
        return attend_in(p, place, q, keys.transpose(1, 2), values.transpose(1, 2), dropout)

    def carried_sum(self, name: str, place: Place, p: Pass, like: Tensor) -> Tensor | None:
        """Returns the running sum [B, W] of each row's last token at a step or reading, or None where nothing is cached."""
        index = self._sum_layer(name, place, p)
        return self.layers[index].keys[:, 0, self.length - 1] if self.length else None

    def write_sum(self, name: str, place: Place, running: Tensor, p: Pass) -> Tensor:
        """Stores the running sums of the new tokens [B, T, W] and returns those of all tokens [B, N, W]."""
        index = self._sum_layer(name, place, p)
        if index not in self.sums:
            nothing = running[:, None, :, :0]
            self.sums[index] = self.theirs.update(running[:, None], nothing, index)[0][:, 0]
        return self.sums[index]

    def advance(self, span: Span) -> None:
        """Counts nothing: the cache did, layer by layer."""

    # layers

    @property
    def _document(self) -> int:
        return getattr(self.theirs, DOCUMENT, 0) if self.length else 0

    @property
    def _name(self) -> str:
        return type(self.theirs).__name__

    def _layer(self, place: Place, p: Pass) -> int:
        if place.stack == "prelude":
            return place.layer
        first = p.coda_group if place.stack == "coda" else self.book["core", place.step.t][0]
        assert isinstance(first, int)
        return first + place.layer

    def _sum_layer(self, name: str, place: Place, p: Pass) -> int:
        group = {"prelude": 0, "core": place.step.t, "coda": p.coda_group}[place.stack]
        key = (name, place.stack, group)
        if key in self.book and self.book[key][0] in self.sums:
            return self.book[key][0]
        index, new = self._find(key, 1)
        if new:
            self.layers[index : index + 1] = [SumLayer()]
        return index

    def _find(self, name: Any, count: int) -> tuple[int, bool]:
        """Returns the first of the layers of this name, and whether they are new; refused where they lack earlier tokens."""
        new = name not in self.book
        if new:
            self.book[name] = sum(number for _, number in self.book.values()), count
        first = self.book[name][0]
        held = 0 if new else int(self.theirs.get_seq_length(first))
        if count and held != self.length:
            if new:
                del self.book[name]
            stack, at = name if len(name) == 2 else ("core", name[-1])
            raise ValueError(refusal(stack, at, f"{held} of {self.length} earlier tokens"))
        return first, new
