"""How far what a model answers depends on the noise that its state starts from: the same rows from several starts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from loopwright.evaluation.by_depth import SHOWN_DEPTHS, SweepReport, shown_places
from loopwright.evaluation.report import ByDepth, Column, column, number, number_table, percent
from loopwright.evaluation.text import HeldOut

if TYPE_CHECKING:
    from rich.table import Table

MEASURES = ("loss", "exact")


@dataclass(frozen=True)
class StartReport(ByDepth):
    """One split or text from several starts: of loss and exact match the mean over starts, the least and the largest at each depth.

    `losses` and `exacts` hold a column per seed.
    """

    what: ClassVar[str] = "a report of several starts"

    split: str
    seeds: tuple[int, ...]
    depth: tuple[int, ...]
    loss: Column
    loss_low: Column
    loss_high: Column
    exact: Column
    exact_low: Column
    exact_high: Column
    losses: tuple[Column, ...]
    exacts: tuple[Column, ...]
    source: str = ""
    dtype: str = ""

    def __repr__(self) -> str:
        return f"StartReport({self.split!r}: {len(self.seeds)} starts at {len(self.depth)} depths)"

    @property
    def measure(self) -> str:
        """Exact match where answers are right or wrong, else the loss."""
        return "loss" if self.exact[0] is None else "exact"

    @property
    def name(self) -> str:
        """The split or text."""
        return self.split

    def table(self, width: int | None = None, *, most: int = SHOWN_DEPTHS) -> Table:
        """Returns mean and spread at up to `most` depths as a rich table."""
        shown = [name for name in MEASURES if getattr(self, name)[0] is not None or name == "loss"]
        places = shown_places(self.depth, most, keep=self.depth[0])
        heads = ["depth", *(f"{'exact match' if name == 'exact' else name}, mean (least to largest)" for name in shown)]
        rows = [[str(self.depth[place]), *(self._cell(name, place) for name in shown)] for place in places]
        table = number_table(heads, rows, width)
        table.title = f"{self.split}: the state started from seeds {self.seeds[0]} to {self.seeds[-1]}"
        return table

    def _cell(self, name: str, place: int) -> str:
        values = [getattr(self, f"{name}{end}")[place] for end in ("", "_low", "_high")]
        mean, low, high = (percent(x) if name == "exact" and x is not None else number(x) for x in values)
        return f"{mean} ({low} to {high})"


def gathered(reports: Sequence[SweepReport | HeldOut], seeds: Sequence[int], source: str) -> StartReport:
    """Returns the reports of one split or text, one per start, as one."""
    first = reports[0]
    columns = {name: [getattr(report, name, (None,) * len(first.depth)) for report in reports] for name in MEASURES}
    measured: dict[str, Any] = {}
    for name, found in columns.items():
        values = torch.tensor([[float("nan") if x is None else x for x in each] for each in found], dtype=torch.float64)
        ends = {"": values.mean(0), "_low": values.amin(0), "_high": values.amax(0)}
        measured |= {f"{name}{end}": column(value) for end, value in ends.items()}
    return StartReport(
        first.name, tuple(seeds), first.depth, **measured,
        losses=tuple(columns["loss"]), exacts=tuple(columns["exact"]), source=source, dtype=first.dtype,
    )  # fmt: skip
