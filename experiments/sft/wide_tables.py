"""The page of the wide-core retrofit, each arm at its own rate, from the rows alone.

    python -m experiments.sft.wide_tables R/wide.jsonl R       # R: experiments/results/sft

Rows come by `python -m experiments.sft.wide`, and are kept by `python -m experiments.kept R/wide.jsonl`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from experiments.leaving.reading import FIXED, MEANS, MOST, leaving
from experiments.leaving.tables import in_part, in_thirds
from experiments.ouroboros.rate_tables import ABOUT, COLUMNS, at_own_rates
from experiments.ouroboros.rates import best_rates
from experiments.ouroboros.tables import Runs
from experiments.pages import Result, by_label
from experiments.seeds import mean_loss, reports
from experiments.sft.plan import TRAINED
from experiments.sft.wide import DEPTHS, EQUAL, LONGER, LOOPED, RATES, TEXTS, UPDATES, Row, grid, tuned
from experiments.tables import Page, arm_table, columns_of, exit_table, loss_columns, named_pairs, of, pair_table

STEPS = sorted({*DEPTHS, *MEANS})
PAIRS = ((LOOPED, EQUAL), (LOOPED, LONGER), (LONGER, EQUAL))


def by_depth(looped: Sequence[Result], text: str, documents: Collection[int] | None = None) -> list[dict[int, float]]:
    """Returns the loop's loss at each depth of STEPS, seed by seed, on all documents where none are named.

    Depths that are not among DEPTHS were measured with the exit rules.
    """
    sides = looped, [leaving(run, FIXED) for run in looped]
    whole, fixed = (reports(side if documents is None else in_part(side, text, documents), text) for side in sides)
    return [
        {depth: mean_loss([one if depth in DEPTHS else other], depth) for depth in STEPS}
        for one, other in zip(whole, fixed, strict=True)
    ]


def thirds(runs: Runs, text: str, arm: str = EQUAL) -> dict[str, frozenset[int]]:
    """Returns the documents of a text in three parts, by the loss per token that an arm has on each."""
    return in_thirds(reports(runs[arm], text), TRAINED if arm == LOOPED else 1)


def planned(found: Sequence[Result]) -> Iterator[Row]:
    """All rows that the plan has for the rates that were chosen."""
    yield from grid()
    yield from tuned(best_rates(found, RATES))


def parts(found: list[Result]) -> dict[str, str]:
    """Returns the tables of the page."""
    runs = at_own_rates(found, RATES)
    made = {
        "Every arm at every rate": arm_table(by_label(found), COLUMNS | columns_of("flops")),
        "At own rates: loss by depth": arm_table(runs, loss_columns(TEXTS, DEPTHS)),
        "At own rates: pair by pair": pair_table(named_pairs(runs, PAIRS), TEXTS),
    }
    looped = runs.get(LOOPED, [])
    for text in TEXTS:
        made[f"{text}: exit rules of the looped model, at most {MOST} steps"] = exit_table(looped, text)
        for name, documents in (thirds(runs, text) if EQUAL in runs else {}).items():
            part = {arm: in_part(of_arm, text, documents) for arm, of_arm in runs.items()}
            seeds = [run | {"steps": steps} for run, steps in zip(looped, by_depth(looped, text, documents), strict=True)]
            steps = arm_table({LOOPED: seeds}, {f"depth {depth}": of("steps", depth) for depth in STEPS})
            heading = f"{text}: {name} documents, {len(documents)} of them, by the loss of layers run once"
            made[heading] = f"{steps}\n\n{pair_table(named_pairs(part, PAIRS), (text,))}"
    return made


LENGTHS = " and ".join(f"{updates:,} updates ({group})" for group, updates in UPDATES.items())
PAGE = Page(
    "The wide-core retrofit, each arm at its own rate", ("sft/wide.jsonl",), parts, planned, name="wide.md",
    about=(*ABOUT, f"Length of the runs, where FLOPs are not made equal: {LENGTHS}."),
)  # fmt: skip


if __name__ == "__main__":
    PAGE.main(__doc__, "experiments.sft.wide_tables")
