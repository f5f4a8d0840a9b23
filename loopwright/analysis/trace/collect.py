"""What a trace gathers as tensors pass the taps: each collector is a small class that keeps numbers, not the tensors of all steps.

Between steps a collector holds at most what the same layer showed one step earlier.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from loopwright.analysis.trace.maps import View, farthest_pairs, sum_maps
from loopwright.analysis.trace.places import Places
from loopwright.metrics.attention import attention_reading
from loopwright.metrics.fixedpoint import Farthest, farthest_layers, fixed_point_gap, pick_rows
from loopwright.metrics.residual import residual_cosine, residual_distance, residual_entropy, residual_norm, token_cosines
from loopwright.model.tap import POINTS, Tap

Seen = tuple[str, int, int]  # stack, step, layer


@dataclass
class Sheet:
    """The numbers of a trace while they come in: per place of the pass or per step, on the device, NaN where nothing was put."""

    places: Places
    view: View
    values: dict[str, Tensor] = field(default_factory=dict)

    def put(self, name: str, at: Seen, value: Tensor) -> None:
        """Writes the numbers of all rows [B, …] at a place."""
        self._put(name, self.places.count, self.places.index(*at), value)

    def put_step(self, name: str, step: int, value: Tensor) -> None:
        """Writes the numbers of all rows [B, …] after a step."""
        self._put(name, self.places.steps, step, value)

    def _put(self, name: str, rows: int, index: int, value: Tensor) -> None:
        if name not in self.values:
            empty = float("nan") if value.is_floating_point() else -1
            self.values[name] = value.new_full((value.shape[0], rows, *value.shape[1:]), empty)
        self.values[name][:, index] = value


class Collector(Protocol):
    """Sees every tensor of a pass, and writes what it makes of it into the sheet."""

    def see(self, name: str, value: Tensor, at: Seen) -> None:
        """Takes in the tensor of one point at one place."""
        ...


class Watcher:
    """A tap that shows each tensor to collectors and hands it on; where there is an `edit`, what the edit makes of it."""

    def __init__(self, collectors: Sequence[Collector], edit: Tap | None = None) -> None:
        self.collectors, self.edit = collectors, edit

    def __call__(self, name: str, value: Tensor, *, stack: str, step: int | Tensor, layer: int) -> Tensor:
        if isinstance(step, Tensor):
            raise ValueError("trace: rows at different steps have no common place; trace them one depth at a time")
        if self.edit is not None:
            value = self.edit(name, value, stack=stack, step=step, layer=layer)
        for collector in self.collectors:
            collector.see(name, value, (stack, step, layer))
        return value


class AttentionStatistics(Collector):
    """Per head: ColSum concentration, mixing score, sink scores; and the distance of a layer's maps from those one step earlier."""

    def __init__(self, sheet: Sheet) -> None:
        self.sheet = sheet
        self.last: dict[int, tuple[Tensor, Tensor]] = {}  # of each core layer: what a later step is compared with
        self._query: Tensor | None = None

    def see(self, name: str, value: Tensor, at: Seen) -> None:
        if name == "query":
            self._query = value
        if name != "key":
            return
        assert self._query is not None
        stack, _, layer = at
        pair = (self._query, value)
        sums, change = sum_maps(*pair, self.sheet.view, self.last.get(layer) if stack == "core" else None)
        reading = attention_reading(sums, self.sheet.view.padding)
        self.sheet.put("colsum", at, reading.concentration)
        self.sheet.put("mixing", at, reading.mixing)
        self.sheet.put("sink_first", at, reading.first_sink)
        self.sheet.put("sink_most", at, reading.top_sink)
        self.sheet.put("sink_where", at, reading.top_token.to(torch.int32))
        if change is not None:
            self.sheet.put("step_attention", at, change.distance.mean(1))
            self.sheet.put("step_bound", at, change.bound.mean(1))
        if stack == "core":
            self.last[layer] = pair
        self._query = None


class ResidualStatistics(Collector):
    """Per layer, as means over tokens: the norm of the residual, its largest entry, and how far it moved since the step before."""

    def __init__(self, sheet: Sheet) -> None:
        self.sheet = sheet
        self.last: dict[int, Tensor] = {}  # of each core layer, and under its count the state

    def see(self, name: str, value: Tensor, at: Seen) -> None:
        if name not in ("residual", "state"):
            return
        sheet, (stack, step, layer), padding = self.sheet, at, self.sheet.view.padding
        values = {"norm": residual_norm(value, padding)}
        if name == "residual":
            values["largest"] = value.abs().masked_fill(~sheet.view.valid[..., None], 0).amax((1, 2)).float()
        if stack == "core":
            if layer in self.last:
                values["step_norm"] = residual_distance(self.last[layer], value, valid=padding)
                values["step_cosine"] = residual_cosine(value, self.last[layer], valid=padding)
            self.last[layer] = value
        for key, numbers in values.items():
            if name == "residual":
                sheet.put(key, at, numbers)
            else:
                sheet.put_step(f"state_{key}", step, numbers)


