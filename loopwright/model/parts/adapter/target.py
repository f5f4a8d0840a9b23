"""The maps an adapter can act on, and tables of factors for them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from loopwright.model.parts.adapter.effects import BRANCHES
from loopwright.model.parts.part import Part, StepIndex, take
from loopwright.settings import refuse_unknown
from loopwright.values import check_whole

if TYPE_CHECKING:
    from loopwright.model.config import LoopedConfig


@dataclass(frozen=True)
class Site:
    """Where an adapter stands: a stack of a model."""

    config: LoopedConfig
    stack: str = "core"

    @property
    def layers(self) -> int:
        """The layers of the stack."""
        return getattr(self.config, f"{self.stack}_layers")

    @property
    def rows(self) -> int:
        """The rows of a per-step table: one where the stack runs once."""
        return (self.config.max_steps or 0) if self.stack == "core" else 1


def map_shapes(config: LoopedConfig) -> dict[str, tuple[int, int]]:
    """Returns (out, in) of each linear map of a block and of its two branches."""
    width, inner = config.hidden_size, config.intermediate_size
    query, key = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    shapes = {"q_proj": (query, width), "k_proj": (key, width), "v_proj": (key, width), "o_proj": (width, query)}
    if config.mlp == "swiglu":
        shapes["gate_proj"] = (inner, width)
    return shapes | {"up_proj": (inner, width), "down_proj": (width, inner)} | dict.fromkeys(BRANCHES, (width, width))


def chosen_shapes(site: Site, targets: str | Sequence[str], *, branches: bool = True) -> dict[str, tuple[int, int]]:
    """Returns the shapes of the targets: "linears", "branches", or a list of names."""
    shapes = map_shapes(site.config)
    linears = [name for name in shapes if name not in BRANCHES]
    if targets == "linears":
        names: Sequence[str] = linears
    elif targets == "branches":
        names = BRANCHES
    else:
        names = [targets] if isinstance(targets, str) else targets
    refuse_unknown("adapter targets", names, shapes if branches else linears)
    if not names:
        raise ValueError("adapter targets: none given; allowed: 'linears', 'branches' or a list of names")
    return {name: shapes[name] for name in shapes if name in names}


class FactorTable(Part, nn.ParameterDict):
    """One factor per target: `leading` + [rank, in] for side "a", + [out, rank] for side "b"; normal or zero at the start."""

    def __init__(
        self, shapes: dict[str, tuple[int, int]], leading: tuple[int, ...], rank: int, side: str, *, zero: bool = False
    ) -> None:
        check_whole("adapter: rank", rank, 1)
        size = {name: (rank, n) if side == "a" else (m, rank) for name, (m, n) in shapes.items()}
        super().__init__({name: nn.Parameter(torch.empty(*leading, *size[name])) for name in shapes})
        self.zero = zero

    def start(self) -> None:
        for table in self.values():
            nn.init.zeros_(table) if self.zero else nn.init.normal_(table, std=table.shape[-1] ** -0.5)


class Factored(Part):
    """A module with factors of one rank: a […, r, in] and b […, out, r] per target. Abstract."""

    rank: int
    a: FactorTable
    b: FactorTable


class StepFactors(Factored):
    """A pair of factors per step, layer and target: a [S, L, r, in] and b [S, L, out, r]; b starts at zero if asked."""

    def __init__(self, site: Site, shapes: dict[str, tuple[int, int]], rank: int, *, zero: bool = True) -> None:
        super().__init__()
        self.rank = rank
        leading = (site.rows, site.layers)
        self.a = FactorTable(shapes, leading, rank, "a")
        self.b = FactorTable(shapes, leading, rank, "b", zero=zero)

    def at(self, name: str, layer: int, step: StepIndex) -> tuple[Tensor, Tensor]:
        """Returns (b, a) of one target and layer at a step: [out, r] and [r, in], or one pair per row."""
        return take(self.b[name], step).select(-3, layer), take(self.a[name], step).select(-3, layer)


class BiasTable(Part, nn.ParameterDict):
    """One shift per step, layer and target: [S, L, out], zero at the start."""

    def __init__(self, site: Site, shapes: dict[str, tuple[int, int]]) -> None:
        super().__init__({name: nn.Parameter(torch.empty(site.rows, site.layers, out)) for name, (out, _) in shapes.items()})

    def start(self) -> None:
        for table in self.values():
            nn.init.zeros_(table)

    def at(self, name: str, layer: int, step: StepIndex) -> Tensor:
        """Returns the shift of one target and layer at a step: [out], or [B, 1, out] for one step per row."""
        rows = take(self[name], step).select(-2, layer)
        return rows if rows.dim() == 1 else rows.unsqueeze(1)


def scale_of(alpha: float | None, rank: int) -> float:
    """Returns the factor of an update, alpha/rank, 1 without an alpha; one under which nothing could act is refused."""
    if alpha is not None and not 0 < alpha < math.inf:
        raise ValueError(f"adapter: alpha {alpha}; allowed: a number above 0")
    return 1.0 if alpha is None else alpha / rank


def low_rank(x: Tensor, b: Tensor, a: Tensor) -> Tensor:
    """Returns B (A x) for x [B, T, in], b [out, r] or [B, out, r], a [r, in] or [B, r, in]."""
    return (x @ a.transpose(-1, -2)) @ b.transpose(-1, -2)
