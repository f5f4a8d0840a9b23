"""What every adapter is made of: the site it stands on, the maps it can act on, and tables of factors for them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from loopwright.model.parts.part import ABOVE_ZERO, ANY_NUMBER, Part, Sizes, StepIndex, take
from loopwright.schema import check_whole, refuse_unknown

if TYPE_CHECKING:
    from loopwright.model.passes import Effects, Pass


BRANCHES = ("attention", "mlp")


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


@dataclass(frozen=True)
class Site:
    """Where an adapter stands: a stack of a model."""

    config: Sizes
    stack: str = "core"

    @property
    def layers(self) -> int:
        """The layers of the stack."""
        return getattr(self.config, f"{self.stack}_layers")

    @property
    def rows(self) -> int:
        """The rows of a per-step table: one where the stack runs once."""
        return (self.config.max_steps or 0) if self.stack == "core" else 1


def map_shapes(config: Sizes) -> dict[str, tuple[int, int]]:
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
