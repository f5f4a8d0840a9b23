"""One forward pass: what it carries from layer to layer, which readings answer, and what it returns.

A pass carries where its tokens stand, what they may see, the cache and the tap. Adapters hand their effects on a step to the
block as arguments: they shift the state, or add to a linear map or a whole branch. Nothing is set on modules, so a forward has no
state of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Cache
from transformers.modeling_outputs import ModelOutput

from loopwright.model.parts.halting import READ_OUTS
from loopwright.model.parts.part import RowSteps, StepIndex
from loopwright.model.span import RowSpan, Span

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

    from loopwright.model.taps import Tap


STACKS = ("prelude", "core", "coda")


@dataclass(frozen=True)
class Place:
    """Where in the network: one of the stacks, the step and the layer."""

    stack: str
    step: StepIndex  # not its number: a compiled step that reads the number is compiled anew for each
    layer: int


@dataclass(frozen=True)
class Expected:
    """The reading of the mean of all states by exit probability, in a pass of `depth` steps."""

    depth: int


# (layer, name of the linear map or branch, its input, its weight or None for a branch) → what to add, or None
Update = Callable[[int, str, Tensor, Tensor | None], Tensor | None]


# (layer, linear maps that share an input, that input [B, T, in], their outputs [B·T, out], added to in place, or None where they
# are still to be made) → the outputs
Modulation = Callable[[int, Mapping[str, nn.Module], Tensor, Sequence[Tensor] | None], Sequence[Tensor]]


@dataclass(frozen=True)
class Effects:
    """The effects of one adapter at one step; what is None does nothing."""

    signal: Tensor | None = None
    update: Update | None = None
    modulate: Modulation | None = None


class Adaptation:
    """The effects of all adapters at one step, summed."""

    def __init__(self, effects: Sequence[Effects]) -> None:
        self.signals = [e.signal for e in effects if e.signal is not None]
        self.updates = [e.update for e in effects if e.update is not None]
        self.modulations = [e.modulate for e in effects if e.modulate is not None]

    def shift(self, x: Tensor) -> Tensor:
        """Returns the state that enters the core, with the step's signals added."""
        for signal in self.signals:
            x = x + signal
        return x

    def add(self, layer: int, name: str, x: Tensor, y: Tensor, weight: Tensor | None = None) -> Tensor:
        """Returns y, the output of `name` on x, plus every adapter's update of it."""
        for update in self.updates:
            more = update(layer, name, x, weight)
            if more is not None:
                y = y + more
        return y


def project(linears: Mapping[str, nn.Module], x: Tensor, layer: int, adapt: Adaptation | None) -> list[Tensor]:
    """Returns what linear maps that share the input x [B, T, in] make of it, with the adapters' updates."""
    if adapt is None or not (adapt.updates or adapt.modulations):
        return [linear(x) for linear in linears.values()]
    if adapt.modulations:
        outputs: Sequence[Tensor] | None = None
        for modulate in adapt.modulations:
            outputs = modulate(layer, linears, x, outputs)
        assert outputs is not None
        ys = [y.unflatten(0, x.shape[:-1]) for y in outputs]
    else:
        ys = [linear(x) for linear in linears.values()]
    weights = [getattr(linear, "weight", None) for linear in linears.values()]
    return [adapt.add(layer, name, x, y, weight) for name, y, weight in zip(linears, ys, weights, strict=True)]


def flat_outputs(linears: Mapping[str, nn.Module], x: Tensor) -> list[Tensor]:
    """Returns what the maps make of a flat x [B·T, in], which are no views: what is added to them in place costs neither memory nor
    a second pass."""
    flat = x.flatten(0, -2)
    return [linear(flat) for linear in linears.values()]


# what the coda reads: the state after so many steps (an int, or one per row), or the mean of all states
Reading = int | Tensor | RowSteps | Expected


class KeyStore(Protocol):
    """Where the layers of a pass leave their keys, values and running sums, and find those of earlier tokens."""

    def begin_step(self, t: int | Tensor | RowSteps) -> None:
        """Begins a step of all rows, or one step per row [B]."""

    def begin_reading(self, reading: Reading | None) -> int | Tensor:
        """Begins the coda at a reading; returns which of the coda's slots are its own."""

    def attend(self, place: Place, q: Tensor, k: Tensor, v: Tensor, p: Pass, dropout: float = 0.0) -> Tensor:
        """Stores new keys and values and returns what the queries q [B, T, H, K] find among all tokens up to now."""

    def carried_sum(self, name: str, place: Place, p: Pass, like: Tensor) -> Tensor | None:
        """Returns the running sum [B, W] of each row's last token at a step or reading, or None where nothing is held."""

    def write_sum(self, name: str, place: Place, running: Tensor, p: Pass) -> Tensor:
        """Stores the running sums of the new tokens [B, T, W] and returns those of all tokens [B, N, W]."""


