"""Evaluation by depth: loss, exact match and state change at every depth from one pass over a test split."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor

from loopwright.checking.probes import Verdict
from loopwright.data.batch import Batch, BatchSource, owners_of
from loopwright.evaluation.likelihood import need_likelihood
from loopwright.evaluation.report import ByDepth, Column, Progress, column, columns_of, ends, number, number_table, over, percent
from loopwright.generation.readings import check_depths, decode_exact, readings
from loopwright.metrics.intervals import by_unit, mean_interval, wilson_interval
from loopwright.metrics.score import DepthRates, depth_rates, settled_depths
from loopwright.model.backbone import StepRunner
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.config import MOST_DEPTH
from loopwright.untrusted import shown

if TYPE_CHECKING:
    from rich.table import Table

PER_OCTAVE = 4  # depths of a "log" range between d and 2d
SHOWN_DEPTHS = 16


@dataclass(frozen=True)
class DecodeCheck:
    """Greedy decoding, token by token, at one depth: its exact match, and how many rows the one-pass number calls otherwise."""

    depth: int
    exact: float
    disagreements: int


@dataclass(frozen=True)
class SweepReport(ByDepth):
    """One test split at every depth, a column per measure. Intervals are at 95 %: Wilson's over rows for exact match; that of the
    loss over so many `units` of what `unit` says, rows, or documents where rows are windows of them. `change` is the relative size
    of the last step at that depth, over rows. `rates` look at all depths, then from the model's own depth on; `settled` counts rows
    by the first depth from which they stay right (0: wrong at the last). `source` is where the weights stood ("" where nobody
    said), `dtype` what they were in."""

    what: ClassVar[str] = "a sweep report"

    split: str
    rows: int
    targets: int
    own_depth: int
    depth: tuple[int, ...]
    loss: Column
    loss_low: Column
    loss_high: Column
    perplexity: Column
    exact: Column
    exact_low: Column
    exact_high: Column
    change_mean: Column
    change_largest: Column
    rates: tuple[DepthRates, ...] = ()
    settled: tuple[tuple[int, int], ...] = ()
    decoded: tuple[DecodeCheck, ...] = ()
    source: str = ""
    dtype: str = ""
    unit: str = "row"
    units: int = 0  # 0: of a report that was saved before they were counted

    def __repr__(self) -> str:
        """What was measured: the columns would fill a notebook, and `table` shows them."""
        return f"SweepReport({self.split!r}: {self.rows:,} rows at {len(self.depth)} depths, {self.depth[0]} to {self.depth[-1]})"

    @property
    def disagreements(self) -> int:
        """The number of rows that decoding and the one pass call differently: 0 for a causal model."""
        return sum(check.disagreements for check in self.decoded)

    @property
    def measure(self) -> str:
        """Exact match where answers are right or wrong, else the loss."""
        return "loss" if self.exact[0] is None else "exact"

    @property
    def name(self) -> str:
        """The split."""
        return self.split

    def accuracy(self) -> dict[int, float]:
        """Returns exact match by depth."""
        return {depth: math.nan if value is None else value for depth, value in zip(self.depth, self.exact, strict=True)}

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Self:
        """Returns the report that plain data describes."""
        rates = tuple(DepthRates(**rate) for rate in data["rates"])
        decoded = tuple(DecodeCheck(**check) for check in data["decoded"])
        return cls(**columns_of(cls, data) | {"rates": rates, "decoded": decoded})

    def table(self, width: int | None = None, *, most: int = SHOWN_DEPTHS) -> Table:
        """Returns the main numbers at up to `most` depths as a rich table for a window of this width; the file has them all."""
        named = [
            ("loss", "loss"),
            ("perplexity", "perplexity"),
            ("exact match", "exact"),
            ("change, mean / largest", "change_mean"),
        ]
        always = ("loss", "perplexity")
        columns = [(heading, name) for heading, name in named if name in always or set(getattr(self, name)) != {None}]
        places = shown_places(self.depth, most, keep=self.own_depth)
        rows = [[str(self.depth[place]), *(_CELLS[name](self, place) for _, name in columns)] for place in places]
        bold = [self.depth[place] == self.own_depth for place in places]
        table = number_table(["depth", *(heading for heading, _ in columns)], rows, width, bold=bold)
        table.title = f"{self.split}: {self.rows:,} rows, {self.targets:,} targets; {over(self.units or self.rows, self.unit)}"
        some = len(places) < len(self.depth)
        notes = [f"{len(places)} of the {len(self.depth)} depths are shown; the file has all"] if some else []
        table.caption = "\n".join([*notes, *self.remarks()])
        table.caption_style = "bold red" if self.disagreements else "none"
        return table

    def remarks(self) -> list[str]:
        """Returns what the columns do not say, a line each: the rates, and how decoding compares."""
        lines = rate_lines(self.rates)
        for check in self.decoded:
            word = f"{check.disagreements} ROWS DIFFER from" if check.disagreements else "the same rows as"
            lines.append(f"greedy decoding at depth {check.depth}: {percent(check.exact, '.4g')} exact, {word} the one pass")
        return lines


@contextmanager
def evaluating(model: LoopedForCausalLM) -> Iterator[None]:
    """Puts a model into eval mode while the block runs; its mode comes back as it was."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


