"""What the parts of a model cost, counted: each is run on the meta device, where tensors have shapes and no values.

FLOPs are those of torch's own counter. What a part keeps for the backward pass are the tensors that autograd saves, each storage
once, parameters apart. So a kind need not say what it costs, whoever wrote it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from loopwright.model.config import LoopedConfig
from loopwright.model.forward.context import Pass, Place
from loopwright.model.looped import LoopedForCausalLM, plain_config
from loopwright.model.parts.adapter.effects import Adaptation, Adapter
from loopwright.model.parts.part import StepIndex
from loopwright.untrusted import first_line

# a product that is added in place is one that torch's counter does not know
_IN_PLACE = {torch.ops.aten.addmm_: lambda y, a, b, out_shape=None, **_: 2 * a[0] * a[1] * b[1]}


@dataclass
class Cost:
    """FLOPs, and numbers kept for the backward pass."""

    flops: int = 0
    kept: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.flops + other.flops, self.kept + other.kept)

    def __sub__(self, other: Cost) -> Cost:
        return Cost(self.flops - other.flops, self.kept - other.kept)

    def times(self, runs: int) -> Cost:
        """Returns the cost of so many runs."""
        return Cost(runs * self.flops, runs * self.kept)


@dataclass
class Bench:
    """A skeleton with the tensors that its parts are run on: `rows` × `length` tokens."""

    model: LoopedForCausalLM
    rows: int
    length: int
    p: Pass = field(init=False)
    e: Tensor = field(init=False)

    def __post_init__(self) -> None:
        # the input alone is wanted, not what the prelude and its adapters do to it: of the plain model one layer is built, none run
        config = LoopedConfig(**{**plain_config(self.model.config).to_dict(), "prelude_layers": 1})
        with torch.device("meta"):
            ids, plain = torch.zeros(self.rows, self.length, dtype=torch.long), LoopedForCausalLM(config)
        plain.prelude = nn.ModuleList()
        self.e, self.p = plain.embed(ids)

    def fresh(self) -> Tensor:
        """Returns a tensor [B, T, D] that takes a gradient."""
        return torch.empty(self.e.shape, device="meta", requires_grad=True)

    def step_costs(self, depth: int) -> dict[str, Cost]:
        """Returns the cost of "injection", "gate" and "halting" over `depth` steps; all later steps cost what the second does."""
        if not depth:
            return {name: self._halting() if name == "halting" else Cost() for name in ("injection", "gate", "halting")}
        first = self._step(0)
        later = self._step(1) if depth > 1 else first
        return {name: cost + later[name].times(depth - 1) for name, cost in first.items()}

    def adapter_cost(self, adapter: Any, depth: int) -> Cost:
        """Returns the cost of an adapter where it stands, over the `depth` runs of the core, or one run of another stack."""
        if adapter.stack != "core":
            return self._adapted(adapter, 0)
        first = self._adapted(adapter, 0) if depth else Cost()
        return first + self._adapted(adapter, 1).times(depth - 1) if depth > 1 else first

    def norm_cost(self, norm: nn.Module, width: int, step: int | None = None) -> Cost:
        """Returns the cost of a norm of a width, at a step where it has weights per step; its input counts where it is kept."""
        x = torch.empty(self.rows, self.length, width, device="meta", requires_grad=True)
        return self._counted(f"norm ({type(norm).__name__})", lambda: norm(x) if step is None else norm(x, StepIndex(step, step)))

    def _step(self, t: int) -> dict[str, Cost]:
        model, index, s, new = self.model, self.model.step_index(t), self.fresh() + 0, self.fresh() + 0
        kinds = {name: f"{name} ({getattr(model.config, name)['kind']})" for name in ("injection", "gate", "halting")}
        made: dict[str, Tensor] = {}

        def inject() -> None:
            made["x"] = model.injection(s, self.e.detach().requires_grad_(), index)

        def mix() -> None:
            made["s"] = model.gate(s, new, index)

        # what the first layer takes in is counted with that layer's norm
        costs = {"injection": self._counted(kinds["injection"], inject, elsewhere=lambda: [made["x"]], apart=[self.e])}
        passes_on = made["x"] is s
        costs["gate"] = self._counted(kinds["gate"], mix, elsewhere=lambda: [s] if passes_on else [])
        after = made["s"] if made["s"].requires_grad else made["s"].detach().requires_grad_()
        if model.halting.mixes is not None:
            costs["halting"] = self._counted(kinds["halting"], lambda: model.halting.value(after))
        return {"halting": Cost(), **costs}

    def _halting(self) -> Cost:
        """The cost of halting in a model without a core, which has one state."""
        if self.model.halting.mixes is None:
            return Cost()
        s = self.fresh() + 0
        return self._counted(f"halting ({self.model.config.halting['kind']})", lambda: self.model.halting.value(s))

    def _adapted(self, adapter: Adapter, t: int) -> Cost:
        """What a stack costs with an adapter at a step, less what it costs without."""
        blocks = getattr(self.model, adapter.stack)
        index = self.model.step_index(t) if adapter.stack == "core" else StepIndex(0, 0)

        def run(adapt: Callable[[Tensor], Adaptation | None]) -> None:
            s = self.fresh() + 0
            effects = adapt(s)
            x = s if effects is None else effects.shift(s)
            for layer, block in enumerate(blocks):
                x = block(x, self.p, Place(adapter.stack, index, layer), effects)

        where = f"adapter ({type(adapter).__name__})"
        adapted = self._counted(where, lambda: run(lambda s: Adaptation([adapter.begin(index, s, self.p)])))
        return adapted - self._counted(where, lambda: run(lambda s: None))

    def _counted(
        self, where: str, run: Callable[[], Any], *, elsewhere: Callable[[], list[Tensor]] = list, apart: list[Tensor] | None = None
    ) -> Cost:
        """The cost of a call; what it keeps of `elsewhere` and `apart` is counted by others."""
        weights = {parameter.untyped_storage()._cdata for parameter in self.model.parameters()}
        try:
            with _counting() as (counter, kept):
                run()
        except (RuntimeError, NotImplementedError) as error:
            raise ValueError(
                f"cost: {where} cannot be counted: it looks at values, which are not there ({first_line(error)})"
            ) from None
        weights |= {tensor.untyped_storage()._cdata for tensor in [*elsewhere(), *(apart or [])]}
        # in units of the model's numbers: what is narrower (a mask) counts for as much as it takes
        numbers = sum(tensor.untyped_storage().nbytes() for key, tensor in kept.items() if key not in weights)
        return Cost(counter.get_total_flops(), numbers // self.e.element_size())


@contextmanager
def _counting() -> Iterator[tuple[FlopCounterMode, dict[int, Tensor]]]:
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept.setdefault(tensor.untyped_storage()._cdata, tensor)
        return tensor

    counter = FlopCounterMode(display=False, custom_mapping=_IN_PLACE)
    # the math kernel is made of plain products: every query meets every key
    with sdpa_kernel(SDPBackend.MATH), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), counter:
        yield counter, kept
