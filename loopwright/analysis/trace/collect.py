"""What a trace gathers as tensors pass the taps: each collector is a small class that keeps numbers, not the tensors of all steps.

Between steps a collector holds at most what the same layer showed one step earlier. Attention maps are made again from tapped
queries and keys, CHUNK entries at a time, so that no whole set of T×T maps is ever held. What each layer and each step would say
next is the head on the residual of a layer (logit lens), or coda and head on the state after a step (coda lens): how sure it is
(entropy), how much it changed (KL), and whether the answer flipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations, repeat
from typing import Protocol

import torch
from torch import Tensor

from loopwright.analysis.trace.places import Places
from loopwright.kernels.gate import has_kernels
from loopwright.kernels.sizes import UNSEEN
from loopwright.metrics.attention import AttentionSums, attention_reading, bound_of_sizes, query_key_bound
from loopwright.metrics.predictions import lens_reading
from loopwright.metrics.states import (
    Farthest,
    farthest_layers,
    fixed_point_gap,
    pick_rows,
    residual_cosine,
    residual_distance,
    residual_entropy,
    residual_norm,
    token_cosines,
)
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.passes import Pass
from loopwright.model.span import Span
from loopwright.model.taps import POINTS, Tap

CHUNK = 2**25  # entries of maps held at once


@dataclass(frozen=True)
class View:
    """Who sees whom in a pass: `visible` [B or 1, 1, T, N], or None where every token sees itself and all before it; and which
    tokens are `valid` [B, T] (the others are padding); `whole` where all are."""

    visible: Tensor | None
    valid: Tensor
    whole: bool

    @classmethod
    def of(cls, span: Span, window: int | None) -> View:
        """Returns what the model itself shows its attention for tokens that stand at `span`, with nothing cached."""
        visible, _ = span.mask(window)
        valid = span.valid
        if valid is None:
            valid = torch.ones(span.rows, span.length, dtype=torch.bool, device=span.positions.device)
        return cls(visible, valid, bool(valid.all()))

    @property
    def count(self) -> Tensor:
        """The number of valid tokens of each row [B]."""
        return self.valid.sum(1)

    @property
    def padding(self) -> Tensor | None:
        """The valid tokens [B, T], or None where all are: what the metrics take."""
        return None if self.whole else self.valid

    def bias(self, part: slice, keys: int, kind: torch.dtype) -> Tensor:
        """Returns what is added to the scores of some queries: zero where a key is seen, and so little elsewhere that nothing is
        left of it (a number, not −∞, whose product with a weight of zero would be none)."""
        device = self.valid.device
        if self.visible is None:
            seen = torch.arange(keys, device=device) <= torch.arange(part.start, part.stop, device=device)[:, None]
        else:
            seen = self.visible[:, :, part]
        return torch.zeros(seen.shape, dtype=kind, device=device).masked_fill_(~seen, UNSEEN)


@dataclass(frozen=True)
class TraceRows:
    """The rows of some queries, `part`: `attention`, which sums to 1, and the `scores` it is the softmax of, less the largest of
    each row; both [B, H, rows, N]."""

    part: slice
    scores: Tensor
    attention: Tensor

    @property
    def entropy(self) -> Tensor:
        """−Σ_j a_j log a_j of each row [B, H, rows], with no logarithm per entry: log a_j is s_j + log max a."""
        return -self.attention.amax(-1).log() - (self.attention * self.scores).sum(-1)


def attention_rows(q: Tensor, k: Tensor, view: View, *, chunk: int = CHUNK) -> Iterator[TraceRows]:
    """Yields the rows of softmax(q kᵀ / √K) in float32 or wider, as many queries at a time as fit into `chunk` entries.

    q is [B, T, H, K] and k [B, N, Hk, K], after the rotation, as a tap sees them; heads share keys where Hk < H.
    """
    for part, scores in _scores(q, k, view, chunk):
        scores.sub_(scores.amax(-1, keepdim=True))
        yield TraceRows(part, scores, scores.softmax(-1))


def _scores(q: Tensor, k: Tensor, view: View, chunk: int) -> Iterator[tuple[slice, Tensor]]:
    rows, length, heads, width = q.shape
    kind = torch.promote_types(q.dtype, torch.float32)
    query = q.to(kind).mul(width**-0.5).transpose(1, 2)
    key = k.to(kind).permute(0, 2, 3, 1)
    if heads != k.shape[2]:
        key = key.repeat_interleave(heads // k.shape[2], dim=1)
    size = max(1, chunk // max(1, rows * heads * k.shape[1]))
    for start in range(0, length, size):
        part = slice(start, min(start + size, length))
        yield part, (query[:, :, part] @ key).add_(view.bias(part, k.shape[1], kind))


@dataclass(frozen=True)
class MapChange:
    """How far maps are from those of an earlier pair of queries and keys, ‖A − A'‖_F over the rows of valid tokens, and how far
    queries and keys allow (`query_key_bound`, not Proposition 4.2's own), which is worked out when it is asked for; both [B, H]."""

    distance: Tensor
    allowed: Callable[[], Tensor]

    @property
    def bound(self) -> Tensor:
        """The most that the distance can be."""
        return self.allowed()


def sum_maps(
    q: Tensor, k: Tensor, view: View, before: tuple[Tensor, Tensor] | None = None, *, chunk: int = CHUNK
) -> tuple[AttentionSums, MapChange | None]:
    """Returns the sums of the maps of q and k over valid tokens, and the change since the pair `before` where there is one.

    On a GPU (from OLDEST on, where kernels can be compiled) one kernel makes and sums the tiles of all maps; elsewhere, and for
    float64, `sum_rows` does: the same numbers to rounding, more slowly.
    """
    return _by_kernel(q, k, view, before) if has_kernels(q) else sum_rows(q, k, view, before, chunk=chunk)


def _by_kernel(q: Tensor, k: Tensor, view: View, before: tuple[Tensor, Tensor] | None) -> tuple[AttentionSums, MapChange | None]:
    from loopwright.kernels.attention_maps import map_sums  # Triton comes with torch, where there is a GPU

    columns, entropy, distance, sizes = map_sums(q, k, view.visible, view.valid, before)
    if distance is None or sizes is None:
        return AttentionSums(columns, entropy), None
    return AttentionSums(columns, entropy), MapChange(distance, partial(bound_of_sizes, *sizes, head_dim=q.shape[-1]))


def sum_rows(
    q: Tensor, k: Tensor, view: View, before: tuple[Tensor, Tensor] | None = None, *, chunk: int = CHUNK
) -> tuple[AttentionSums, MapChange | None]:
    """Returns what `sum_maps` does, from some rows of the maps at a time."""
    sums: AttentionSums | None = None
    squares: Tensor | None = None
    chunk //= 1 if before is None else 2
    earlier = repeat(None) if before is None else _scores(*before, view, chunk)
    for here, there in zip(attention_rows(q, k, view, chunk=chunk), earlier):  # noqa: B905 (repeat has no end)
        real = view.valid[:, None, None, here.part].to(here.attention.dtype)
        more = AttentionSums((real @ here.attention)[:, :, 0], (real @ here.entropy[..., None])[:, :, 0, 0])
        sums = more if sums is None else sums + more
        if there is not None:
            apart = torch.linalg.vector_norm(there[1].softmax(-1).sub_(here.attention), dim=-1).square()
            found = (real @ apart[..., None])[:, :, 0, 0]
            squares = found if squares is None else squares + found
    assert sums is not None
    if before is None or squares is None:
        return sums, None
    allowed = partial(query_key_bound, *(x.transpose(1, 2) for x in (q, k, *before)), valid=view.padding)
    return sums, MapChange(squares.sqrt(), allowed)


def farthest_pairs(pairs: Sequence[tuple[Tensor, Tensor]], view: View) -> Tensor:
    """Returns `metrics.farthest_maps` [L, B] of the maps of layers' queries and keys: each two are compared once, none is kept."""
    apart = torch.zeros(len(pairs), len(pairs), view.valid.shape[0], device=view.valid.device)
    for a, b in combinations(range(len(pairs)), 2):
        _, change = sum_maps(*pairs[a], view, pairs[b])
        assert change is not None
        apart[a, b] = apart[b, a] = change.distance.mean(1)
    return apart.argmax(1)


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


class LensStatistics(Collector):
    """Per place (logit lens) and per step (coda lens), of each row's last valid token: the likeliest token, the entropy, and
    the KL divergence from what the same layer said one step earlier; all in nats."""

    def __init__(self, sheet: Sheet, model: LoopedForCausalLM) -> None:
        self.sheet, self.model = sheet, model
        self.index = token_index(sheet.view, [-1])[:, 0]
        self.last: dict[int | str, Tensor] = {}

    def see(self, name: str, value: Tensor, at: Seen) -> None:
        if name == "residual":
            stack, step, layer = at
            x = value[torch.arange(value.shape[0], device=value.device), self.index]
            reading = self._measure(layer_logits(self.model, x, step), layer if stack == "core" else None)
            for key, numbers in reading.items():
                self.sheet.put(f"lens_{key}", at, numbers)

    def read(self, s: Tensor, p: Pass, step: int) -> None:
        """Reads out the state after a step, through the coda, and notes what it says."""
        quiet = replace(p, tap=None)
        x = self.model.features(s, quiet)[torch.arange(s.shape[0], device=s.device), self.index]
        for key, numbers in self._measure(self.model.lm_head(x), "state").items():
            self.sheet.put_step(f"answer_{key}", step, numbers)

    def _measure(self, logits: Tensor, key: int | str | None) -> dict[str, Tensor]:
        reading = lens_reading(logits, None if key is None else self.last.get(key))
        if key is not None:
            self.last[key] = logits
        return {"token": reading.answer, "entropy": reading.entropy, "change": reading.divergence}


def layer_logits(model: LoopedForCausalLM, x: Tensor, step: int) -> Tensor:
    """Returns what the head makes of a layer's residual [B, D]: through the norm that the model's own read-out ends with."""
    if model.config.final_norm["kind"] == "none" and model.config.end_norm == "every":
        x = model.end_norm(x)  # Ouro: the head was trained on what this norm gives
    return model.lm_head(model.norm(x))
