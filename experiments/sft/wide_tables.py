"""The page of the wide-core retrofit, each arm at its own rate, from the rows alone.

    python -m experiments.sft.wide_tables R/wide.jsonl R       # R: experiments/results/sft

Rows come by `python -m experiments.sft.wide`, and are kept by `python -m experiments.kept R/wide.jsonl`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from experiments.halting.reading import SIMPLE
from experiments.ouroboros.rate_tables import as_planned, at_own_rates, grid_table, pair_table, rules, skipped_table
from experiments.ouroboros.rates import best_rates
from experiments.ouroboros.tables import Runs, all_pairs
from experiments.pages import Result, asked_tables, by_seed, missing_part, number, results, signed, spread, table
from experiments.seeds import Pooled, best_depth, mean_loss, pooled, reports
from experiments.sft.exits import FIXED, MEANS, MOST, leaving
from experiments.sft.wide import DEPTHS, EQUAL, LONGER, LOOPED, RATES, TEXTS, UPDATES, Row, grid, tuned

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


def against_fixed(runs: Sequence[Result], rule: str, text: str, mean: int) -> Pooled | None:
    """Returns an exit rule against a fixed depth of as many steps; None where the rule has no limit with that mean in every run."""
    both = ([leaving(run, name) for run in runs] for name in (rule, FIXED))
    return pooled(*both, text, mean)


def exit_table(runs: Sequence[Result], text: str) -> str:
    """Returns what exit rules give at equal mean depth, against that fixed depth."""
    lines = []
    for rule in SIMPLE if runs else ():
        for mean in MEANS:
            found = against_fixed(runs, rule, text, mean)
            if found is None:
                lines.append([rule, str(mean), *["–"] * 5])
                continue
            fixed = mean_loss(reports([leaving(run, FIXED) for run in runs], text), mean)
            verdict = found.verdict if len(found.seeds) > 1 else "one seed"
            told = [signed(found.difference, found.low, found.high), by_seed(found.of_seeds), verdict]
            lines.append([rule, str(mean), number(fixed), number(fixed + found.difference), *told])
    head = ["rule", "mean steps", "fixed depth", "the rule", "difference (95 %, documents)", "by seed", "the rule's loss is"]
    return table(head, lines)


def own_limits(runs: Sequence[Result], text: str) -> str:
    """Returns mean steps and loss of each rule at the limit that it has unasked."""
    lines = []
    for rule in SIMPLE if runs else ():
        steps, losses = zip(*(run["exits"][text][rule]["own"] for run in runs), strict=True)
        lines.append([rule, spread(steps, 2), spread(losses)])
    return table(["rule", "mean steps", "loss"], lines)


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
    (folder / "wide.md").write_text("\n\n".join([*page, *missing_part(found, plan)]) + "\n")
    print(folder / "wide.md")


if __name__ == "__main__":
    main()
