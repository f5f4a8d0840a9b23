"""What the controllers share: they pool the state, know the step, and may be told to forget at random while they train."""

from __future__ import annotations

import warnings

import torch.nn.functional as F
from torch import Tensor, nn

from loopwright.model.forward.context import Pass, Place
from loopwright.model.parts.adapter.effects import Adapter
from loopwright.model.parts.adapter.pooling import POOLINGS
from loopwright.model.parts.adapter.target import Site
from loopwright.model.parts.part import LINEAR_INITS, StepIndex, start_linears, take
from loopwright.settings import refuse_unknown
from loopwright.values import check_number, check_whole

POOL_NORMS = ("none", "rms")
CHUNK = 64  # tokens of a chunk, where nothing is said


class Conditioned(Adapter):
    """An adapter that reads the pooled state. Abstract. `pooling` is causal unless it is "sequence" (see pooling.py).

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
