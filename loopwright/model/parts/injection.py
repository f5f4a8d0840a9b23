"""How the input re-enters at each step: not at all, added, concatenated and projected, or through a diagonal contraction."""

from __future__ import annotations

import math
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from loopwright.model.parts.init import Law, init_of
from loopwright.model.parts.part import Part, Sizes, StepIndex, take
from loopwright.schema import Kinds


class Injection(Part):
    """How the input re-enters. Abstract: a kind is built from the config."""

    def forward(self, s: Tensor, e: Tensor, step: StepIndex) -> Tensor:
        """Returns what enters the core, from the state s and the input e, both [B, T, D]."""
        raise NotImplementedError

    def start_as_input(self) -> None:
        """Starts so that what enters the core is the input alone; a kind that cannot raises NotImplementedError."""
        raise NotImplementedError


class NoInjection(Injection):
    """x = s."""

    def __init__(self, config: Sizes) -> None:
        super().__init__()

    def forward(self, s: Tensor, e: Tensor, step: StepIndex) -> Tensor:
        return s


class AddInjection(Injection):
    """x = s + e."""

    def __init__(self, config: Sizes) -> None:
        super().__init__()

    def forward(self, s: Tensor, e: Tensor, step: StepIndex) -> Tensor:
        return s + e


class ConcatInjection(Injection):
    """x = W [s; e] with one projection for all steps (Huginn); `order` says which comes first."""

    def __init__(self, config: Sizes, order: str = "state-input", bias: bool = False) -> None:
        super().__init__()
        if order not in ("state-input", "input-state"):
            raise ValueError(f"injection (concat): order {order!r}; allowed: state-input, input-state")
        self.state_first = order == "state-input"
        self.proj = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=bias)

    @classmethod
    def least_parameters(cls, config: Sizes) -> int:
        return 2 * config.hidden_size**2

    def start_as_input(self) -> None:
        width = self.proj.out_features
        weight = self.proj.weight.zero_()
        half = weight[:, width:] if self.state_first else weight[:, :width]
        half.copy_(torch.eye(width))

    def forward(self, s: Tensor, e: Tensor, step: StepIndex) -> Tensor:
        return self.proj(torch.cat([s, e] if self.state_first else [e, s], dim=-1))


class ConcatPerStepInjection(Injection):
    """x = W_t [s; e] + b_t, one biased projection per step (ASURA's ProjConcat)."""

    per_step = True

    def __init__(self, config: Sizes) -> None:
        super().__init__()
        width = config.hidden_size
        self.init = init_of(config)
        self.weight = nn.Parameter(torch.empty(config.max_steps or 0, width, 2 * width))
        self.bias = nn.Parameter(torch.empty(config.max_steps or 0, width))

    @classmethod
    def least_parameters(cls, config: Sizes) -> int:
        return 2 * (config.max_steps or 0) * config.hidden_size**2

    def start(self) -> None:
        outputs, inputs = self.weight.shape[1:]
        self.init.own(Law("normal", 1 / math.sqrt(inputs)), inputs, outputs).fill(self.weight)
        self.init.bias(inputs).fill(self.bias)

    def forward(self, s: Tensor, e: Tensor, step: StepIndex) -> Tensor:
        both, weight, bias = torch.cat([s, e], dim=-1), take(self.weight, step), take(self.bias, step)
        if weight.dim() == 2:
            return F.linear(both, weight, bias)
        return torch.baddbmm(bias[:, None], both, weight.transpose(1, 2))


class DiagonalInjection(Injection):
    """x = exp(−dt·exp(a)) ⊙ s + dt ⊙ (B e): its state part contracts with spectral radius below 1 by construction.

    dt = softplus(d) and a are per channel (after Parcae, arXiv 2604.12946). a starts at 0 and B as the identity; `decay` is the
    factor of the state at the start, so that dt starts at −log decay. Weight decay leaves B alone.
    """

    undecayed = ("input_proj",)
    ranges: ClassVar = {"decay": (0, 1, False)}

    def __init__(self, config: Sizes, decay: float = math.sqrt(1 / 5)) -> None:
        super().__init__()
        if not 0 < decay < 1:
            raise ValueError(f"injection (diagonal): decay {decay}; allowed: above 0, below 1")
        self.start_decay = decay
        self.rate = nn.Parameter(torch.empty(config.hidden_size))
        self.step_size = nn.Parameter(torch.empty(config.hidden_size))
        self.input_proj = nn.Parameter(torch.empty(config.hidden_size, config.hidden_size))

    @classmethod
    def least_parameters(cls, config: Sizes) -> int:
        return config.hidden_size**2

    def start(self) -> None:
        nn.init.zeros_(self.rate)
        nn.init.constant_(self.step_size, math.log(math.expm1(-math.log(self.start_decay))))  # softplus gives −log decay
        nn.init.eye_(self.input_proj)

    def decay(self) -> Tensor:
        """Returns the factor of each channel of the state, strictly between 0 and 1."""
        wide = torch.promote_types(self.rate.dtype, torch.float32)
        rate, size = self.rate.to(wide).clamp(max=80.0), F.softplus(self.step_size.to(wide))
        limits = torch.finfo(self.rate.dtype)
        # the bounds keep the factor off 0 and 1 where the dtype would round to them
        return torch.exp(-size * rate.exp()).to(self.rate.dtype).clamp(limits.tiny, 1 - limits.eps / 2)

    def forward(self, s: Tensor, e: Tensor, step: StepIndex) -> Tensor:
        return self.decay() * s + F.softplus(self.step_size) * F.linear(e, self.input_proj)


INJECTIONS = Kinds(
    "injection",
    {
        "none": NoInjection,
        "add": AddInjection,
        "concat": ConcatInjection,
        "concat-per-step": ConcatPerStepInjection,
        "diagonal": DiagonalInjection,
    },
    inherits=Injection, offers=["forward"], given=["config"],
)  # fmt: skip
