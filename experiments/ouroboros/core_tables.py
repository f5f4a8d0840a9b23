"""The page of the cores of 1, 3 and 6 layers, from the rows alone.

    python -m experiments.ouroboros.core_tables R/cores.jsonl R/runs.jsonl R       # R: experiments/results/ouroboros

The second file gives the ends of the gap.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from experiments.ouroboros.cores import ARMS, RATES
from experiments.ouroboros.plan import AT_DEPTH, AT_ONE, CORES, ONCE_EQUAL, ONCE_LONGER, Row, looping
from experiments.ouroboros.rate_tables import as_planned, at_own_rates, grid_table, pair_table, recovered, rules, skipped_table
from experiments.ouroboros.rates import SEEDS, best_rates, grid, tuned
from experiments.ouroboros.run import TEXTS
from experiments.ouroboros.tables import Runs, all_pairs
from experiments.pages import Result, asked_tables, by_label, missing_part, percent, results, spread, table
from experiments.seeds import best_depth, mean_loss, reports

LOOPED = [looping(size, how) for how in (AT_DEPTH, AT_ONE) for size in CORES]
PAIRS = (
    *((arm, once) for once in (ONCE_EQUAL, ONCE_LONGER) for arm in LOOPED),
    *((looping(size, AT_DEPTH), looping(size, AT_ONE)) for size in CORES),
    (ONCE_LONGER, ONCE_EQUAL),
)


def planned(found: Sequence[Result]) -> Iterator[Row]:
    """All rows that the plan has for the rates that were chosen."""
    yield from grid(ARMS, RATES)
    yield from tuned(ARMS, SEEDS, best_rates(found, RATES))


def loss_table(runs: Runs, ends: Runs, text: str) -> str:
    """Returns each row at its rate: what it trains, on how many tokens, for how many FLOPs, its loss and what it recovers."""
    head = ["row", "rate", "seeds", "trained", "tokens", "training FLOPs", "loss: mean (range)", "gap recovered"]
    once, lines = runs.get(ONCE_EQUAL), []
    for label, of_label in runs.items():
        found, first = reports(of_label, text), of_label[0]
        cost = first["flops"] * first["tokens"] / (once[0]["flops"] * once[0]["tokens"]) if once else float("nan")
        lines.append([
            label, f"{first['rate']:g}", str(len(of_label)), f"{first['trainable']:,}", f"{first['tokens']:,}", f"× {cost:.2f}",
            spread([mean_loss([each], best_depth(found)) for each in found]), percent(recovered(of_label, ends, text)),
        ])  # fmt: skip
    return table(head, lines)


def main() -> None:
    """Writes cores.md."""
    sources, folder = asked_tables(__doc__)
    every = results(sources, ())
    found, plan = as_planned(every, planned)
    ends, runs = by_label(run for run in every if run["group"] == "references"), at_own_rates(found, RATES)
    pairs = all_pairs(runs, PAIRS)
    page = ["# The retrofit study: cores of 1, 3 and 6 layers", "`python -m experiments.ouroboros.core_tables` made this page."]
    page += ["## How to read it", rules(found, RATES), "## Loss on valid by rate", grid_table(found)]
    page += ["## Updates that were not finite", skipped_table(found)]
    for text in TEXTS:
        page += [f"## {text}: loss", loss_table(runs, ends, text), f"## {text}: pair by pair", pair_table(pairs, text)]
    (folder / "cores.md").write_text("\n\n".join([*page, *missing_part(found, plan)]) + "\n")
    print(folder / "cores.md")


if __name__ == "__main__":
    main()
