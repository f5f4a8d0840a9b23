"""What exits are measured on, and by which rules: shared by the command and by `lw.evaluate`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from loopwright.check.verdict import Verdict
from loopwright.data.batch import Batch, documents_of
from loopwright.data.batch import Source as Rows
from loopwright.evaluate.early_exit import ExitReport, early_exits
from loopwright.evaluate.exit_times import BATCHES, clock_of, exit_times, prompts_of
from loopwright.evaluate.heldout import passages_of_a_pass, unit_of, units_of
from loopwright.evaluate.passages import Passages
from loopwright.evaluate.saved import Reports
from loopwright.evaluate.sweep import Progress
from loopwright.generate.exit_rules import build_exit, parse_exit, usual_exits, write_exit
from loopwright.model.looped import LoopedForCausalLM
from loopwright.plot.drawing import Drawing
from loopwright.plot.inference import exit_trade_off

USUAL = ("gate", "act", "change", "divergence", "entropy", "stable")  # `--exit all`: those of them that the model can answer


@dataclass(frozen=True)
class Measured:
    """What exits are measured on: batches of numbered rows, what intervals are over (of each row, or of each of its
    tokens), and how many rows were chosen by hand."""

    batches: Sequence[Sequence[int]]
    batch_of: Any  # numbers of rows → Batch
    units: Tensor
    unit: str
    exact: bool
    few: int | None
    length: int
    fingerprint: str = ""

    def pairs(self) -> Iterator[tuple[Sequence[int], Batch]]:
        """Yields the numbers of a batch's rows, and the batch."""
        return ((places, self.batch_of(places)) for places in self.batches)


def exit_words(exits: Sequence[str]) -> list[Mapping[str, Any]]:
    """Returns the rules that the words name, checked before a model is loaded; `all` stays a word."""
    return [{"kind": "all"} if word == "all" else parse_exit(word) for word in exits]


def exit_specs(words: Sequence[Mapping[str, Any]], model: LoopedForCausalLM) -> list[dict[str, Any]]:
    """Returns every rule with its limit, each once; raises where the model lacks what a named rule reads."""
    specs: dict[str, dict[str, Any]] = {}
    for word in words:
        for kind in [{"kind": name} for name in USUAL] if word["kind"] == "all" else [word]:
            try:
                build_exit(kind, model)
            except ValueError:
                if word["kind"] != "all" or not model.config.is_looped:
                    raise
                continue
            specs |= {write_exit(spec): spec for spec in usual_exits(kind)}
    return list(specs.values())


def of_text(model: LoopedForCausalLM, passages: Passages, rows: int | None, batch: int | None) -> Measured:
    """Returns passages of running text, all or so many of them, in batches of equal length."""
    few = None if rows is None or rows >= len(passages) else rows
    chosen = passages if rows is None else passages.drawn(rows)
    if chosen.vocab_size > model.config.vocab_size:
        raise ValueError(
            f"{chosen.name}: its ids go up to {chosen.vocab_size - 1}, the model has {model.config.vocab_size} tokens; "
            "allowed: the model's own tokenizer"
        )
    documents = [row.document for row in chosen.rows]
    order = chosen.by_length()
    size = passages_of_a_pass(model, chosen.context) if batch is None else batch
    groups = [order[first : first + size] for first in range(0, len(order), size)]
    units, unit = units_of(documents), unit_of(documents)
    return Measured(groups, chosen.batch, units, unit, False, few, chosen.context, chosen.fingerprint)


def of_rows(rows: Rows, batch: int, *, exact: bool, few: int | None = None) -> Measured:
    """Returns rows with answers, in batches."""
    groups = [range(first, min(first + batch, len(rows))) for first in range(0, len(rows), batch)]
    units, unit = documents_of(rows, range(len(rows))), "document"
    if units is None or int(units.min()) == int(units.max()):
        units, unit = torch.arange(len(rows)), "row"
    return Measured(groups, rows.batch, units, unit, exact, few, rows.batch([0]).input_ids.shape[1])


@dataclass(frozen=True)
class ExitEvaluation(Reports[ExitReport]):
    """What exit rules cost and give, by split or text, as `loopwright evaluate --exit` measures it."""

    def drawing(self) -> Drawing:
        """Returns what the exit rules cost and give, a panel per split or text."""
        reports = list(self.reports.items())
        return exit_trade_off([cost for name, report in reports for cost in report.trade_offs(name)], **reports[0][1].axis)

    def to_dict(self) -> dict[str, list[dict[str, Any]]]:
        """Returns the numbers as plain data: for each split or text a row per fixed depth, rule and price of the oracle."""
        return {n: [vars(point).copy() for point in (*r.fixed, *r.points, *r.oracle)] for n, r in self.reports.items()}


def exits_of(
    model: LoopedForCausalLM,
    part: Measured,
    specs: Sequence[Mapping[str, Any]],
    *,
    name: str,
    depth: int,
    timed: bool = False,
    causality: Verdict | None = None,
    source: str = "",
    progress: Progress | None = None,
) -> ExitReport:
    """Returns what rules cost and give on a part; with the times of decoding by the engine where they are asked for."""
    report = early_exits(
        model, part.pairs(), specs,
        name=name, depth=depth, units=part.units, unit=part.unit, exact=part.exact, causality=causality, total=len(part.batches),
        fingerprint=part.fingerprint, source=source, progress=progress,
    )  # fmt: skip
    if not timed:
        return report
    prompts, new = prompts_of(part.batch_of(range(min(max(BATCHES), len(part.units)))), answers=part.exact)
    times = exit_times(model, prompts, new, specs, depth, tell=progress)
    return replace(report, times=times, clock=clock_of(model))
