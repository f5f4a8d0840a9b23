"""What README and docs/inside.md say of looped models at random initialisation."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from experiments.inside.random_init.claims import CLAIMS, WORD, Cell, cells, judge
from experiments.inside.random_init.plan import MAIN_START
from experiments.readme.inside.orbits import verdicts
from experiments.readme.rows import WORDS, line, rows_of, when

KINDS = {"pre": "pre-norm", "huginn": "Huginn's norms", "ouro": "Ouro's norms"}
SETTLES = {"cyclic": "at rest, each layer elsewhere", "degenerate": "all layers in one direction", "none": "moves"}
SIZES = (4, 12, 16)
OTHER = "huginn"  # the start at which no claim holds


@cache
def found(start: str = MAIN_START) -> list[Cell]:
    """Returns what the models of one start settle into."""
    return cells(rows_of("inside/random-init.jsonl"), start)


def holding(layers: int) -> list[str]:
    """Returns, claim by claim, whether it holds at one size from the main start."""
    return [WORD[claim.holds] for claim in judge([cell for cell in found() if cell.layers == layers])]


def headline() -> Iterator[str]:
    """Yields what the README says."""
    every = all(word == WORD[True] for layers in SIZES for word in holding(layers))
    told = f"**In part.** At random initialisation all {WORDS[len(CLAIMS)]} claims hold from PyTorch's default start"
    yield when(every and verdicts()[1] > 0, told)
    none = all(claim.holds is False for claim in judge(found(OTHER)))
    (seeds,) = {cell.models for cell in found(OTHER)}
    yield when(none and seeds == 1, f"from another start all {WORDS[len(CLAIMS)]} fail (one seed)")


def claims() -> Iterator[str]:
    """Yields the page's tables."""
    for text, *words in zip(CLAIMS, *map(holding, SIZES), strict=True):
        yield line(text[0].lower() + text[1:], *words)
    same = all(cell.seeds == cell.models for cell in found())
    yield when(same, "each of the three seeds alone gives the same verdict everywhere")
    for injection in ("injection", "none"):
        for norm, name in KINDS.items():
            own = [cell for cell in found() if (cell.norm, cell.injection) == (norm, injection)]
            (verdict,) = {cell.verdict for cell in own}
            values = [f"{cell.own:.3f} / {cell.far:.3f}" for cell in sorted(own, key=lambda cell: cell.layers)]
            yield line(f"{name}, {injection}", *values, SETTLES[verdict])