class PartStatistics(Collector):
    """How far the gate is open after each step, and the size of the diagonals of each layer (the root mean square over maps and
    rank): means over tokens, where there are any."""

    def __init__(self, sheet: Sheet) -> None:
        self.sheet = sheet

    def see(self, name: str, value: Tensor, at: Seen) -> None:
        if name == "gate":
            self.sheet.put_step("state_gate", at[1], self._mean(value.float().mean(-1)))
        elif name == "diagonal":
            self.sheet.put("diagonal", at, self._mean(value.float().square().mean((-1, -2)).sqrt()))

    def _mean(self, numbers: Tensor) -> Tensor:
        """Returns the mean [B] of numbers [B, T] over the tokens that count."""
        valid = self.sheet.view.valid
        return numbers.masked_fill(~valid, 0).sum(1) / valid.sum(1)


class EntropyStatistics(Collector):
    """Per layer: the matrix-based entropy of the residual."""

    def __init__(self, sheet: Sheet) -> None:
        self.sheet = sheet

    def see(self, name: str, value: Tensor, at: Seen) -> None:
        if name == "residual":
            self.sheet.put("entropy", at, residual_entropy(value, self.sheet.view.padding).float())


class FixedPointStatistics(Collector):
    """Distances of each core layer, at each step, from where the layer stood at the last step of an earlier pass; and from
    where the layer that ended farthest from it stood (equal to the first in the degenerate case, where all layers end alike).

    Each measure has a farthest layer of its own. `pairs` are the last queries and keys of every core layer, or none.
    """

    def __init__(self, sheet: Sheet, residuals: Mapping[int, Tensor], pairs: Mapping[int, tuple[Tensor, Tensor]]) -> None:
        self.sheet = sheet
        self.pairs = [pairs[layer] for layer in sorted(pairs)]
        self.farthest_maps = farthest_pairs(self.pairs, sheet.view).cpu() if pairs else torch.empty(0)
        self.fixed = [residuals[layer] for layer in range(sheet.places.core)]
        self.state = residuals[sheet.places.core]
        farthest = farthest_layers(self.fixed, sheet.view.padding)
        self.farthest = Farthest(farthest.distance.cpu(), farthest.cosine.cpu())  # read at every place: once from the device
        self._query: Tensor | None = None

    def see(self, name: str, value: Tensor, at: Seen) -> None:
        (stack, step, layer), padding = at, self.sheet.view.padding
        if stack != "core":
            return
        if name == "query":
            self._query = value
        elif name == "key" and self.pairs:
            assert self._query is not None
            own = self._apart(self._query, value, self.pairs[layer])
            self.sheet.put("fixed_attention", at, own)
            far = torch.full_like(own, torch.nan)  # a core of one layer has no other
            if len(self.pairs) > 1:
                ends = (pick_rows(each, self.farthest_maps[layer]) for each in zip(*self.pairs, strict=True))
                far = self._apart(self._query, value, tuple(ends))
            self.sheet.put("far_attention", at, far)
        elif name == "residual":
            gap = fixed_point_gap(value, self.fixed, layer=layer, farthest=self.farthest, valid=padding)
            self.sheet.put("fixed_norm", at, gap.distance)
            self.sheet.put("fixed_cosine", at, gap.cosine)
            self.sheet.put("far_norm", at, gap.far_distance)
            self.sheet.put("far_cosine", at, gap.far_cosine)
            self.sheet.put("token_cosine", at, gap.token_cosine.half())
            self.sheet.put("token_distance", at, gap.token_distance.half())
        elif name == "state":
            self.sheet.put_step("state_fixed_norm", step, residual_distance(self.state, value, valid=padding))
            self.sheet.put_step("state_token_cosine", step, token_cosines(value, self.state).half())

    def _apart(self, query: Tensor, key: Tensor, end: tuple[Tensor, ...]) -> Tensor:
        _, change = sum_maps(query, key, self.sheet.view, (end[0], end[1]))
        assert change is not None
        return change.distance.mean(1)


class Capture(Collector):
    """Whole tensors of chosen points at chosen tokens: {"residual": [-1]} keeps the residual of each row's last valid token."""

    def __init__(self, sheet: Sheet, wanted: Mapping[str, Sequence[int]]) -> None:
        unknown = set(wanted) - set(POINTS) | {"logits"} & set(wanted)
        if unknown:
            raise ValueError(f"capture: unknown point {sorted(unknown)}; allowed: {', '.join(POINTS[:-1])}")
        least = int(sheet.view.count.min())
        wrong = [n for tokens in wanted.values() for n in tokens if not -least <= n < least]
        if wrong:
            raise ValueError(f"capture: token {wrong[0]}; allowed: {-least} to {least - 1}, the valid tokens of the shortest row")
        self.sheet = sheet
        self.wanted = {name: token_index(sheet.view, tokens) for name, tokens in wanted.items()}

    def see(self, name: str, value: Tensor, at: Seen) -> None:
        if name in self.wanted:
            index = self.wanted[name]
            rows = torch.arange(value.shape[0], device=value.device)[:, None]
            kept = value[rows, index].detach()
            if name in ("gate", "state"):
                self.sheet.put_step(f"captured_{name}", at[1], kept)
            else:
                self.sheet.put(f"captured_{name}", at, kept)


def token_index(view: View, tokens: Sequence[int]) -> Tensor:
    """Returns where tokens of each row stand [B, n], counted among its valid ones, from the last where negative."""
    order = (~view.valid).int().argsort(dim=1, stable=True)
    asked = torch.tensor(list(tokens), device=order.device).expand(order.shape[0], -1)
    return order.gather(1, torch.where(asked < 0, asked + view.count[:, None], asked))
