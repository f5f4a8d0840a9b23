"""Modulation between fixed bases: y += (alpha/rank) · B ((A x) ⊙ d_t), with d a static table per step or a controller's output.

The controller (Ouroboros) pools the state, joins a step embedding, and predicts the diagonals of all linear maps:
    z = SiLU(W_p pool(s) + b),  c = MLP([z; step embedding]),  d = H c,  H starting at zero.
The bases A, B come from the SVD of what the conversion removed; they are frozen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from loopwright.model.forward.context import Pass
from loopwright.model.parts.adapter.conditioned import CHUNK, Conditioned
from loopwright.model.parts.adapter.effects import Adapter, Effects, Modulation
from loopwright.model.parts.adapter.target import Factored, FactorTable, Site, chosen_shapes, scale_of
from loopwright.model.parts.part import StepIndex, take


class Bases(Factored):
    """Frozen bases per target: a [L, r, in] and b [L, out, r]."""

    frozen = True

    def __init__(self, site: Site, rank: int, alpha: float, targets: str | Sequence[str]) -> None:
        super().__init__()
        shapes = chosen_shapes(site, targets, branches=False)
        self.names, self.rank = list(shapes), rank
        self.a = FactorTable(shapes, (site.layers,), rank, "a").requires_grad_(False)
        self.b = FactorTable(shapes, (site.layers,), rank, "b").requires_grad_(False)
        self.scale = scale_of(alpha, rank)

    def modulated(self, diagonals: Tensor) -> Modulation:
        """Returns the modulation by diagonals [..., L, targets, r], with leading axes that broadcast against [B, T].

        No ΔW is formed: A x of maps that share x is one product, and B adds its own into what W has made.
        """
        scaled = self.scale * diagonals

        def modulate(layer: int, names: Sequence[str], x: Tensor, ys: Sequence[Tensor]) -> Sequence[Tensor]:
            mine = [name for name in names if name in self.names]
            if not mine:
                return ys
            first = self.names.index(mine[0])  # maps that share an input stand side by side
            d = scaled[..., layer, first : first + len(mine), :].flatten(-2)
            a = [self.a[name][layer] for name in mine]
            inner = F.linear(x, torch.cat(a) if len(a) > 1 else a[0]) * d
            parts = dict(zip(mine, inner.flatten(0, -2).split(self.rank, dim=-1), strict=True))
            return [
                y.addmm_(parts[name].to(y.dtype), self.b[name][layer].to(y.dtype).T) if name in parts else y
                for name, y in zip(names, ys, strict=True)
            ]

        return modulate


class StaticDiagonal(Adapter):
    """One diagonal per step, layer and map, zero at the start: what a controller without input would learn."""

    per_step = True
    second_output = False
    starts_from = "bases"

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
        return Effects(modulate=self.bases.modulated(diagonals))


class Controller(Conditioned):
    """Diagonals from the pooled state and the step."""

    starts_from = "bases"

    def __init__(
        self,
        site: Site,
        rank: int = 32,
        alpha: float = 16.0,
        style: int = 128,
        pooling: str = "prefix",
        chunk: int = CHUNK,
        leak_future: bool = False,
        pool_norm: str = "none",
        dropout: float = 0.0,
        targets: str | Sequence[str] = "linears",
    ) -> None:
        super().__init__("controller", pooling, chunk, leak_future, pool_norm, dropout)
        self.bases = Bases(site, rank, alpha, targets)
        self.shape = (site.layers, len(self.bases.names), rank)
        self.state_proj = self.reader(site, 2 * style)
        self.step_embedding = nn.Parameter(torch.empty(site.rows, style))
        self.style1 = nn.Linear(style if self.state_proj is None else 3 * style, 2 * style)
        self.style2 = nn.Linear(2 * style, style)
        self.heads = nn.Parameter(torch.empty(math.prod(self.shape), style))

    def start(self) -> None:
        nn.init.normal_(self.step_embedding)
        nn.init.zeros_(self.heads)

    @property
    def token_numbers(self) -> int:
        return 0 if self.pooling == "sequence" else self.heads.shape[0]

    def diagonals(self, step: StepIndex, s: Tensor, p: Pass) -> Tensor:
        """Returns the diagonals [B, T, L, targets, r] (T is 1 for pooling "sequence")."""
        pooled = self.pooled(self.state_proj, step, s, p)
        z = torch.cat([F.silu(pooled), self.place(self.step_embedding, step, pooled)], dim=-1)
        z = self.drop(F.silu(self.style1(z)))
        z = self.drop(F.silu(self.style2(z)))
        return F.linear(z, self.heads).unflatten(-1, self.shape)

    def begin(self, step: StepIndex, s: Tensor, p: Pass) -> Effects:
        return Effects(modulate=self.bases.modulated(self.diagonals(step, s, p)))
