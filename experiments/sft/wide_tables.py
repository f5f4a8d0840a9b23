"""The page of the wide-core retrofit, each arm at its own rate, from the rows alone.

    python -m experiments.sft.wide_tables R/wide.jsonl R       # R: experiments/results/sft

Rows come by `python -m experiments.sft.wide`, and are kept by `python -m experiments.kept R/wide.jsonl`.
"""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterator, Sequence
from itertools import product

from experiments.leaving.reading import FIXED, MEANS, MOST, leaving
from experiments.leaving.tables import exit_table, in_part, in_thirds, own_limits
from experiments.ouroboros.rate_tables import as_planned, at_own_rates, grid_table, pair_table, rules, skipped_table
from experiments.ouroboros.rates import best_rates
from experiments.ouroboros.tables import Runs, all_pairs
from experiments.pages import Result, asked_tables, by_seed, missing_part, number, results, signed, spread, table
from experiments.seeds import best_depth, mean_loss, pooled, reports
from experiments.sft.plan import TRAINED
from experiments.sft.wide import ARMS, DEPTHS, EQUAL, LONGER, LOOPED, RATES, TEXTS, UPDATES, Row, grid, tuned

STEPS = sorted({*DEPTHS, *MEANS})
SPLIT = f"Documents are split into three parts by the loss per token of the arm '{EQUAL}', the mean of its seeds."
PAIRS = ((LOOPED, EQUAL), (LOOPED, LONGER), (LONGER, EQUAL))


def planned(found: Sequence[Result]) -> Iterator[Row]:
    """All rows that the plan has for the rates that were chosen."""
    yield from grid()
    yield from tuned(best_rates(found, RATES))


def loss_table(runs: Runs, text: str) -> str:
    """Returns each arm at its rate: what it read and cost, and its loss by depth and at its best."""
    head = ["arm", "rate", "seeds", "million tokens", "training PFLOP", *[f"depth {depth}" for depth in DEPTHS]]
    lines = []
    for label, of_label in runs.items():
        found, first = reports(of_label, text), of_label[0]
        depth = best_depth(found)
        lines.append([
            label, f"{first['rate']:g}", str(len(of_label)), f"{first['tokens'] / 1e6:.1f}", f"{first['flops'] / 1e15:.1f}",
            *[number(mean_loss(found, each)) for each in DEPTHS],
            f"{depth}: {spread([mean_loss([each], depth) for each in found])}",
        ])  # fmt: skip
    return table([*head, "best depth: mean (range)"], lines)


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


def third_table(runs: Runs, text: str) -> str:
    """Returns the loop's loss by depth on easy, middle and hard documents, beside layers run once."""
    head, lines = ["documents", "number", "run once", *[f"depth {depth}" for depth in STEPS]], []
    for name, documents in thirds(runs, text).items():
        once = mean_loss(reports(in_part(runs[EQUAL], text, documents), text), 1)
        seeds = by_depth(runs[LOOPED], text, documents)
        lines.append(
            [name, str(len(documents)), number(once), *[number(statistics.mean(run[depth] for run in seeds)) for depth in STEPS]]
        )
    return table(head, lines)


def third_pairs(runs: Runs, text: str) -> str:
    """Returns the loop less layers run once on easy, middle and hard documents."""
    lines = []
    for rival, (name, documents) in product((EQUAL, LONGER), thirds(runs, text).items()):
        found = pooled(*(in_part(runs[arm], text, documents) for arm in (LOOPED, rival)), text)
        if found is not None:
            told = signed(found.difference, found.low, found.high)
            lines.append([rival, name, ", ".join(map(str, found.depths)), told, by_seed(found.of_seeds), found.verdict])
    return table(
        ["the loop less", "documents", "best depths", "difference (95 %, documents)", "by seed", "the loop's loss is"], lines
    )


def main() -> None:
    """Writes wide.md."""
    sources, folder = asked_tables(__doc__)
    found, plan = as_planned(results(sources, ()), planned)
    runs = at_own_rates(found, RATES)
    pairs, looped = all_pairs(runs, PAIRS), runs.get(LOOPED, [])
    lengths = " and ".join(f"{updates:,} updates ({group})" for group, updates in UPDATES.items())
    page = ["# The wide-core retrofit, each arm at its own rate", "`python -m experiments.sft.wide_tables` made this page."]
    page += ["## How to read it", rules(found, RATES), f"Length of the runs, where FLOPs are not made equal: {lengths}."]
    page += ["## Loss on valid by rate", grid_table(found), "## Updates that were not finite", skipped_table(found)]
    for text in TEXTS:
        page += [f"## {text}: loss", loss_table(runs, text), f"## {text}: pair by pair", pair_table(pairs, text)]
        page += [f"## {text}: exit rules of the looped model, at most {MOST} steps", exit_table(looped, text)]
        page += ["At the limits that rules have unasked:", own_limits(looped, text)]
        if len(runs) == len(ARMS):
            page += [f"## {text}: easy, middle and hard documents", SPLIT, third_table(runs, text), third_pairs(runs, text)]
    (folder / "wide.md").write_text("\n\n".join([*page, *missing_part(found, plan)]) + "\n")
    print(folder / "wide.md")


if __name__ == "__main__":
    main()
