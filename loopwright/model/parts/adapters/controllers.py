"""Controllers: adapters that read the state, pooled to one vector per token from the past alone, and the step.

Poolings. `prefix`: the mean over the document up to the token. `chunk`: that mean at the first token of the token's chunk.
`token`: the token itself. `none`: nothing, so that the controller knows the step alone, which is what the others are measured
against. `sequence`: the mean over the whole row, which lets every token see the future; it exists to reproduce the Ouroboros
paper, only where `leak_future` is set, and never in generation. The place says which running sum of the cache is meant: each step
of the core and each reading of the coda has its own.

`BasisController` is the larger one of Ouroboros: pooled state and step mix both factors of every update from trained bases.

    z = MLP([SiLU(W_p pool(s) + b); step embedding]),  c = H z + h,  A = Σ_n c_n A_n,  B = Σ_n c′_n B_n,  y += (alpha/rank) · B A x.

The coefficients may differ per token, and no A or B is formed: A x = Σ c_n (A_n x), and B u = [B_1 … B_N] [c′_1 u; …; c′_N u].
In the public code c and c′ both start at zero, so that the gradient of each is a product with the other: exactly zero, for good.
Here h starts A as an even mixture and B at zero, as LoRA does: no effect, and a gradient. Its bases are products of two
matrices wider than the rank, which span what one matrix does; here they are one. The halting input is left out.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from loopwright.model.parts.adapters.effects import Adapter, Factored, FactorTable, Site, chosen_shapes, scale_of
from loopwright.model.parts.part import LINEAR_INITS, StepIndex, start_linears, take
from loopwright.model.passes import Effects, Pass, Place, flat_outputs
from loopwright.schema import check_number, check_whole, refuse_unknown

Pool = Callable[[Tensor, str, Place, Pass, int], Tensor]


def pool_prefix(x: Tensor, name: str, place: Place, p: Pass, chunk: int) -> Tensor:
    """Returns the mean of x [B, T, W] over each token's document up to it."""
    running, _ = _running(x, name, place, p)
    return (running / p.span.ordinal()[..., None]).to(x.dtype)


def pool_chunk(x: Tensor, name: str, place: Place, p: Pass, chunk: int) -> Tensor:
    """Returns the prefix mean at the first token of each token's chunk of the document."""
    _, history = _running(x, name, place, p)
    ordinal = p.span.ordinal()
    into = (ordinal - 1) % chunk
    boundary = p.span.back(into)
    at = history.gather(1, boundary[..., None].expand(-1, -1, history.shape[-1]))
    return (at / (ordinal - into)[..., None]).to(x.dtype)


def pool_token(x: Tensor, name: str, place: Place, p: Pass, chunk: int) -> Tensor:
    """Returns x itself."""
    return x


def pool_none(x: Tensor, name: str, place: Place, p: Pass, chunk: int) -> Tensor:
    """Returns zeros: what the controller says then is the same for every input."""
    return torch.zeros_like(x)


def pool_sequence(x: Tensor, name: str, place: Place, p: Pass, chunk: int) -> Tensor:
    """Returns the mean over all real tokens of the row, future ones included."""
    if p.cache is not None:
        raise ValueError("controller: pooling 'sequence' reads future tokens, so it cannot be cached; use prefix, chunk or token")
    if p.span.plain:
        return x.mean(1, keepdim=True)
    span = p.batch_span
    assert span.valid is not None and span.first is not None
    real = span.valid[..., None].to(x.dtype)
    return (x * real).sum(1, keepdim=True) / real.sum(1, keepdim=True).clamp(min=1)


