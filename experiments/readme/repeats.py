"""What docs/when-to-loop.md says about text that runs out."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from experiments.pages import Result, results
from experiments.readme.rows import RESULTS, line
from experiments.repeats.plan import TEXTS, rates
from experiments.repeats.tables import MAIN, chosen
from experiments.seeds import Pooled, pooled


@cache
def kept() -> dict[tuple[str, int], list[Result]]:
    """Returns the runs of every arm at its own rate."""
    return chosen(results([str(RESULTS / "repeats/runs.jsonl")], rates()))


def claims() -> Iterator[str]:
    """Yields the table, and the differences told below it."""
    for label in MAIN:
        if runs := kept().get((label, 4)):
            losses = [" / ".join(f"{run['loss']['test']:.3f}" for run in kept()[label, times]) for times in TEXTS]
            trained = " / ".join(f"{run['losses'][-1]:.2f}" for run in kept()[label, 16])
            yield line(label, f"{runs[0]['parameters'] / 1e6:.2f} M", f"{runs[0]['flops'] / 1e6:.1f} M", *losses, trained)
    for rival, times in (("plain, equal FLOPs", 16), ("plain, equal parameters", 4)):
        low, high = beside(rival, times).over_seeds
        yield f"by {-beside(rival, times).difference:.3f} ({-high:.3f} to {-low:.3f})"


def beside(rival: str, times: int) -> Pooled:
    """Returns ASURA against a plain arm on the same text."""
    found = pooled(kept()["ASURA", times], kept()[rival, times], "test")
    assert found is not None
    return found
