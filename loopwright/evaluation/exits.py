"""Early exit without running it: what each exit rule would cost and give on stored text, from one pass over it.

A token that leaves early under `exit_keys="backfill"` changes nothing for the tokens after it, and a rule sees the token's own
states and read-outs alone. So one pass at full depth, read out after every step, holds the exit depth of every token under every
rule and limit. Beside the rules stand the fixed depths, a random depth (the same number of tokens leaves after each step, but
others: what a rule knows about tokens is its lead over this) and the oracle, which picks each token's depth by its true loss.
How long decoding takes under a rule is measured apart, by the engine (throughput.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor

from loopwright.checking.probes import Verdict
from loopwright.data.batch import Batch, BatchSource, documents_of
from loopwright.evaluation.by_depth import evaluating
from loopwright.evaluation.likelihood import need_likelihood
from loopwright.evaluation.report import Column, Progress, Reports, Saved, column, columns_of, number, number_table, over, percent
from loopwright.evaluation.text import Passages, passages_of_a_pass, unit_of, units_of
from loopwright.evaluation.throughput import BATCHES, ExitTime, clock_of, exit_times, prompts_of
from loopwright.generation.exit_rules import (
    ExitRule,
    Memory,
    build_exit,
    exit_family,
    mean_state,
    parse_exit,
    usual_exits,
    write_exit,
)
from loopwright.metrics.intervals import mean_interval
from loopwright.metrics.score import IGNORED, chosen, wide
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.passes import Answers
from loopwright.plot.drawing import Curve, Drawing
from loopwright.plot.figures import TradeOff, exit_trade_off

if TYPE_CHECKING:
    from rich.table import Table

USUAL = ("gate", "act", "change", "divergence", "entropy", "stable")  # `--exit all`: those of them that the model can answer
EQUAL_LOSS = 0.01  # nats: losses that are no further apart count as equal
ORACLE_PRICES = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0)  # nats that a step must win to be taken


# the numbers


@dataclass(frozen=True)
class ExitPoint:
    """One rule at one limit. `shares` are those of tokens that take 1, 2, … steps; `excess` is the loss above that of full depth,
    with its 95 % interval; `random_loss` and `random_exact` are those of the same shares dealt to tokens at random."""

    rule: str
    mean_steps: float
    shares: Column
    loss: float | None
    excess: float | None
    excess_low: float | None
    excess_high: float | None
    random_loss: float | None
    exact: float | None = None
    random_exact: float | None = None

    @property
    def family(self) -> str:
        """The rule without its limit."""
        head, _, last = self.rule.rpartition(":")
        return head if head and last[0].isdigit() else self.rule


@dataclass(frozen=True)
class ExitReport(Saved):
    """Fixed depths, exit rules and the oracle on one text or split; `depth` are the steps that tokens can take. Intervals are over
    `units` of what `unit` says (rows, passages or documents). `source` is where the weights stood, `dtype` what they were in.
    `times` are those of decoding by the engine, where they were asked for, by the `clock` that measured them."""

    what: ClassVar[str] = "a report of early exits"

    name: str
    rows: int
    targets: int
    unit: str
    depth: tuple[int, ...]
    fixed: tuple[ExitPoint, ...]
    points: tuple[ExitPoint, ...]
    oracle: tuple[ExitPoint, ...]
    fingerprint: str = ""
    source: str = ""
    dtype: str = ""
    times: tuple[ExitTime, ...] = ()
    clock: str = ""
    units: int = 0  # 0: of a report that was saved before they were counted

    def __repr__(self) -> str:
        """What was measured; `table` shows the numbers."""
        return f"ExitReport({self.name!r}: {self.targets:,} tokens, {len(self.points)} rules at up to {self.depth[-1]} steps)"

    @property
    def steps(self) -> int:
        """The most steps that a token can take."""
        return self.depth[-1]

    @property
    def rules(self) -> tuple[str, ...]:
        """The rules with their limits, as the command line writes them."""
        return tuple(point.rule for point in self.points)

    def families(self) -> dict[str, list[ExitPoint]]:
        """Returns the points of each family of rules, fewest steps first."""
        points: dict[str, list[ExitPoint]] = {}
        for point in sorted(self.points, key=lambda point: point.mean_steps):
            points.setdefault(point.family, []).append(point)
        return points

    def trade_offs(self, title: str = "") -> list[TradeOff]:
        """Returns what the rules give over what they cost: mean steps and, where timed, time."""
        families, oracle = self.families(), sorted(self.oracle, key=lambda point: point.mean_steps)

        def curve(points: Sequence[ExitPoint]) -> Curve:
            return Curve([point.mean_steps for point in points], [self._given(point) for point in points])

        exact = self.fixed[0].exact is not None
        random = Curve([p.mean_steps for p in self.points], [p.random_exact if exact else p.random_loss for p in self.points])
        rules = {name: curve(points) for name, points in families.items()}
        costs = [TradeOff(rules, curve(self.fixed), curve(oracle), random, title=title)]
        for batch in self.batches:
            lines = {
                name: Curve([time.ratio for time, _ in pairs], [self._given(point) for _, point in pairs])
                for name, pairs in self.by_time(batch).items()
            }
            cost = f"time / full depth, batch {batch}"
            costs.append(TradeOff({name: lines[name] for name in families}, lines["fixed"], cost=cost, title=title))
        return costs

    def _given(self, point: ExitPoint) -> float | None:
        return point.loss if self.fixed[0].exact is None else point.exact

    @property
    def axis(self) -> dict[str, Any]:
        """How the figure shows what rules give: exact match where answers are right or wrong, else the loss."""
        return {} if self.fixed[0].exact is None else {"label": "exact match (%)", "scale": 100}

    def drawing(self) -> Drawing:
        """Returns what the exit rules give over what they cost."""
        return exit_trade_off(self.trade_offs(), **self.axis)

    def cheapest(self, within: float = EQUAL_LOSS) -> dict[str, ExitPoint]:
        """Returns the point of fewest steps of each family, and of the fixed depths, whose loss is within so many nats of full
        depth (or below it)."""
        groups = {"fixed": list(self.fixed), **self.families()}
        kept = {name: [p for p in points if p.excess is not None and p.excess <= within] for name, points in groups.items()}
        return {name: min(points, key=lambda point: point.mean_steps) for name, points in kept.items() if points}

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Self:
        """Returns the report that plain data describes."""
        groups = {
            name: tuple(ExitPoint(**columns_of(ExitPoint, point)) for point in data[name]) for name in ("fixed", "points", "oracle")
        }
        times = tuple(ExitTime(**columns_of(ExitTime, one)) for one in data.get("times", ()))
        return cls(**columns_of(cls, data) | groups | {"times": times})

    def by_time(self, batch: int) -> dict[str, list[tuple[ExitTime, ExitPoint]]]:
        """Returns what was timed at a batch size, with its loss: by family, fixed depths under "fixed", least time first."""
        points = {point.rule: point for point in (*self.fixed, *self.points)}
        pairs: dict[str, list[tuple[ExitTime, ExitPoint]]] = {
            "fixed": [(ExitTime(self.fixed[-1].rule, batch, self.steps, 1, 1, 1), self.fixed[-1])]
        }
        for one in sorted((one for one in self.times if one.batch == batch), key=lambda one: one.ratio):
            point = points[one.rule]
            pairs.setdefault("fixed" if point in self.fixed else point.family, []).append((one, point))
        pairs["fixed"].sort(key=lambda pair: pair[0].ratio)
        return pairs

    @property
    def timed(self) -> bool | None:
        """Whether decoding was timed; None where it was not, so that a timed report may take its place."""
        return bool(self.times) or None

    @property
    def batches(self) -> tuple[int, ...]:
        """The batch sizes that were timed."""
        return tuple(sorted({one.batch for one in self.times}))

    def time_table(self, width: int | None = None) -> Table:
        """Returns loss beside time as a rich table: time over that of full depth, for each batch size."""
        points = {point.rule: point for point in (*self.fixed, *self.points)}
        times = {(one.rule, one.batch): one for one in self.times}
        heads = ["rule", "above full depth"]
        for batch in self.batches:
            heads += [f"steps, batch {batch}", "time / full depth"]
        rows = []
        for rule in dict.fromkeys(one.rule for one in self.times):
            row = [rule, number(points[rule].excess, "+.4f")]
            for batch in self.batches:
                one = times[rule, batch]
                row += [f"{one.mean_steps:.2f}", f"{one.ratio:.2f} ({one.low:.2f}–{one.high:.2f})"]
            rows.append(row)
        table = number_table(heads, rows, width)
        table.title = (
            f"{self.name}: time of decoding by the engine over that at {self.steps} steps, median (quartiles), {self.clock} clock"
        )
        table.caption = "steps are those of the decoded text, the loss is that of the held-out one"
        return table

    def table(self, width: int | None = None) -> Table:
        """Returns the numbers as a rich table for a window of this width; full depth is bold."""
        scored = self.fixed[0].exact is not None
        heads = ["rule", "mean steps", "loss", "above full depth", "random depth", *(["exact match", "random"] if scored else [])]
        points = [*self.fixed, *self.points, *self.oracle]
        rows = []
        for p in points:
            row = [p.rule, f"{p.mean_steps:.2f}", number(p.loss, ".4f")]
            ends = "" if p.excess_low is None or p.excess_high is None else f" ({p.excess_low:+.4f} to {p.excess_high:+.4f})"
            row += [number(p.excess, "+.4f") + ends, number(p.random_loss, ".4f")]
            rows.append(row + ([percent(p.exact), percent(p.random_exact)] if scored else []))
        table = number_table(heads, rows, width, bold=[p is self.fixed[-1] for p in points])
        table.title = (
            f"{self.name}: {self.targets:,} tokens in {self.rows:,} rows, at most {self.depth[-1]} steps; "
            f"{over(self.units or self.rows, self.unit)}"
        )
        best = sorted(self.cheapest().items(), key=lambda pair: pair[1].mean_steps)
        table.caption = f"fewest mean steps within {EQUAL_LOSS} nats of full depth: " + "; ".join(
            f"{point.rule} {point.mean_steps:.2f}" for _, point in best
        )
        return table


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


# which rules, on what


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


def of_text(model: LoopedForCausalLM, passages: Passages, rows: int | None, batch: int | None) -> Measured:
    """Returns passages of running text, all or so many of them, in batches of equal length."""
    few = None if rows is None or rows >= len(passages) else rows
    chosen = passages if rows is None else passages.drawn(rows)
    chosen.check_fit(model)
    documents = [row.document for row in chosen.rows]
    order = chosen.by_length()
    size = passages_of_a_pass(model, chosen.context) if batch is None else batch
    groups = [order[first : first + size] for first in range(0, len(order), size)]
    units, unit = units_of(documents), unit_of(documents)
    return Measured(groups, chosen.batch, units, unit, False, few, chosen.context, chosen.fingerprint)


def of_rows(rows: BatchSource, batch: int, *, exact: bool, few: int | None = None) -> Measured:
    """Returns rows with answers, in batches."""
    groups = [range(first, min(first + batch, len(rows))) for first in range(0, len(rows), batch)]
    units, unit = documents_of(rows, range(len(rows))), "document"
    if units is None or int(units.min()) == int(units.max()):
        units, unit = torch.arange(len(rows)), "row"
    return Measured(groups, rows.batch, units, unit, exact, few, rows.batch([0]).input_ids.shape[1])


# one pass over it


@dataclass(frozen=True)
class StepTable:
    """Every target of some rows after every step: its loss and whether it is right [S, N], what each family of rules measured
    [S, N], the row it stands in [N] and its place there [N]. `mixed` has loss and right of families that read the mean of the
    states so far."""

    losses: Tensor
    right: Tensor
    measured: Mapping[str, Tensor]
    row: Tensor
    place: Tensor
    mixed: Mapping[str, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def read(self, family: str) -> tuple[Tensor, Tensor]:
        """Returns loss and right [S, N] of tokens that leave by a rule of this family."""
        return self.mixed.get(family, (self.losses, self.right))


def read_steps(
    model: LoopedForCausalLM,
    batches: Iterable[tuple[Sequence[int], Batch]],
    rules: Mapping[str, ExitRule],
    depth: int,
    *,
    total: int | None = None,
    progress: Progress | None = None,
) -> StepTable:
    """Returns what one pass over batches shows after every step; a batch comes with the numbers of its rows.

    `rules` holds one rule of each family. The model's mode comes back as it was.
    """
    parts: list[StepTable] = []
    with evaluating(model):
        for done, (places, batch) in enumerate(batches, start=1):
            parts.append(_read_batch(model, torch.tensor(list(places)), batch.to(model.device), rules, depth))
            if progress is not None and total is not None:
                progress(done, total)
    measured = {name: torch.cat([part.measured[name] for part in parts], 1) for name in rules}
    losses, right = (torch.cat([getattr(part, name) for part in parts], 1) for name in ("losses", "right"))
    mixing = [name for name, rule in rules.items() if rule.averages_states]
    mixed = {
        name: (torch.cat([p.mixed[name][0] for p in parts], 1), torch.cat([p.mixed[name][1] for p in parts], 1)) for name in mixing
    }
    row, place = (torch.cat([getattr(part, name) for part in parts]) for name in ("row", "place"))
    return StepTable(losses, right, measured, row, place, mixed)


@torch.no_grad()
def _read_batch(model: LoopedForCausalLM, places: Tensor, batch: Batch, rules: Mapping[str, ExitRule], depth: int) -> StepTable:
    asked = batch.labels[:, 1:] != IGNORED
    ids = batch.labels[:, 1:][asked]
    e, p = model.embed(batch.input_ids, attention_mask=batch.attention_mask, segment_ids=batch.segment_ids)
    start = model.start_state(e, p)
    before, states, scores = start[:, :-1][asked], [], []
    mixing = [name for name, rule in rules.items() if rule.averages_states]
    mixed: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in mixing}
    measured: dict[str, list[Tensor]] = {name: [] for name in rules}
    memories: dict[str, Memory] = {name: {} for name in rules}
    answers = Answers.of_steps(model, e, p, start)
    for s in model.unroll(e, depth, p, state=start):
        answers.take(s)
        after = s[:, :-1][asked]
        logits = answers.logits()[:, :-1][asked]
        scores.append(_score(logits, ids))
        if mixing and answers.mixed:  # the model answers so itself
            for name in mixing:
                mixed[name].append(scores[-1])
        elif mixing:  # one mean for all of them: the weights are the model's
            states.append(s)
            score = _score(model.read_out(mean_state(model, states), p)[:, :-1][asked], ids)
            for name in mixing:
                mixed[name].append(score)
        for name, rule in rules.items():
            measured[name].append(rule.measure(model, before, after, logits, memories[name]).cpu())
        before = after
    rows, inside = asked.nonzero().cpu().T
    means = {name: _stacked(each) for name, each in mixed.items()}
    table = {name: torch.stack(each) for name, each in measured.items()}
    return StepTable(*_stacked(scores), table, places[rows], inside + 1, means)


def _stacked(scores: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    return torch.stack([loss for loss, _ in scores]), torch.stack([right for _, right in scores])


def _score(logits: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """The loss of each target [N], and whether it is the most likely token, of logits [N, V]."""
    scores = wide(logits)
    loss = (scores - scores.gather(-1, ids[:, None])).logsumexp(-1)
    return loss.cpu(), (chosen(scores) == ids).cpu()


def exit_depths(model: LoopedForCausalLM, rule: ExitRule, measured: Tensor) -> Tensor:
    """Returns the steps that each token takes [N] where a rule measured [S, N]; after the last step every token leaves."""
    inside = ~rule.reached(model, measured)[:-1]
    for before, now in pairwise(inside):
        now &= before
    return inside.sum(0) + 1  # on a CPU argmax over the steps takes ten times as long


# what rules give


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


def early_exits(
    model: LoopedForCausalLM,
    batches: Iterable[tuple[Sequence[int], Batch]],
    specs: Sequence[Mapping[str, Any]],
    *,
    name: str,
    depth: int,
    units: Tensor,
    unit: str = "row",
    exact: bool = False,
    causality: Verdict | None = None,
    total: int | None = None,
    fingerprint: str = "",
    source: str = "",
    progress: Progress | None = None,
) -> ExitReport:
    """Returns the report of some exit rules on batches of rows, all from one pass.

    Args:
        specs: rules with their limits, as `build_exit` takes them.
        units: what intervals are over, one for each row (the row itself, or its document), or for each of its tokens [rows, T].
        exact: whether a row's answer is right or wrong as a whole.
        causality: what `need_likelihood` found, where it has been asked already; else it is asked here.
    """
    depth = model.config.check_depth(depth)
    need_likelihood(model, known=causality)
    rules = {write_exit(spec): (exit_family(spec), build_exit(spec, model)) for spec in specs}
    table = read_steps(model, batches, dict(rules.values()), depth, total=total, progress=progress)
    if not table.row.numel():
        raise ValueError(f"{name}: no row has a target")
    scored = _Scored(table, units, exact)
    counted = len(scored.targets)
    steps = range(1, depth + 1)
    best = {f"oracle:{price:g}": (table.losses + price * torch.tensor(steps)[:, None]).argmin(0) + 1 for price in ORACLE_PRICES}
    return ExitReport(
        name, len(units), table.row.numel(), unit, tuple(steps),
        tuple(scored.point(f"depth:{d}", torch.full_like(table.row, d)) for d in steps),
        tuple(scored.point(name, exit_depths(model, rule, table.measured[fam]), fam) for name, (fam, rule) in rules.items()),
        tuple(scored.point(label, depths) for label, depths in best.items()),
        fingerprint, source, str(model.dtype).removeprefix("torch."), units=counted,
    )  # fmt: skip


class _Scored:
    """Scores depths per token against a table of all steps."""

    def __init__(self, table: StepTable, units: Tensor, exact: bool) -> None:
        self.table, self.rows, self.exact = table, len(units), exact
        mine = units[table.row] if units.dim() == 1 else units[table.row, table.place]
        self.unit = mine.unique(return_inverse=True)[1]
        self.targets = self.unit.bincount()

    def point(self, rule: str, depths: Tensor, family: str = "") -> ExitPoint:
        """Returns what the tokens give when each takes its own number of steps [N], read out as the family of its rule does."""
        (losses, right), steps = self.table.read(family), len(self.table.losses)
        losses, full = losses.double(), self.table.losses[-1].double()
        shares = depths.bincount(minlength=steps + 1)[1:].double() / depths.numel()
        chosen = losses.gather(0, depths[None] - 1)[0]
        gap = by_row(chosen - full, self.unit, len(self.targets))
        low, high = mean_interval(gap, self.targets)
        values = torch.stack([chosen.mean(), gap.sum() / depths.numel(), low, high, (shares * losses.mean(1)).sum()])
        scores = self._exact(right.double(), depths, shares) if self.exact else (None, None)
        return ExitPoint(rule, float(depths.double().mean()), column(shares), *column(values), *scores)

    def _exact(self, right: Tensor, depths: Tensor, shares: Tensor) -> tuple[float | None, ...]:
        # a row is right where all its tokens are; at random depths each is so with the probability of its right depths
        each = torch.stack([right.gather(0, depths[None] - 1)[0], shares @ right])
        rows = by_row(each.clamp(max=1).log(), self.table.row, self.rows).exp()
        return column(rows[:, self.table.row.unique()].mean(1))


def by_row(values: Tensor, row: Tensor, rows: int) -> Tensor:
    """Returns the sums of values [..., N] over the targets of each row [..., rows]."""
    return values.new_zeros(*values.shape[:-1], rows).index_add_(-1, row, values)
