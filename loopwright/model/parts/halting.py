"""Learned halting: how much of the answer each step gives, per token. Trained later; the probability maths lives here.

Exit gate (Ouro): λ_t = σ(w·s_t + b), p_t = λ_t ∏_{u<t}(1 − λ_u); the last step takes what is left, its λ unused.
ACT (Graves 2016): steps count until the halting values sum to 1 − eps; the last one gets the remainder R; ponder cost N + R.
ACT of the Universal Transformer's code (tensor2tensor): the values read what a step's layers take in; states are interpolated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from loopwright.model.parts.init import Law, init_of
from loopwright.model.parts.part import ABOVE_ZERO, ANY_NUMBER, LINEAR_INITS, Part, Sizes, start_linears
from loopwright.schema import Kinds, refuse_unknown

READ_OUTS = {None: ("last",), "states": ("last", "expected"), "logits": ("last", "hub", "expected")}


class HaltingHead(Part):
    """A halting value per token and step. Abstract: `mixes` says what the probabilities weight, "logits" or "states", and `reads`
    of which state a step's value is: the one "after" it, or what its layers take in, which is "before" it.

    `threshold` is the cumulative probability at which `select="hub"` leaves, where logits are mixed. `eps` is what the sum of the
    halting values may lack of 1 when a token halts, where states are mixed.
    """

    mixes: ClassVar[str | None]
    reads: ClassVar[str] = "after"
    threshold: float = 1.0
    eps: float = 0.0

    def value(self, s: Tensor) -> Tensor:
        """Returns the halting value [B, T, 1] of the state after a step."""
        raise NotImplementedError

    def values(self, states: Sequence[Tensor]) -> Tensor:
        """Returns the halting values [B, T, depth] of all steps' states."""
        return torch.cat([self.value(s) for s in states], dim=-1)

    def logit(self, s: Tensor) -> Tensor:
        """Returns the logit of the halting value [B, T, 1]; a kind that has it before its sigmoid gives that."""
        return torch.logit(self.value(s))

    def forward(self, halt: Tensor) -> Tensor:
        """Returns the probability of each step, [B, T, depth] for values [B, T, depth]; each row sums to 1."""
        raise NotImplementedError

    def exit_step(self, probabilities: Tensor, threshold: float | None = None) -> Tensor:
        """Returns [B, T]: the first step whose cumulative probability reaches the threshold, else the last (the hub's rule)."""
        reached = probabilities.cumsum(-1) >= (self.threshold if threshold is None else threshold)
        last = probabilities.shape[-1] - 1
        return torch.where(reached.any(-1), reached.float().argmax(-1), last)

    def ponder_cost(self, halt: Tensor) -> Tensor:
        """Returns what the steps taken cost per token [B, T], for values [B, T, depth]; a kind need not have one."""
        raise NotImplementedError


def products_before(x: Tensor) -> Tensor:
    """Returns the product of what stands before each entry of the last axis, 1 at the first. As cumprod gives it, whose gradient
    would wait for the device, and which ONNX lacks."""
    products = [torch.ones_like(x[..., 0])]
    for t in range(x.shape[-1] - 1):
        products.append(products[-1] * x[..., t])
    return torch.stack(products, dim=-1)


class NoHalting(HaltingHead):
    """Every step runs and the last one answers."""

    mixes = None

    def __init__(self, config: Sizes) -> None:
        super().__init__()


class ExitGate(HaltingHead):
    """Ouro's exit gate; `threshold` is the cumulative probability at which `select="hub"` leaves."""

    mixes = "logits"
    ranges: ClassVar = {"threshold": ABOVE_ZERO}

    def __init__(self, config: Sizes, threshold: float = 1.0) -> None:
        super().__init__()
        self.threshold = threshold
        self.proj = nn.Linear(config.hidden_size, 1)

    def value(self, s: Tensor) -> Tensor:
        """Returns λ [B, T, 1] of the state after a step."""
        return torch.sigmoid(self.proj(s))

    def logit(self, s: Tensor) -> Tensor:
        return self.proj(s)

    def forward(self, halt: Tensor) -> Tensor:
        """Returns p [B, T, depth] for λ [B, T, depth]; each row sums to 1."""
        last = torch.ones_like(halt[..., :1])
        return products_before(1 - halt) * torch.cat([halt[..., :-1], last], dim=-1)


