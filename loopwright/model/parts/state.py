"""How the state starts: the input, noise, zero, or a learned vector. An explicit initial state always wins over these."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from loopwright.model.parts.part import ANY_NUMBER, FROM_ZERO, Part, Sizes
from loopwright.schema import Kinds


class State(Part):
    """How the state starts. Abstract: `seeded` says whether the kind reads the seed, `seed` is the one where a pass that does not
    train brings none."""

    seeded: ClassVar[bool] = False
    seed: int = 0

    def forward(self, e: Tensor, positions: Tensor, seed: int | Tensor | None) -> Tensor:
        """Returns the state [B, T, D] before the first step, of the input e at positions [B or 1, T]."""
        raise NotImplementedError


class InputState(State):
    """s₀ = e."""

    def __init__(self, config: Sizes) -> None:
        super().__init__()

    def forward(self, e: Tensor, positions: Tensor, seed: int | Tensor | None) -> Tensor:
        return e


class ZeroState(State):
    """s₀ = 0."""

    def __init__(self, config: Sizes) -> None:
        super().__init__()

    def forward(self, e: Tensor, positions: Tensor, seed: int | Tensor | None) -> Tensor:
        return torch.zeros_like(e)


class LearnedState(State):
    """s₀ = one trained vector for all positions."""

    ranges: ClassVar = {"std": FROM_ZERO}

    def __init__(self, config: Sizes, std: float = 0.02) -> None:
        super().__init__()
        self.std = std
        self.vector = nn.Parameter(torch.empty(config.hidden_size))

    def start(self) -> None:
        nn.init.normal_(self.vector, std=self.std)

    def forward(self, e: Tensor, positions: Tensor, seed: int | Tensor | None) -> Tensor:
        return self.vector.expand_as(e)


class NoiseState(State):
    """s₀ = scale · truncated normal (std, cut at ±3 std), a pure function of (seed, position).

    A sequential draw would break cached = uncached, padding, beams and drafts, and make a row depend on its batch mates.
    `seed` is that of evaluation and generation; a pass may bring its own, one for all rows or one per row. In training every row
    of every pass has its own: one start for all of a training would be the only one that the model answers from.
    """

    seeded = True
    ranges: ClassVar = {"std": FROM_ZERO, "scale": ANY_NUMBER}

    def __init__(self, config: Sizes, std: float | None = None, scale: float = 1.0, seed: int = 0) -> None:
        super().__init__()
        self.std = huginn_std(config.hidden_size) if std is None else std
        self.scale = scale
        self.seed = seed

    @classmethod
    def spelled_out(cls, config: Sizes, options: Mapping[str, Any]) -> dict[str, Any]:
        return {**options, "std": huginn_std(config.hidden_size) if options.get("std") is None else options["std"]}

    def forward(self, e: Tensor, positions: Tensor, seed: int | Tensor | None) -> Tensor:
        noise = hashed_normal(self.seed if seed is None else seed, positions, e.shape[-1])
        return (noise * (self.std * self.scale)).to(e.dtype).expand_as(e)


def huginn_std(width: int) -> float:
    """Returns the spread that Huginn starts weights and states of this width with."""
    return math.sqrt(2 / (5 * width))


def hashed_normal(seed: int | Tensor, positions: Tensor, width: int) -> Tensor:
    """Returns truncated standard normal values [B or 1, T, width] that depend on (seed, position, channel) alone.

    A counter-based generator: two rounds of the SplitMix64 finaliser over the three numbers, then the inverse normal
    distribution between −3 and 3. `seed` is an int or one per row [B].
    """
    device = positions.device
    if isinstance(seed, Tensor):
        key = seed.to(device=device, dtype=torch.long).view(-1, 1)
    else:
        key = torch.full((1, 1), signed(seed), device=device)
    key = mix(key * signed(0x9E3779B97F4A7C15) + positions.long())
    bits = mix(key[..., None] + torch.arange(1, width + 1, device=device) * signed(0xD1342543DE82EF95))
    uniform = ((bits >> 40) & 0xFFFFFF).float().add(0.5) / 2**24
    edge = math.erf(3 / math.sqrt(2))
    return inverse_erf((2 * uniform - 1) * edge).mul(math.sqrt(2)).clamp(-3, 3)


def inverse_erf(x: Tensor) -> Tensor:
    """Returns erf⁻¹(x). In a program that is exported it is made of operations that ONNX has: Winitzki's formula, within 0.002,
    and two steps of Newton's method, which leave rounding."""
    if not torch.compiler.is_exporting():
        return torch.erfinv(x)
    log, a = torch.log((1 - x) * (1 + x)), 0.147
    half = 2 / (math.pi * a) + log / 2
    y = torch.sign(x) * torch.sqrt((torch.sqrt(half * half - log / a) - half).clamp(min=0))
    for _ in range(2):
        y = y - (torch.erf(y) - x) * (math.sqrt(math.pi) / 2) * torch.exp(y * y)
    return y


@contextmanager
def started_at(state: State, seed: int) -> Iterator[None]:
    """The state with another seed for passes that bring none; afterwards its own again."""
    own, state.seed = state.seed, seed
    try:
        yield
    finally:
        state.seed = own


def row_seeds(seed: int, places: Tensor) -> Tensor:
    """Returns a seed for each row of a run with this seed, from its place in the order of samples [B]: a place comes once, so that
    every row of every update has its own, whatever the number of processes and wherever a run resumes."""
    start = mix(torch.tensor(signed(seed * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019), device=places.device))
    return mix(start + (places.long() + 1) * signed(0xD1342543DE82EF95))


def fresh_seeds(rows: int, device: torch.device) -> Tensor:
    """Returns a seed for each row, drawn from torch's own generator of the device [B]."""
    return torch.randint(1 << 62, (rows,), device=device)


def mix(x: Tensor) -> Tensor:
    """Returns the SplitMix64 finaliser of int64 numbers: every bit of the result depends on every bit of x."""
    x = (x ^ ((x >> 30) & ((1 << 34) - 1))) * signed(0xBF58476D1CE4E5B9)
    x = (x ^ ((x >> 27) & ((1 << 37) - 1))) * signed(0x94D049BB133111EB)
    return x ^ ((x >> 31) & ((1 << 33) - 1))


def signed(value: int) -> int:
    """Returns the int64 that has the bits of an unsigned 64-bit number."""
    value %= 1 << 64
    return value - (1 << 64) if value >= 1 << 63 else value


STATES = Kinds(
    "state",
    {"input": InputState, "zero": ZeroState, "learned": LearnedState, "noise": NoiseState},
    inherits=State, offers=["forward"], given=["config"],
)  # fmt: skip