def _running(x: Tensor, name: str, place: Place, p: Pass) -> tuple[Tensor, Tensor]:
    """Returns float32 running sums over documents: of the new tokens [B, T, W] and of all tokens [B, N, W]."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    if p.cache is None:
        running = p.span.document_sum(wide, None)
        return running, running
    running = p.span.document_sum(wide, p.cache.carried_sum(name, place, p, wide))
    return running, p.cache.write_sum(name, place, running, p)


POOLINGS: dict[str, Pool] = {
    "prefix": pool_prefix,
    "chunk": pool_chunk,
    "token": pool_token,
    "none": pool_none,
    "sequence": pool_sequence,
}


POOL_NORMS = ("none", "rms")
CHUNK = 64  # tokens of a chunk, where nothing is said


class Conditioned(Adapter):
    """An adapter that reads the pooled state. Abstract. `pooling` is causal unless it is "sequence" (see above).

    `pool_norm` "rms" divides each token's state by its root mean square before it is pooled: in a residual stream a few tokens
    are far larger than the others, and their share in a mean changes with the length of the text. `init` is how its linear maps
    start, but for the heads: "normal", or "linear" as in Ouroboros' code (see part.py).
    """

    per_step = True
    unfoldable = "it reads the input"
    second_output = False
    shares_work = True
    state_proj: nn.Linear | None

    def __init__(self, kind: str, pooling: str, chunk: int, leak_future: bool, pool_norm: str, dropout: float, init: str) -> None:
        super().__init__()
        refuse_unknown(f"{kind} pooling", [pooling], POOLINGS)
        refuse_unknown(f"{kind} pool_norm", [pool_norm], POOL_NORMS)
        refuse_unknown(f"{kind} init", [init], LINEAR_INITS)
        if (pooling == "sequence") != leak_future:
            raise ValueError(
                f"{kind}: pooling {pooling!r} with leak_future={leak_future}; 'sequence' lets every token see the future "
                "and needs leak_future=True, the others must not have it"
            )
        if leak_future:
            warnings.warn(
                f"{kind}: pooling 'sequence' leaks future tokens: losses are not likelihoods and generation is refused",
                stacklevel=3,
            )
        check_whole(f"{kind}: chunk", chunk, 1)
        if chunk != CHUNK and pooling != "chunk":  # files may spell the default out
            raise ValueError(f"{kind}: chunk {chunk}, and pooling is {pooling!r}; allowed: with pooling 'chunk'")
        if pool_norm != "none" and pooling == "none":
            raise ValueError(f"{kind}: pool_norm {pool_norm!r}, and pooling is 'none'; allowed: with one that reads the state")
        check_number(f"{kind}: dropout", dropout, least=0, below=1)
        self.pooling, self.chunk, self.leaks_future = pooling, chunk, leak_future
        self.pool_norm, self.dropout, self.init = pool_norm, dropout, init

    def start(self) -> None:
        start_linears(self, self.init)

    @property
    def cached_numbers(self) -> int:
        running = self.pooling in ("prefix", "chunk") and self.state_proj is not None
        return self.state_proj.out_features if running and self.state_proj is not None else 0

    def reader(self, site: Site, width: int) -> nn.Linear | None:
        """Returns the projection of the state; none for pooling "none", so that no parameter is there which nothing reads."""
        return None if self.pooling == "none" else nn.Linear(site.config.hidden_size, width)

    def pooled(self, proj: nn.Linear | None, step: StepIndex, s: Tensor, p: Pass) -> Tensor:
        """Returns the projected pooled state [B, T, W] (T is 1 for pooling "sequence", W is 0 for "none")."""
        if self.pool_norm == "rms":
            s = F.rms_norm(s, (s.shape[-1],), eps=1e-6)
        # the projection is linear, so pooling may come after it, at its fewer channels
        x = s[..., :0] if proj is None else proj(s)
        return POOLINGS[self.pooling](x, self.key, Place(self.stack, step, 0), p, self.chunk)

    def place(self, table: Tensor, step: StepIndex, like: Tensor) -> Tensor:
        """Returns the row of a step's table [S, W] for every token of `like` [B, T, …]."""
        row = take(table, step)
        return row.expand(*like.shape[:-1], -1) if row.dim() == 1 else row[:, None].expand(-1, like.shape[1], -1)

    def drop(self, x: Tensor) -> Tensor:
        """Returns x with some of its channels forgotten, in training."""
        return F.dropout(x, self.dropout, self.training)


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