class MeanOfStates(HaltingHead):
    """ACT's weights, whatever gives the halting values: the answer is the mean of the states by halting weight. Abstract."""

    mixes = "states"

    def forward(self, halt: Tensor) -> Tensor:
        """Returns the weights [B, T, depth] for h [B, T, depth]: h while running, the remainder at the halting step, 0 after;
        each row sums to 1."""
        before, stop, _ = self._stop(halt)
        steps = torch.arange(halt.shape[-1], device=halt.device)
        remainder = 1 - before
        return torch.where(steps < stop[..., None], halt, torch.where(steps == stop[..., None], remainder, 0.0))

    def ponder_cost(self, halt: Tensor) -> Tensor:
        """Returns N + R per token [B, T] for h [B, T, depth]. Its gradient raises h: thinking longer costs more."""
        before, stop, _ = self._stop(halt)
        remainder = 1 - before.gather(-1, stop[..., None])[..., 0]
        return (stop + 1) + remainder

    def _stop(self, halt: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns what the values sum to before each step, the step at which a token halts, else the last, and whether it does."""
        total = halt.cumsum(-1)
        before = total - halt
        reached = self._reaches(total)
        halted = reached.any(-1)
        stop = torch.where(halted, reached.float().argmax(-1), halt.shape[-1] - 1)
        return before, stop, halted

    def _reaches(self, total: Tensor) -> Tensor:
        """Returns where a sum of halting values ends the steps of a token."""
        return total >= 1 - self.eps


class LinearComputation(MeanOfStates):
    """ACT whose halting value is a linear map of the state that it reads. Abstract."""

    ranges: ClassVar = {"bias": ANY_NUMBER, "eps": (0, 1, True)}

    def __init__(self, config: Sizes, bias: float = 1.0, eps: float = 0.01) -> None:
        super().__init__()
        self.start_bias = bias
        self.eps = eps
        self.init = init_of(config)
        self.weight = nn.Parameter(torch.empty(1, config.hidden_size))
        self.bias = nn.Parameter(torch.empty(1))

    def start(self) -> None:
        self.init.own(Law("normal", 0.02), self.weight.shape[1], 1).fill(self.weight)
        nn.init.constant_(self.bias, self.start_bias)

    def value(self, s: Tensor) -> Tensor:
        """Returns the halting value h [B, T, 1] of the state after a step."""
        return torch.sigmoid(nn.functional.linear(s, self.weight, self.bias))


class AdaptiveComputation(LinearComputation):
    """ACT as Graves has it: the halting value is of the state after the step."""


class UniversalComputation(LinearComputation):
    """ACT as the Universal Transformer's public code (tensor2tensor) has it.

    h_t is of what the layers of step t take in: the state before the step, with the step's input and signals. With u_t = h_t until
    their sum passes 1 − eps, the remainder at that step and 0 after it, the answer goes from m to u_t · s_t + (1 − u_t) · m, from
    m = 0. A token that never halts has no remainder, so its weights sum to less than 1.
    """

    reads = "before"

    def forward(self, halt: Tensor) -> Tensor:
        """Returns the weights [B, T, depth] of the states for h [B, T, depth]: u_t ∏_{k>t} (1 − u_k)."""
        before, stop, halted = self._stop(halt)
        steps = torch.arange(halt.shape[-1], device=halt.device)
        ends = (steps == stop[..., None]) & halted[..., None]
        u = torch.where(ends, 1 - before, torch.where(steps <= stop[..., None], halt, 0.0))
        return u * products_before((1 - u).flip(-1)).flip(-1)  # what the steps after each leave

    def ponder_cost(self, halt: Tensor) -> Tensor:
        """Returns N + R per token [B, T] for h [B, T, depth], with R = 0 where a token does not halt."""
        before, stop, halted = self._stop(halt)
        remainder = torch.where(halted, 1 - before.gather(-1, stop[..., None])[..., 0], 0.0)
        return (stop + 1) + remainder

    def _reaches(self, total: Tensor) -> Tensor:
        return total > 1 - self.eps


class Halter(MeanOfStates):
    """The Ouroboros halter: ACT whose halting value is an MLP of the state, with two layers of `width` before its last one.

    The last layer starts at 0 with `bias`, so that every token halts at the same step at first (−2: h = 0.12, after 9 steps).
    `init` is how the others start: "normal", or "linear" as in its code (see part.py).
    """

    ranges: ClassVar = {"width": (1, 2**16, True), "bias": ANY_NUMBER, "eps": (0, 1, True)}

    def __init__(self, config: Sizes, width: int = 256, bias: float = -2.0, eps: float = 0.01, init: str = "normal") -> None:
        super().__init__()
        refuse_unknown("halter init", [init], LINEAR_INITS)
        self.start_bias, self.init = bias, init
        self.eps = eps
        self.first, self.second = nn.Linear(config.hidden_size, width), nn.Linear(width, width)
        self.last = nn.Linear(width, 1)

    def start(self) -> None:
        start_linears(self, self.init)
        nn.init.zeros_(self.last.weight)
        nn.init.constant_(self.last.bias, self.start_bias)

    def value(self, s: Tensor) -> Tensor:
        """Returns the halting value h [B, T, 1] of the state after a step."""
        return torch.sigmoid(self.last(nn.functional.silu(self.second(nn.functional.silu(self.first(s))))))


HALTINGS = Kinds(
    "halting",
    {
        "none": NoHalting, "exit": ExitGate, "act": AdaptiveComputation, "universal-act": UniversalComputation, "halter": Halter,
    },
    inherits=HaltingHead, offers=["mixes", "value", "forward"], given=["config"],
)  # fmt: skip
