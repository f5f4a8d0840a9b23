"""The paper's four claims about random initialisation (Section 4.2), judged from the sweep's saved numbers.

As in its Figure 6, what counts is the first layer's cosine to its own approximate fixed point and to that of the layer farthest
from it, mean over prompts and seeds. The words are those of `metrics.convergence` with its own threshold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from loopwright.metrics.states import CONVERGENCE, convergence

Results = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Cell:
    """What the models of one norm, with or without injection, of one size settle into, over their seeds.

    `verdict` is that of the mean curves, `seeds` how many models' own curves say the same; `own` and `far` are the mean cosines
    over the second half of the steps, `lowest` the lowest that the mean curve of `own` has there.
    """

    norm: str
    injection: str
    layers: int
    verdict: str
    seeds: int
    models: int
    own: float
    far: float
    lowest: float


@dataclass(frozen=True)
class Claim:
    """A claim of the paper, whether it holds here (None: neither is shown), which cells speak against it, and how many it is
    about."""

    text: str
    holds: bool | None
    against: tuple[Cell, ...]
    cells: int


def cells(results: Results, start: str) -> list[Cell]:
    """Returns the cells of one start, in the order of the results."""
    groups: dict[tuple[str, str, int], list[Mapping[str, Any]]] = {}
    for result in results:
        if result["start"] == start:
            groups.setdefault((result["norm"], result["injection"], result["layers"]), []).append(result)
    return [_cell(*key, found) for key, found in groups.items()]


def _cell(norm: str, injection: str, layers: int, found: Results) -> Cell:
    own, far = (torch.tensor([result["curves"][name] for result in found])[:, :-1] for name in ("fixed_cosine", "far_cosine"))
    half = own.shape[1] // 2
    code = int(convergence(own.mean(0), far.mean(0)))
    return Cell(
        norm, injection, layers, CONVERGENCE[code], int((convergence(own, far) == code).sum()), len(found),
        own[:, half:].mean().item(), far[:, half:].mean().item(), own.mean(0)[half:].min().item(),
    )  # fmt: skip


WORD = {True: "holds", False: "does not hold", None: "not shown"}

# what the paper says, and what the models that it speaks of must settle into
RESTS, MOVES = ("cyclic", "degenerate"), ("none",)
CLAIMS: dict[str, dict[tuple[str, str], tuple[str, ...]]] = {
    "With injection, pre-norm and Huginn's norms reach stable fixed points, distinct for each layer": {
        ("pre", "injection"): ("cyclic",), ("huginn", "injection"): ("cyclic",),
    },
    "With injection, Ouro's norms reach no stable fixed point": {("ouro", "injection"): MOVES},
    "Without injection, pre-norm alone reaches a stable fixed point": {
        ("pre", "none"): RESTS, ("huginn", "none"): MOVES, ("ouro", "none"): MOVES,
    },
    "That fixed point is degenerate: all layers share it": {("pre", "none"): ("degenerate",)},
}  # fmt: skip


def judge(found: Sequence[Cell]) -> list[Claim]:
    """Returns each claim with the cells that speak against it; where none does and a model that it is about was not run, it is not
    shown."""
    claims = []
    for text, wanted in CLAIMS.items():
        about = [cell for cell in found if (cell.norm, cell.injection) in wanted]
        there = {(cell.norm, cell.injection) for cell in about}
        against = tuple(cell for cell in about if cell.verdict not in wanted[cell.norm, cell.injection])
        holds = False if against else True if there == set(wanted) else None
        claims.append(Claim(text, holds, against, len(about)))
    return claims
