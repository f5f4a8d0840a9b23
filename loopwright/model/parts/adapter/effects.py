"""What adapters do to one step: they shift the state, or add to a linear map or a whole branch.

Adapters hand their effects to the block as arguments. Nothing is set on modules, so a forward has no hidden state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from loopwright.model.forward.context import Pass
from loopwright.model.parts.part import ABOVE_ZERO, ANY_NUMBER, Part, StepIndex

# (layer, name of the linear map or branch, its input, its weight or None for a branch) → what to add, or None
Update = Callable[[int, str, Tensor, Tensor | None], Tensor | None]
# (layer, linear maps that share an input, that input [B, T, in], their outputs [B·T, out], added to in place, or None where they
# are still to be made) → the outputs
Modulation = Callable[[int, Mapping[str, nn.Module], Tensor, Sequence[Tensor] | None], Sequence[Tensor]]

BRANCHES = ("attention", "mlp")


@dataclass(frozen=True)
class Effects:
    """The effects of one adapter at one step; what is None does nothing."""

    signal: Tensor | None = None
    update: Update | None = None
    modulate: Modulation | None = None


class Adapter(Part):
    """What differs per step. Abstract: a kind is built from the site that it stands on."""

    ranges: ClassVar = {"alpha": ABOVE_ZERO, "gamma": ANY_NUMBER, "dropout": (0, 1, True)}
    unfoldable: ClassVar[str | None] = (
        "it does not say what it adds to a weight"  # why no weight can hold it; None: `fold` says what
    )
    diagonal: ClassVar[bool] = False  # whether it has diagonals between bases, which a tap can see
    starts_from: ClassVar[str | None] = None  # what a retrofit may start by an SVD: its "factors" per step, its shared "bases"
    shares_work: ClassVar[bool] = False  # whether layers share what it makes of a state, and so one backward pass through it
    second_output: ClassVar[bool] = True  # whether it makes an output of its own of a linear map, beside the map's
    stack = "core"  # where it stands
    key = "adapter"  # the name of its running sums in a cache

    def begin(self, step: StepIndex, s: Tensor, p: Pass) -> Effects:
        """Returns the effects at a step whose incoming state is s."""
        raise NotImplementedError

    @property
    def cached_numbers(self) -> int:
        """The numbers that a cache holds for it, per token and step or reading (running sums, in float32 at least)."""
        return 0

    @property
    def token_numbers(self) -> int:
        """The numbers that it holds per token while a step runs."""
        return 0

    @property
    def targets(self) -> Sequence[str]:
        """The linear maps and branches that it adds to, where it can be folded."""
        return ()

    def fold(self, name: str, leaf: str, layer: int, dtype: torch.dtype) -> Tensor | None:
        """Returns what it adds to the weight or bias (`leaf`) of a linear map at the first step; None where nothing."""
        raise NotImplementedError


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
