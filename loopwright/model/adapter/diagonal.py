"""Modulation between fixed bases: y += (alpha/rank) · B ((A x) ⊙ d_t), with d a static table per step or a controller's output.

The controller (Ouroboros) pools the state, joins a step embedding, and predicts the diagonals of all linear maps:
    z = SiLU(W_p pool(s) + b),  c = MLP([z; step embedding]),  d = H c,  H starting at zero.
The bases A, B come from the SVD of what the conversion removed; they are frozen.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from loopwright.model.adapter.effects import Adapter, Effects, Update
from loopwright.model.adapter.pooling import POOLINGS
from loopwright.model.adapter.target import FactorTable, Site, chosen_shapes
from loopwright.model.context import Pass
from loopwright.model.part import Part, StepIndex, take
from loopwright.settings import refuse_unknown


class Bases(Part):
    """Frozen bases per target: a [L, r, in] and b [L, out, r]."""

    def __init__(self, site: Site, rank: int, alpha: float, targets: str | Sequence[str]) -> None:
        super().__init__()
        shapes = chosen_shapes(site, targets, branches=False)
        self.names, self.rank = list(shapes), rank
        self.scale = alpha / rank
        self.a = FactorTable(shapes, (site.layers,), rank, "a").requires_grad_(False)
        self.b = FactorTable(shapes, (site.layers,), rank, "b").requires_grad_(False)

    def modulated(self, diagonals: Tensor) -> Update:
        """Returns the update for diagonals [..., L, targets, r], with leading axes that broadcast against [B, T]."""

        def update(layer: int, name: str, x: Tensor, weight: Tensor | None) -> Tensor | None:
            if name not in self.names:
                return None
            d = diagonals[..., layer, self.names.index(name), :]
            inner = F.linear(x, self.a[name][layer]) * (self.scale * d)
            return F.linear(inner, self.b[name][layer])

        return update


class StaticDiagonal(Adapter):
    """One diagonal per step, layer and map, zero at the start: what a controller without input would learn."""

    per_step = True

    def __init__(self, site: Site, rank: int = 32, alpha: float = 16.0, targets: str | Sequence[str] = "linears") -> None:
        super().__init__()
        self.bases = Bases(site, rank, alpha, targets)
        self.table = nn.Parameter(torch.empty(site.rows, site.layers, len(self.bases.names), rank))

    def start(self) -> None:
        nn.init.zeros_(self.table)

    def begin(self, step: StepIndex, s: Tensor, p: Pass) -> Effects:
        diagonals = take(self.table, step)
        if diagonals.dim() == 4:  # one step per row
            diagonals = diagonals[:, None]
        return Effects(update=self.bases.modulated(diagonals))


class Controller(Adapter):
    """Diagonals from the pooled state and the step. `pooling` is causal unless it is "sequence" (see pooling.py)."""

    per_step = True

    def __init__(
        self,
        site: Site,
        rank: int = 32,
        alpha: float = 16.0,
        style: int = 128,
        pooling: str = "prefix",
        chunk: int = 64,
        leak_future: bool = False,
        targets: str | Sequence[str] = "linears",
    ) -> None:
        super().__init__()
        refuse_unknown("controller pooling", [pooling], POOLINGS)
        if (pooling == "sequence") != leak_future:
            raise ValueError(
                f"controller: pooling {pooling!r} with leak_future={leak_future}; 'sequence' lets every token see the future "
                "and needs leak_future=True, the others must not have it"
            )
        if leak_future:
            warnings.warn(
                "controller: pooling 'sequence' leaks future tokens: losses are not likelihoods and generation is refused",
                stacklevel=2,
            )
        if chunk < 1:
            raise ValueError(f"controller: chunk {chunk}; allowed: at least 1")
        self.pooling, self.chunk, self.leaks_future = pooling, chunk, leak_future
        self.bases = Bases(site, rank, alpha, targets)
        self.shape = (site.layers, len(self.bases.names), rank)
        self.state_proj = nn.Linear(site.config.hidden_size, 2 * style)
        self.step_embedding = nn.Parameter(torch.empty(site.rows, style))
        self.style1 = nn.Linear(3 * style, 2 * style)
        self.style2 = nn.Linear(2 * style, style)
        self.heads = nn.Parameter(torch.empty(math.prod(self.shape), style))

    def start(self) -> None:
        nn.init.normal_(self.step_embedding)
        nn.init.zeros_(self.heads)

    def diagonals(self, step: StepIndex, s: Tensor, p: Pass) -> Tensor:
        """Returns the diagonals [B, T, L, targets, r] (T is 1 for pooling "sequence")."""
        # the projection is linear, so pooling may come after it, at 2·style instead of D channels
        pooled = POOLINGS[self.pooling](self.state_proj(s), self.key, step.t if self.stack == "core" else None, p, self.chunk)
        where = take(self.step_embedding, step)
        where = where.expand(*pooled.shape[:-1], -1) if where.dim() == 1 else where[:, None].expand(-1, pooled.shape[1], -1)
        style = F.silu(self.style1(torch.cat([F.silu(pooled), where], dim=-1)))
        return F.linear(F.silu(self.style2(style)), self.heads).unflatten(-1, self.shape)

    def begin(self, step: StepIndex, s: Tensor, p: Pass) -> Effects:
        return Effects(update=self.bases.modulated(self.diagonals(step, s, p)))