class StackRunner(Protocol):
    """Another way of running the layers of a stack than one after the other: by fused kernels, or compiled."""

    block_masks: bool  # whether attention skips the blocks of a mask in which nobody sees anybody

    def takes(self, stack: str, adapt: Adaptation | None) -> bool:
        """Says whether a stack runs here, with what its adapters do at the step."""

    def run(self, stack: str, x: Tensor, p: Pass, step: StepIndex) -> Tensor:
        """Returns what the layers of a stack make of x."""


@dataclass(frozen=True)
class Pass:
    """One forward pass. `rotary` holds cos and sin; `mask` [B, 1, T, N] is added to attention scores; where it is None,
    `blocks` (a mask by blocks) or `causal` decides. `coda_group` says which of the cache's coda slots belong to the reading at hand
    (one per row, or an int); `outputs` keeps what the layers leave, where the caller wants it; `fused` runs the stacks that have
    another form."""

    span: Span | RowSpan
    rotary: tuple[Tensor, Tensor] | None
    mask: Tensor | None
    causal: bool
    cache: KeyStore | None = None
    tap: Tap | None = None
    coda_group: int | Tensor = 0
    outputs: LayerOutputs | None = None
    fused: StackRunner | None = None
    blocks: BlockMask | None = None

    @property
    def batch_span(self) -> Span:
        """The span of a batch, for what never meets the rows of a pool."""
        assert isinstance(self.span, Span)
        return self.span

    def see(self, name: str, value: Tensor, place: Place) -> Tensor:
        """Shows a tensor to the tap, and returns what the tap makes of it."""
        if self.tap is None:
            return value
        return self.tap(name, value, stack=place.stack, step=place.step.t, layer=place.layer)

    def keep_state(self, x: Tensor, place: Place) -> None:
        """Keeps what a layer leaves, where the caller asks for `hidden_states`."""
        if self.outputs is not None and self.outputs.states is not None:
            self.outputs.states[place] = x

    def at_reading(self, reading: Reading | None) -> Pass:
        """Returns the pass as the coda sees it at a reading; on a cache it says which of the coda's slots are meant."""
        if self.cache is None:
            return self
        return replace(self, coda_group=self.cache.begin_reading(reading))

    def rows(self, index: Tensor) -> Pass:
        """Returns the pass of the batch rows that `index` [N] names, in that order, a row as often as it is named; no cache."""

        def pick(x: Any) -> Any:
            return x if x is None or x.shape[0] == 1 != self.span.rows else x[index]

        span = self.batch_span
        held: dict[str, Any] = {name: pick(getattr(span, name)) for name in ("positions", "index", "first", "valid", "segments")}
        chosen = Span(index.numel(), span.length, span.offset, explicit=span.explicit, padded=span.padded, **held)
        rotary = None if self.rotary is None else (pick(self.rotary[0]), pick(self.rotary[1]))
        blocks = None if self.blocks is None else _block_mask(chosen)
        return Pass(chosen, rotary, pick(self.mask), self.causal, None, self.tap, fused=self.fused, blocks=blocks)


