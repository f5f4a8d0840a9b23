"""Compiled passes beside passes as written: a compiler can get gradients wrong and raise nothing, so its first passes are compared.

Torch's did: small ASURA models were trained on wrong gradients here for want of barriers (barriers.py puts them in), and from 2.10
to 2.13 gradients of norms whose weights are rows of one table may hold whatever the memory held before
(github.com/pytorch/pytorch/issues/193061).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TypeVar

import torch
from torch import Tensor

Made = TypeVar("Made")

PASSES = 2  # of each kind: the first runs kernel by kernel, the second may be a graph, replayed
# a gradient may differ by so much of its own norm, and by so much of that of all: sums are rounded otherwise, and of a small one
# bf16 leaves little (0.76 of its own norm was seen, 0.001 of that of all). Wrong ones were thousands of times too large
OWN, ALL = 0.5, 0.01
ROUNDED = 4.0  # and by so many times what rounding less changes


class Comparison:
    """The first passes of each kind, each beside the pass as written. Gradients may hold those of earlier batches."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self.parameters = parameters
        self.seen: Counter[Hashable] = Counter()
        self.before: dict[str, Tensor | None] = {}
        self.written: dict[str, Tensor | None] = {}

    def is_due(self, *kinds: Hashable) -> bool:
        """Says whether a pass is among the first of one of its kinds, and counts it."""
        self.seen.update(kinds)
        return any(self.seen[kind] <= PASSES for kind in kinds)

    def run_written(self, run: Callable[[], Made]) -> Made:
        """Returns what the pass as written returns; keeps its gradients aside, and leaves those of before. It draws what the next
        pass draws."""
        self.before = self._gradients()
        try:
            with self._drawing_alike():
                made = run()
            self.written = self._gradients()
        finally:
            self._put(self.before)
        return made

    def difference(self, precise: Callable[[], object] | None = None) -> str | None:
        """Returns how the gradients that have come since differ from those of the pass as written, None where they are the same but
        for rounding. Of a pass as written that is not finite nothing can be said. `precise` runs it with less rounding: where that
        alone changes gradients as much, as in a loop that is chaotic in bf16, a difference says nothing either."""
        names = [name for name, p in self.parameters.items() if p.grad is not None or self.written[name] is not None]
        if not names:
            return None
        zero = {name: torch.zeros_like(self.parameters[name]) for name in names}
        written = [_or(self.written[name], zero[name]) for name in names]
        before = [_or(self.before[name], zero[name]) for name in names]
        found = [_or(self.parameters[name].grad, zero[name]) for name in names]
        own, apart = _apart(written, before), _apart(found, written)
        whole = own.norm()
        if not bool(whole.isfinite()):
            return None
        excess = (apart - (OWN * own + ALL * whole)).nan_to_num(nan=torch.inf)
        if precise is not None and bool(excess.max() > 0):
            excess = excess - ROUNDED * self._rounding(precise, names, written)
        worst = int(excess.argmax())
        if bool(excess[worst] <= 0):
            return None
        share = float(apart[worst] / own[worst].clamp(min=1e-30))
        return f"the gradient of {names[worst]} is {share:.3g} times its norm away from that of the pass as written"

    def _rounding(self, precise: Callable[[], object], names: Sequence[str], written: list[Tensor]) -> Tensor | float:
        """Returns how far from the pass as written each gradient is where less is rounded; 0 where there is no memory to tell."""
        found = self._gradients()
        self._put(self.before)
        try:
            with self._drawing_alike():
                precise()
            exact = [_or(self.parameters[name].grad, torch.zeros_like(x)) for name, x in zip(names, written, strict=True)]
            return _apart(exact, written).nan_to_num(nan=0.0, posinf=0.0)
        except torch.OutOfMemoryError:
            return 0.0
        finally:
            self._put(found)

    def _drawing_alike(self) -> AbstractContextManager[None]:
        """What runs inside leaves the random generators as they were."""
        devices = {p.device.index or 0 for p in self.parameters.values() if p.device.type == "cuda"}
        return torch.random.fork_rng(devices=sorted(devices))

    def take_written(self) -> None:
        """Puts the gradients of the pass as written in the place of those that have come since."""
        self._put(self.written)

    def forget(self, *, put_back: bool = False) -> None:
        """Lets go of the gradients that were kept; `put_back`: those of before the pass take the place of what came since."""
        if put_back and self.before:
            self._put(self.before)
        self.before, self.written = {}, {}

    def _gradients(self) -> dict[str, Tensor | None]:
        return {name: None if p.grad is None else p.grad.detach().clone() for name, p in self.parameters.items()}

    def _put(self, gradients: Mapping[str, Tensor | None]) -> None:
        """In the same tensors where there are some: a graph adds to those for ever."""
        for name, p in self.parameters.items():
            kept = gradients[name]
            if p.grad is None or kept is None:
                p.grad = None if kept is None else kept.clone()
            else:
                p.grad.copy_(kept)


def _or(x: Tensor | None, other: Tensor) -> Tensor:
    return other if x is None else x.detach()


def _apart(some: list[Tensor], others: list[Tensor]) -> Tensor:
    """Returns the norm of each difference."""
    return torch.stack(torch._foreach_norm(torch._foreach_sub(some, others))).double()
