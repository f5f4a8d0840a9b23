"""The page and figures of the retrofit study's arms, each at its own rate, from the rows alone.

    python -m experiments.ouroboros.rate_tables R/rates.jsonl R/runs.jsonl R       # R: experiments/results/ouroboros

The second file gives the ends of the gap: the truncated model and the full one, on the same passages.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial

from experiments.ouroboros.figures import difference_by_depth
from experiments.ouroboros.plan import (
    BLIND,
    CONTROLLER,
    DIAGONAL,
    FULL,
    GATE,
    LEAKING,
    NORMED,
    ONCE,
    PUBLISHED,
    STATIC,
    TOKEN,
    TRUNCATED,
    Row,
)
from experiments.ouroboros.rates import (
    ARMS,
    CLOSE,
    FURTHER,
    GRID,
    MORE,
    RATES,
    SEEDS,
    TUNED,
    arm_of,
    best_rates,
    grid,
    rates_of,
    tuned,
    valid_loss,
)
from experiments.ouroboros.run import DEPTHS, TEXTS
from experiments.ouroboros.tables import Runs, all_pairs
from experiments.pages import Result, by_label, number, percent
from experiments.seeds import RULE, best_depth, mean_loss, reports
from experiments.tables import Columns, Page, arm_table, columns_of, loss_columns, named_pairs, of, pair_table
from loopwright.plot.drawing import Axes, Curve, Drawing, figure, lines
from loopwright.plot.style import COLOURS

MOST_SHOWN = 6.0  # nats
ASKED = ((CONTROLLER, BLIND), (TOKEN, BLIND), (NORMED, BLIND))
RIVALS = ((CONTROLLER, DIAGONAL), (TOKEN, DIAGONAL), (BLIND, DIAGONAL))
BY_DEPTH = (*ASKED, *RIVALS)
PAIRS = (
    *BY_DEPTH, (CONTROLLER, STATIC), (TOKEN, STATIC), (BLIND, STATIC),
    (DIAGONAL, STATIC), (DIAGONAL, GATE), (BLIND, GATE), (TOKEN, CONTROLLER), (PUBLISHED, BLIND), (LEAKING, CONTROLLER),
    (TOKEN, ONCE), (STATIC, ONCE),
)  # fmt: skip


def planned(found: Sequence[Result], arms: Sequence[str] = (), rates: Sequence[float] = RATES) -> Iterator[Row]:
    """All rows that the plan has for the rates that were chosen, of the study's arms or of others."""
    best = best_rates(found, rates)
    yield from grid(arms or ARMS, rates)
    yield from tuned(arms or ARMS, SEEDS, best)
    if not arms:
        yield from grid(MORE)
        yield from tuned(MORE, SEEDS, best)
        yield from tuned(CLOSE, FURTHER, best)


def of_grid(found: Sequence[Result]) -> list[Result]:
    """Returns the rows of grid and seeds alone: files of rows have the ends of the gap as well."""
    return [run for run in found if run["group"] in (GRID, TUNED)]


def at_own_rates(found: Sequence[Result], rates: Sequence[float] = RATES) -> Runs:
    """Returns the runs at the rates that were chosen, by arm, seeds in order."""
    best = best_rates(found, rates)
    own = [run for run in found if run["group"] == TUNED and run["rate"] == best.get(arm_of(run))]
    return by_label({**run, "label": arm_of(run)} for run in own)


def recovered(runs: Sequence[Result], ends: Runs, text: str) -> float:
    """Returns the share of the gap from the truncated to the full model that a row recovers at its best depth, mean of seeds."""
    if not ends.get(FULL) or not ends.get(TRUNCATED):
        return math.nan
    found, full, short = (reports(each, text) for each in (runs, ends[FULL], ends[TRUNCATED]))
    top, bottom = mean_loss(short, short[0].depth[0]), mean_loss(full, best_depth(full))
    return (top - mean_loss(found, best_depth(found))) / (top - bottom)