def sweep(
    model: LoopedForCausalLM,
    source: BatchSource,
    *,
    depths: Iterable[int] | None = None,
    batch_size: int,
    exact: bool,
    eos_id: int | None = None,
    pad_id: int | None = None,
    decode_depths: Sequence[int] = (),
    causality: Verdict | None = None,
    split: str = "test",
    source_name: str = "",
    step: StepRunner | None = None,
    progress: Progress | None = None,
) -> SweepReport:
    """Returns the report of a split at every depth, from one pass over its rows; the model's mode comes back as it was.

    Args:
        exact: whether an answer is right or wrong as a whole; for running text it is not.
        decode_depths: where to decode greedily as well, token by token, which must agree with the one pass.
        causality: what `need_likelihood` found, where it has been asked already; else it is asked here.
        source_name: where the model's weights stand, for the report to say.
    """
    wanted = check_depths(model.config, depths)
    _check(source, wanted, batch_size, exact, decode_depths)
    need_likelihood(model, known=causality)
    decoded: dict[int, list[Tensor]] = {depth: [] for depth in decode_depths}

    def decode(batch: Batch) -> None:
        for depth, rows in decoded.items():
            rows.append(decode_exact(model, batch, depth, eos_id=eos_id, pad_id=pad_id).cpu())

    table, owned = read_rows(
        model, source, wanted, batch_size, change=model.config.is_looped, step=step, also=decode, progress=progress
    )
    usual = model.config.check_depth(None)
    report = _report(split, usual, wanted, table, {depth: torch.cat(rows) for depth, rows in decoded.items()}, exact, owned)
    return replace(report, source=source_name, dtype=str(model.dtype).removeprefix("torch."))


