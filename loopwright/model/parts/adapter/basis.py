"""Ouroboros' larger controller: both factors of every update are mixed from trained bases, by the pooled state and the step.

    z = MLP([SiLU(W_p pool(s) + b); step embedding]),  c = H z + h,  A = Σ_n c_n A_n,  B = Σ_n c′_n B_n,  y += (alpha/rank) · B A x.

The coefficients may differ per token, and no A or B is formed: A x = Σ c_n (A_n x), and B u = [B_1 … B_N] [c′_1 u; …; c′_N u].
In the public code c and c′ both start at zero, so that the gradient of each is a product with the other: exactly zero, for good.
Here h starts A as an even mixture and B at zero, as LoRA does: no effect, and a gradient. Its bases are products of two
matrices wider than the rank, which span what one matrix does; here they are one. The halting input is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from loopwright.model.forward.context import Pass
from loopwright.model.parts.adapter.conditioned import CHUNK, Conditioned
from loopwright.model.parts.adapter.effects import Effects, flat_outputs
from loopwright.model.parts.adapter.target import Factored, FactorTable, Site, chosen_shapes, scale_of
from loopwright.model.parts.part import StepIndex
from loopwright.values import check_whole


class BasisController(Conditioned, Factored):
    """Low-rank updates mixed from `count` trained bases per map; the sizes are those of the public code."""

    def __init__(
        self,
        site: Site,
        rank: int = 16,
        alpha: float = 16.0,
        count: int = 8,
        state: int = 512,
        step: int = 256,
        width: int = 1024,
        style: int = 64,
        pooling: str = "prefix",
        chunk: int = CHUNK,
        leak_future: bool = False,
        pool_norm: str = "none",
        dropout: float = 0.0,
        init: str = "normal",
        targets: str | Sequence[str] = "linears",
    ) -> None:
        super().__init__("basis-controller", pooling, chunk, leak_future, pool_norm, dropout, init)
        check_whole("basis-controller: count", count, 1)
        shapes = chosen_shapes(site, targets, branches=False)
        self.names, self.rank, self.count = list(shapes), rank, count
        self.a = FactorTable(shapes, (site.layers,), rank * count, "a")
        self.b = FactorTable(shapes, (site.layers,), rank * count, "b")
        self.scale = scale_of(alpha, rank)
        self.state_proj = self.reader(site, state)
        self.step_embedding = nn.Parameter(torch.empty(site.rows, step))
        self.style1 = nn.Linear(step if self.state_proj is None else state + step, width)
        self.style2 = nn.Linear(width, width)
        self.style3 = nn.Linear(width, style)
        self.offset = nn.Parameter(torch.empty(site.layers, len(shapes), 2, count))
        self.heads = nn.Parameter(torch.empty(self.offset.numel(), style))

    def start(self) -> None:
        super().start()
        nn.init.normal_(self.step_embedding)
        nn.init.zeros_(self.heads)
        nn.init.zeros_(self.offset)
        nn.init.constant_(self.offset[:, :, 0], self.count**-0.5)

    @property
    def token_numbers(self) -> int:
        return 0 if self.pooling == "sequence" else self.heads.shape[0]

    def coefficients(self, step: StepIndex, s: Tensor, p: Pass) -> Tensor:
        """Returns the coefficients [B, T, L, targets, 2, count], of A and of B (T is 1 for pooling "sequence")."""
        pooled = self.pooled(self.state_proj, step, s, p)
        z = torch.cat([F.silu(pooled), self.place(self.step_embedding, step, pooled)], dim=-1)
        z = self.drop(F.silu(self.style1(z)))
        z = self.style3(self.drop(F.silu(self.style2(z))))
        return F.linear(z, self.heads, self.offset.flatten()).unflatten(-1, self.offset.shape)

    def begin(self, step: StepIndex, s: Tensor, p: Pass) -> Effects:
        c = self.coefficients(step, s, p)

        def modulate(layer: int, linears: Mapping[str, nn.Module], x: Tensor, ys: Sequence[Tensor] | None) -> Sequence[Tensor]:
            ys = flat_outputs(linears, x) if ys is None else ys
            return [self._added(layer, name, x, y, c) if name in self.names else y for name, y in zip(linears, ys, strict=True)]

        return Effects(modulate=modulate)

    def _added(self, layer: int, name: str, x: Tensor, y: Tensor, c: Tensor) -> Tensor:
        mix = c[..., layer, self.names.index(name), :, :, None]
        parts = F.linear(x, self.a[name][layer]).unflatten(-1, (self.count, self.rank))
        inner = self.scale * (mix[..., 0, :, :] * parts).sum(-2, keepdim=True)
        spread = (mix[..., 1, :, :] * inner).flatten(-2).flatten(0, -2)
        return y.addmm_(spread.to(y.dtype), self.b[name][layer].to(y.dtype).T)
