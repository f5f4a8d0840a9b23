"""Which layers to keep: candidate layouts scored on a text, before any training.

Two scores. The *turn* is how far the state turns where layers are dropped: the mean angle, in half turns, between the states before
and after a dropped stretch of the intact model (after arXiv 2403.17887), of the stretch where it is largest; one pass gives it for
all candidates. The *loss* is that of the truncated model itself, its core run once or as often as the loop will; it takes a pass
for each, so only those with the smallest turn get one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor, nn

from loopwright.checkpoints.load import empty_model
from loopwright.generation.readings import sees_future
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.config import MOST_LAYERS, LoopedConfig
from loopwright.model.passes import next_token_loss
from loopwright.model.taps import Recorder
from loopwright.retrofitting.layout import Layout, Lists
from loopwright.retrofitting.surgery import source_layers
from loopwright.schema import check_whole

SCORES = ("loss", "turn")
ROWS = 8  # of one pass


@dataclass(frozen=True)
class Candidate:
    """A layout with its scores; the loss, in nats a token, is that of its layers at the depth asked for, where it was measured."""

    layout: Layout
    turn: float
    loss: float | None = None

    @property
    def perplexity(self) -> float | None:
        """The exponential of the loss."""
        return None if self.loss is None else math.exp(self.loss)


def search(
    source: LoopedForCausalLM,
    ids: Tensor,
    layout: Layout,
    *,
    by: str = "loss",
    most: int = 16,
    depth: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> list[Candidate]:
    """Returns layouts of as many layers as `layout` keeps and loops, best first, from rows of token ids [N, T].

    With `by` "loss", the `most` orders of layers with the smallest turn, and that of `layout`, are scored by loss, the core run
    `depth` times; with "turn" none.
    """
    layers = source_layers(source)
    if by not in SCORES:
        raise ValueError(f"search: by is {by!r}; allowed: {', '.join(SCORES)}")
    check_whole("search: most", most, 1)
    check_whole("search: depth", depth, 1, MOST_LAYERS)
    if ids.dim() != 2 or ids.shape[0] < 1 or ids.shape[1] < 2:
        raise ValueError(f"search: token ids of shape {tuple(ids.shape)}; allowed: rows of at least two tokens")
    angles = turns(source, ids)
    every = {*candidates(layout, len(layers)), layout}
    scored = sorted((Candidate(one, turn_of(one, angles)) for one in every), key=lambda c: (c.turn, c.layout.kept, c.layout.core))
    if by == "turn":
        return scored
    if sees_future(source, ids[:ROWS].to(source.device)):
        raise ValueError("search: the source sees future tokens, so that its loss is not a likelihood; allowed: by turn")
    # the same layers may be divided in several ways, and are measured once
    chosen = dict.fromkeys([*list(dict.fromkeys(run_of(c.layout, depth) for c in scored))[:most], run_of(layout, depth)])
    losses = {}
    for done, run in enumerate(chosen):
        losses[run] = loss_of(dense_of(source, run), ids)
        if progress is not None:
            progress(done + 1, len(chosen))
    measured = [replace(c, loss=losses[run]) for c in scored if (run := run_of(c.layout, depth)) in losses]
    return sorted(measured, key=lambda c: (losses[run_of(c.layout, depth)], c.turn, c.layout.kept, c.layout.core))


def run_of(layout: Layout, depth: int = 1) -> tuple[int, ...]:
    """Returns the source layers in the order they run, those of the core `depth` times over."""
    return (*layout.prelude, *layout.core * depth, *layout.coda)


def candidates(layout: Layout, layers: int) -> list[Layout]:
    """Returns every layout with as many layers in prelude and coda together, and in the core, one after another, as this one."""
    looped, around = len(layout.core), len(layout.prelude) + len(layout.coda)
    if around < 2 or not layout.dropped(layers):
        raise ValueError(
            f"search: the layout keeps {around} layers around the core and drops {len(layout.dropped(layers))}; allowed: one "
            "with a prelude and a coda that drops some"
        )
    listed = []
    for prelude in range(1, around):
        coda = around - prelude
        for first in range(prelude, layers - coda - looped + 1):
            made = Lists([*range(first, first + looped)], prelude, coda)(layers)
            listed.append(replace(made, depth=layout.depth))
    return listed


@torch.no_grad()
def turns(source: LoopedForCausalLM, ids: Tensor) -> Tensor:
    """Returns [L + 1, L + 1]: the mean angle, in half turns, between the states before layers a and b of a dense model."""
    total, tokens = torch.zeros((), dtype=torch.float64), 0
    for rows in ids.split(ROWS):
        recorder = Recorder(("embed", "residual"))
        source(rows.to(source.device), tap=recorder, logits_to_keep=1)
        states = torch.stack([value.float() for value in recorder.seen.values()]).flatten(1, 2)
        unit = nn.functional.normalize(states, dim=-1)
        cosine = torch.einsum("and,bnd->nab", unit, unit).clamp(-1, 1)
        total = total + (cosine.arccos() / math.pi).double().sum(0).cpu()
        tokens += rows.numel()
    return (total / tokens).float()


def turn_of(layout: Layout, angles: Tensor) -> float:
    """Returns how far the state turns over what a layout drops: over the stretch where it turns most."""
    edges = [-1, *layout.kept, len(angles) - 1]
    stretches = [(a + 1, b) for a, b in pairwise(edges) if b > a + 1]
    return max((angles[a, b].item() for a, b in stretches), default=0.0)


def dense_of(source: LoopedForCausalLM, run: Sequence[int]) -> LoopedForCausalLM:
    """Returns these layers of a source, one after another, as a dense model on the source's own tensors."""
    layers = source_layers(source)
    model = empty_model(LoopedConfig(**{**source.config.to_dict(), "prelude_layers": len(run), "coda_layers": 0}))
    for name, module in source.named_children():
        if name not in ("prelude", "coda"):
            setattr(model, name, module)
    model.prelude = nn.ModuleList(layers[layer] for layer in run)
    return model.eval()


@torch.no_grad()
def loss_of(model: LoopedForCausalLM, ids: Tensor) -> float:
    """Returns the mean next-token loss over rows of token ids, every token alike."""
    total = 0.0
    for rows in ids.split(ROWS):
        rows = rows.to(model.device)
        total += next_token_loss(model(rows).logits, rows).item() * len(rows)
    return total / len(ids)