def rate_curves(found: Sequence[Result]) -> Drawing:
    """Returns the loss on `valid` over the rate, a line for each arm of the question; what lies far above is told at the edge."""

    def draw(axes: Axes) -> None:
        tried = {arm: sorted(losses.items()) for arm, losses in rates_of(found).items() if arm in ARMS}
        shown = {arm: [each for each in losses if each[1] <= MOST_SHOWN] for arm, losses in tried.items()}
        lines(axes, {arm: Curve([rate for rate, _ in each], [loss for _, loss in each]) for arm, each in shown.items()})
        for place, (arm, losses) in enumerate(tried.items()):
            for rate, loss in losses:
                if loss > MOST_SHOWN:
                    told = f"{arm}: {number(loss, 1) if math.isfinite(loss) else 'diverged'} ↑"
                    axes.annotate(
                        told, (rate, 1), xycoords=("data", "axes fraction"), ha="center", va="top", fontsize=9, color=COLOURS[place]
                    )
        rates = sorted({rate for losses in tried.values() for rate, _ in losses})
        axes.set_xscale("log")
        axes.set_xticks(rates, [f"{rate:g}" for rate in rates])
        axes.minorticks_off()
        axes.set_xlabel("learning rate")
        axes.set_ylabel("loss on valid, best depth (nats)")
        axes.figure.legend(loc="outside lower center", frameon=False, ncols=2)

    return figure(draw, height=4.2)


def valid_at_best(run: Result) -> str | None:
    """Returns the loss on `valid` by which rates are chosen; none of the rows that are measured on other texts."""
    loss = valid_loss(run)
    return None if run["group"] != GRID else number(loss) if math.isfinite(loss) else "diverged"


def rated_parts(found: Sequence[Result], pairs: Sequence[tuple[str, str]], rates: Sequence[float] = RATES) -> dict[str, str]:
    """Returns the tables of arms at their own rates: all that was tried, losses by depth, the gap recovered, and pair by pair."""
    ends, runs = by_label(run for run in found if run["group"] == "references"), at_own_rates(of_grid(found), rates)
    gap = {f"{text}: gap recovered": partial(recovered_by, ends, text) for text in TEXTS}
    return {
        "Every arm at every rate": arm_table(by_label(of_grid(found)), COLUMNS),
        "At own rates: loss by depth": arm_table(runs, loss_columns(TEXTS, DEPTHS) | (gap if ends else {})),
        "At own rates: pair by pair, each at its best depth": pair_table(named_pairs(runs, pairs), [*TEXTS]),
        "At own rates: pair by pair, at equal depths": pair_table(named_pairs(runs, BY_DEPTH), [*TEXTS], DEPTHS),
    }


def recovered_by(ends: Runs, text: str, run: Result) -> str:
    """Returns the share of the gap that one run recovers at its best depth."""
    return percent(recovered([run], ends, text))


def draw(found: Sequence[Result]) -> dict[str, Drawing]:
    """Returns the figures by name."""
    tried, pairs = of_grid(found), all_pairs(at_own_rates(of_grid(found)), ASKED)
    against = {first: by_depth for (first, _), by_depth in pairs.items()}
    own = {"own-rates": difference_by_depth(against, than="the blind controller's", depths=DEPTHS[1:])} if against else {}
    return {"rates": rate_curves(tried), **own}


COLUMNS: Columns = {
    "valid, best depth": valid_at_best, **columns_of("trainable", "tokens"), "training loss": of("losses", -1),
    **columns_of("skipped"),
}  # fmt: skip
ABOUT = (
    RULE,
    "Rates: the least loss on `valid` (128 passages) at the best of the depths trained, seed 0, which is not used again. Losses of "
    "a document's passages are summed before rows are written: pairs are of documents. The reading of whole sequences sees the "
    "future: its one-pass loss is not a likelihood.",
)
PAGE = Page(
    "The retrofit study, each arm at its own rate", ("ouroboros/rates.jsonl", "ouroboros/runs.jsonl"),
    lambda found: rated_parts(found, PAIRS), planned, draw, name="rates.md", about=ABOUT,
)  # fmt: skip


if __name__ == "__main__":
    PAGE.main(__doc__, "experiments.ouroboros.rate_tables")