class RotationTable(Protocol):
    """What turns queries and keys by their positions."""

    def table(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Returns cos and signed sin for positions [B or 1, T]."""


def open_pass(
    span: Span | RowSpan,
    rotary: RotationTable | None,
    window: int | None,
    dtype: torch.dtype,
    *,
    cache: KeyStore | None = None,
    tap: Tap | None = None,
    outputs: LayerOutputs | None = None,
    fused: StackRunner | None = None,
) -> Pass:
    """Returns the pass of tokens that stand at `span`: their rotations, and a mask where one is needed, in `dtype`."""
    table = None if rotary is None else rotary.table(span.positions, dtype)
    if fused is not None and fused.block_masks and window is None and isinstance(span, Span) and not (span.plain or span.padded):
        return Pass(span, table, None, False, None, tap, outputs=outputs, fused=fused, blocks=_block_mask(span))
    visible, causal = span.mask(window)
    # added to the scores: made once here, where a boolean mask would be converted by every layer of every step
    mask = None if visible is None else torch.zeros_like(visible, dtype=dtype).masked_fill_(~visible, float("-inf"))
    return Pass(span, table, mask, causal, cache, tap, outputs=outputs, fused=fused)


def _block_mask(span: Span) -> BlockMask:
    from loopwright.model.block_mask import block_mask  # torch's compiler comes with it

    return block_mask(span)


@dataclass
class LoopedOutput(ModelOutput):
    """What a pass returns. `states` and `step_logits` have one entry per step, with `output_steps`; `exit_probs` is
    [B, T, depth] where the model has learned halting (not in replayed decode passes); `last_hidden_state` is what the head reads,
    under the name by which trainers that bring their own head ask for it. `hidden_states` and `attentions`: see `LayerOutputs`."""

    loss: Tensor | None = None
    logits: Tensor | None = None
    past_key_values: Cache | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    states: tuple[Tensor, ...] | None = None
    step_logits: tuple[Tensor, ...] | None = None
    exit_probs: Tensor | None = None
    last_hidden_state: Tensor | None = None

    def __repr__(self) -> str:
        return _shapes(self)


@dataclass
class LoopedModelOutput(ModelOutput):
    """What a pass without a head returns: `LoopedOutput` without logits."""

    last_hidden_state: Tensor | None = None
    past_key_values: Cache | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    exit_probs: Tensor | None = None

    def __repr__(self) -> str:
        return _shapes(self)


def _shapes(output: ModelOutput) -> str:
    """What there is, and its shapes: the numbers would fill a screen. One number is shown."""

    def told(x: Any) -> str:
        if isinstance(x, tuple):
            return f"{len(x)} × {told(x[0])}" if len({told(one) for one in x}) == 1 else ", ".join(map(told, x)).join("()")
        return str(list(x.shape)) if isinstance(x, Tensor) and x.dim() else repr(x)

    return f"{type(output).__name__}({', '.join(f'{name}={told(x)}' for name, x in output.items())})"


@dataclass(frozen=True)
class Unrolled:
    """A pass before it is packed for its caller: the `answer` that was selected (logits, or features where there is no head), the
    `results` of each reading that it was selected from, and the `features` that the head read last."""

    answer: Tensor
    results: list[Tensor]
    features: Tensor
    states: list[Tensor]
    exit_probs: Tensor | None
    span: Span


class LayerOutputs:
    """Keeps what `output_hidden_states` and `output_attentions` ask for: one entry per layer as it runs, in that order.

    The first of the `hidden_states` is the embedding; the entry of the core's last layer is the state that its step leaves; the
    last entry is what the head reads, after the final norm. Entries are kept by place, so that a layer that runs there again (the
    coda at a later reading, a layer that is recomputed for its gradient) takes the place of its first run.
    """

    def __init__(self, *, hidden_states: bool, attentions: bool) -> None:
        self.states: dict[Place, Tensor] | None = {} if hidden_states else None
        self.maps: dict[Place, Tensor] | None = {} if attentions else None
        self.last: Tensor | None = None

    @property
    def hidden_states(self) -> tuple[Tensor, ...] | None:
        """The states [B, T, D], one more than there are layer runs; None where they were not asked for."""
        if self.states is None:
            return None
        assert self.last is not None
        return (*_in_order(self.states)[:-1], self.last)

    @property
    def attentions(self) -> tuple[Tensor, ...] | None:
        """The maps [B, H, T, N], one per layer run; None where they were not asked for."""
        return None if self.maps is None else tuple(_in_order(self.maps))


def _in_order(entries: dict[Place, Tensor]) -> list[Tensor]:
    return [entries[place] for place in sorted(entries, key=lambda place: (STACKS.index(place.stack), place.step.t, place.layer))]


def next_token_loss(logits: Tensor, labels: Tensor, *, shifted: bool = False, items: Tensor | int | None = None) -> Tensor:
    """Returns the mean cross-entropy of each next token, over `items` tokens where the caller counts those of several batches.

    Labels are the input ids, or those of the next tokens where they are `shifted` already; −100 is ignored.
    """
    if labels.shape != logits.shape[:2]:
        raise ValueError(f"labels: shape {tuple(labels.shape)}; allowed: {tuple(logits.shape[:2])}, the shape of the input ids")
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    if not shifted:
        wide, labels = wide[:, :-1], labels[:, 1:]
    targets, reduction = labels.flatten().to(logits.device), "mean" if items is None else "sum"
    try:
        loss = F.cross_entropy(wide.flatten(0, 1), targets, ignore_index=-100, reduction=reduction)
    except IndexError as error:  # on a CPU; a GPU checks in its kernel
        most = logits.shape[-1] - 1
        raise ValueError(f"labels: must be token ids from 0 to {most}, or -100 where nothing is predicted ({error})") from None
    return loss if items is None else loss / (items.to(loss.device) if isinstance(items, Tensor) else items)


def kept(x: Tensor, keep: int | Tensor) -> Tensor:
    """Returns the last `keep` positions of x [B, T, …], all where it is 0; or those that a tensor of places names."""
    if isinstance(keep, Tensor):
        return x[:, keep]
    return x[:, -keep:] if keep else x


def choosable(logits: Tensor) -> Tensor:
    """Returns from which logits [..., V] a token can be chosen: all of them are finite, and they are not all the same.

    They are all the same where a norm has overflowed: it divides by an infinite length, which leaves zeros. The device decides, and
    nobody waits for it here.
    """
    low, high = logits.aminmax(dim=-1)  # both are NaN where one logit is
    finite = low * 0 + high * 0 == 0  # their difference may overflow where they are finite
    return finite & (low < high) if logits.shape[-1] > 1 else finite


def weighted_sum(weights: Tensor, steps: Sequence[Tensor]) -> Tensor:
    """Returns Σ_t weights[..., t] · steps[t] for weights [B, T, depth] and steps of [B, T, …]."""
    total = weights[..., 0, None] * steps[0]
    for t in range(1, len(steps)):
        total = total + weights[..., t, None] * steps[t]
    return total


SELECTIONS = READ_OUTS["logits"]


def check_select(select: str, halting: Any) -> None:
    """Raises a ValueError where a model with this halting cannot answer so."""
    if select not in SELECTIONS:
        raise ValueError(f"select: {select!r}; allowed: {', '.join(SELECTIONS)}")
    if select in rules_of(halting):
        return
    if halting.mixes is None:
        raise ValueError(f"select: {select!r} needs learned halting, and this model has none; allowed: last")
    raise ValueError("select: 'hub' picks the logits of one step, and this model's halting mixes states; allowed: last, expected")


def rules_of(halting: Any) -> tuple[str, ...]:
    """Returns the rules that a model with this halting can follow."""
    return READ_OUTS[halting.mixes]


def mixes_states(select: str, halting: Any) -> bool:
    """Whether the answer is read out of the mean of all states."""
    return select == "expected" and halting.mixes == "states"


def readings_of(select: str, halting: Any, depth: int, output_steps: bool) -> list[int | Expected]:
    """Returns the readings of a pass, in order: every step where step logits are needed, else the last alone."""
    every = output_steps or (select != "last" and halting.mixes == "logits")
    steps: list[int | Expected] = list(range(1, depth + 1)) if every else []
    if mixes_states(select, halting):
        return [*steps, Expected(depth)]
    return steps or [depth]


def pick(step_logits: Sequence[Tensor], exit_probs: Tensor | None, select: str, halting: Any, keep: int | Tensor) -> Tensor:
    """Returns the logits that `select` takes from those of all steps, at the positions that `keep` says."""
    if select == "last":
        return step_logits[-1]
    assert exit_probs is not None
    weights = kept(exit_probs, keep)
    if select == "expected":
        return weighted_sum(weights, step_logits)
    chosen = halting.exit_step(weights)[..., None, None]
    stacked = torch.stack(list(step_logits), dim=-2)
    return stacked.gather(-2, chosen.expand(*chosen.shape[:-1], stacked.shape[-1])).squeeze(-2)


class Answers:
    """What a model reads out after each step of one pass, by its own read-out (`config.read_out`).

    `take` is told of every step's state; `features` then gives what the head reads if a pass without a cache ends there. Where one
    state answers, no other is kept.
    """

    def __init__(self, model: Any, e: Tensor, p: Pass, start: Tensor, select: str | None = None) -> None:
        self.model, self.e, self.p, self.state = model, e, p, start
        self.select = model.config.read_out if select is None else select
        self.mixed = mixes_states(self.select, model.halting)
        self.kept: list[Tensor] = []  # states, or where steps answer what the head reads of each
        self.halts: list[Tensor] = []

    @classmethod
    def of_steps(cls, model: Any, e: Tensor, p: Pass, start: Tensor) -> Answers:
        """Returns what each step says by itself: the read-out of its state, or of the mean so far where the model answers by it."""
        return cls(model, e, p, start, "expected" if mixes_states(model.config.read_out, model.halting) else "last")

    def take(self, s: Tensor) -> None:
        """Takes in the state [B, T, D] after the next step."""
        if self.select != "last":
            self.halts.append(self.model.halting_value(self.state, s, self.e, len(self.halts), self.p))
            self.kept.append(s if self.mixed else self.model.features(s, self.p))
        self.state = s

    def features(self) -> Tensor:
        """Returns what the head reads [B, T, D] of the steps so far."""
        if self.select == "last" or self.mixed:
            return self.model.features(self.answering(), self.p)
        return pick(self.kept, self._weights(), self.select, self.model.halting, 0)

    def answering(self) -> Tensor:
        """Returns the state [B, T, D] that is read out, where one is: the last one, or the mean of all by halting weight."""
        return weighted_sum(self._weights(), self.kept) if self.mixed else self.state

    def _weights(self) -> Tensor:
        return self.model.halting(torch.cat(self.halts, dim=-1))

    def logits(self) -> Tensor:
        """Returns the logits [B, T, V] of the steps so far."""
        return self.model.head(self.features(), self.p)