def read_rows(
    model: LoopedForCausalLM,
    source: BatchSource,
    depths: Sequence[int],
    batch_size: int,
    *,
    change: bool = False,
    step: StepRunner | None = None,
    also: Callable[[Batch], None] | None = None,
    progress: Progress | None = None,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Returns what a model gives for each row [depths, rows], and for each document of each batch where rows are windows of
    documents; nothing of none. `also` is called with each batch."""
    parts: list[dict[str, Tensor]] = []
    owned: list[dict[str, Tensor]] = []
    starts = range(0, len(source), batch_size)
    with evaluating(model):
        for done, start in enumerate(starts, start=1):
            places = range(start, min(start + batch_size, len(source)))
            batch = source.batch(places)
            held, batch = owners_of(source, places, batch), batch.to(model.device)
            whose = None if held is None else held.places
            read = list(readings(model, batch, depths, change=change, step=step, owners=whose))
            if held is not None:
                losses = torch.stack([each.of_documents for each in read if each.of_documents is not None])
                owned.append({"documents": held.documents, "targets": held.targets, "loss": losses})
            # small tensors, one per depth and row: brought to the CPU once per batch
            names = ["loss", "exact"] + ["change"] * change
            parts.append({name: torch.stack([getattr(each, name) for each in read]).cpu() for name in names})
            parts[-1]["targets"] = read[0].targets.cpu()
            if also is not None:
                also(batch)
            if progress is not None:
                progress(done, len(starts))
    return _joined(parts), _joined(owned)


def _joined(parts: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Returns the columns of batches, one after the other; nothing of none."""
    return {name: torch.cat([part[name] for part in parts], dim=-1) for name in parts[0]} if parts else {}


def drawn_of(rows: Mapping[str, Tensor], owned: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, str]:
    """Returns loss […, units] and targets [units] of what is drawn for an interval, and what that is: documents where batches told
    whose tokens are whose (`owned`), if there are two or more, else rows."""
    if owned and len(owned["documents"].unique()) > 1:
        loss, targets = (by_unit(owned[name], owned["documents"]) for name in ("loss", "targets"))
        return loss, targets, "document"
    return rows["loss"], rows["targets"], "row"


def grid(reports: Mapping[str, SweepReport]) -> dict[str, list]:
    """Returns exact match of several splits at each depth as plain numbers: "rows" (the splits' names), "columns" (the depths)
    and "values", a list per row."""
    depths = {report.depth for report in reports.values()}
    if len(depths) != 1:
        raise ValueError(f"grid: the {len(reports)} splits have {len(depths)} different sets of depths; allowed: one for all")
    return {"rows": list(reports), "columns": list(depths.pop()), "values": [list(r.exact) for r in reports.values()]}


def _check(source: BatchSource, depths: list[int], batch_size: int, exact: bool, decode_depths: Sequence[int]) -> None:
    if not len(source) or batch_size < 1:
        raise ValueError(f"sweep: {len(source)} rows in batches of {batch_size}; allowed: at least one of each")
    if decode_depths and not exact:
        raise ValueError(
            f"sweep: decode_depths must be empty for running text, which has no exact match (got {list(decode_depths)})"
        )
    absent = sorted(set(decode_depths) - set(depths))
    if absent:
        raise ValueError(f"sweep: decode_depths {absent} are not among the depths; allowed: {depths[0]} to {depths[-1]} as swept")


def _report(
    split: str, own: int, depths: list[int], table: dict[str, Tensor], decoded: dict[int, Tensor], exact: bool,
    owned: Mapping[str, Tensor],
) -> SweepReport:  # fmt: skip
    targets = table["targets"]
    total, rows, nothing = int(targets.sum()), targets.numel(), (None,) * len(depths)
    if not total or (exact and not bool(targets.all())):
        raise ValueError(f"{split}: {int((targets == 0).sum())} of {rows} rows have no target; exact match needs one in every row")
    loss = table["loss"].sum(1) / total
    losses, drawn, unit = drawn_of(table, owned)
    low, high = mean_interval(losses, drawn)
    columns: dict[str, Column] = {
        "loss": column(loss), "loss_low": column(low), "loss_high": column(high), "perplexity": column(loss.exp()),
        **dict.fromkeys(("exact", "exact_low", "exact_high", "change_mean", "change_largest"), nothing),
    }  # fmt: skip
    if "change" in table:
        # a row that is not finite makes the mean and the largest not finite, and so None
        columns |= {"change_mean": column(table["change"].mean(1)), "change_largest": column(table["change"].amax(1))}
    extra: dict[str, Any] = {}
    if exact:
        right = table["exact"]
        counts = right.sum(1).tolist()
        ends = torch.tensor([wilson_interval(count, rows) for count in counts], dtype=torch.float64)
        columns |= {"exact": column(right.double().mean(1)), "exact_low": column(ends[:, 0]), "exact_high": column(ends[:, 1])}
        since = [None, own] if depths[0] < own < depths[-1] else [None]
        places, counted = settled_depths(right, depths).unique(return_counts=True)
        checks = [_compare(depth, found, right[depths.index(depth)]) for depth, found in decoded.items()]
        extra = {
            "rates": tuple(depth_rates(right, depths, since=depth) for depth in since),
            "settled": tuple(zip(places.tolist(), counted.tolist(), strict=True)),
            "decoded": tuple(checks),
        }
    extra |= {"unit": unit, "units": drawn.numel()}
    return SweepReport(split, rows, total, own, tuple(depths), **{**columns, **extra})


def _compare(depth: int, decoded: Tensor, one_pass: Tensor) -> DecodeCheck:
    differ = int((decoded != one_pass).sum())
    if differ:
        warnings.warn(
            f"depth {depth}: greedy decoding and the one pass disagree on {differ} of {decoded.numel()} rows; "
            "for a causal model they are the same",
            stacklevel=2,
        )
    return DecodeCheck(depth, decoded.double().mean().item(), differ)


def rate_lines(rates: Iterable[DepthRates]) -> list[str]:
    """Returns what becomes of answers as depth grows, a line for each set of rates."""
    return [
        f"depth {r.first} to {r.last}: "
        f"right, then wrong {percent(r.overthinking, '.4g')} (at the end {percent(r.overthinking_at_end, '.4g')}); "
        f"wrong, then right {percent(r.self_correction, '.4g')} (at the end {percent(r.self_correction_at_end, '.4g')})"
        for r in rates
    ]


def _exact_cell(report: SweepReport, i: int) -> str:
    low, high = report.exact_low[i], report.exact_high[i]
    assert report.exact[i] is not None and low is not None and high is not None
    return f"{100 * report.exact[i]:.2f} % ({100 * low:.2f}–{100 * high:.2f})"


_CELLS: dict[str, Callable[[SweepReport, int], str]] = {
    "loss": lambda r, i: number(r.loss[i]) + ends(r.loss_low[i], r.loss_high[i]),
    "perplexity": lambda r, i: number(r.perplexity[i]),
    "exact": _exact_cell,
    "change_mean": lambda r, i: f"{number(r.change_mean[i], '.2g')} / {number(r.change_largest[i], '.2g')}",
}


# depths in words


def parse_depths(text: str, name: str = "depths") -> list[int]:
    """Returns the depths that words such as "1:64", "1,2,4", "1:64:4" or "1:1000:log" name, ascending, each once.

    Both ends belong to a range; ":4" takes every fourth from the start, ":log" few per doubling, the end included.
    """
    depths: set[int] = set()
    for word in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?::(\d+)(?::(\d+|log))?)?\s*", word)
        first, last, stride = (
            (match.group(1), match.group(2) or match.group(1), match.group(3) or "1") if match else ("0", "0", "1")
        )
        if len(first) > 9 or len(last) > 9 or len(stride) > 9 or int(last) > MOST_DEPTH:
            raise ValueError(f"{name}: {shown(word)} in {shown(text)}; allowed: {name} of at most {MOST_DEPTH:,}")
        if int(first) < 1 or int(last) < int(first) or stride == "0":
            raise ValueError(
                f"{name} must be numbers >= 1 or ranges first:last, first:last:stride or first:last:log, with first <= last, "
                f"joined by commas (got {shown(text)})"
            )
        depths.update(log_range(int(first), int(last)) if stride == "log" else range(int(first), int(last) + 1, int(stride)))
    return sorted(depths)


def log_range(first: int, last: int) -> list[int]:
    """Returns depths from first to last, both included, evenly spread over doublings; every one where they lie close."""
    count = math.ceil(PER_OCTAVE * math.log2(last / first))
    return sorted({min(last, round(first * 2 ** (i / PER_OCTAVE))) for i in range(count + 1)} | {last})


def shown_places(depths: Sequence[int], most: int, *, keep: int) -> list[int]:
    """Returns the places of at most about `most` depths that tell the story: the ends, `keep`, and even doublings between."""
    if len(depths) <= most:
        return list(range(len(depths)))
    ideal = [depths[0] * (depths[-1] / depths[0]) ** (i / (most - 2)) for i in range(most - 1)]
    near = {min(range(len(depths)), key=lambda place: abs(depths[place] - value)) for value in ideal}
    return sorted(near | {place for place, depth in enumerate(depths) if depth == keep})
