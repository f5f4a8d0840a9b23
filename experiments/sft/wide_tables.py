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
from experiments.seeds import Pooled, averaged, best_depth, held, mean_loss, of_documents, pooled, reports
from experiments.sft.exits import FIXED, MEANS, MOST, leaving
from experiments.sft.wide import ARMS, DEPTHS, EQUAL, LONGER, LOOPED, RATES, TEXTS, UPDATES, Row, grid, tuned
from loopwright.metrics.score import by_unit

THIRDS = ("easy", "middle", "hard")
STEPS = sorted({*DEPTHS, *MEANS})
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


def thirds(runs: Runs, text: str) -> dict[str, frozenset[int]]:
    """Returns the documents of a text in three parts, by the loss that layers run once have on each (the mean of the seeds)."""
    losses, targets, units = averaged(reports(runs[EQUAL], text), 1).at()
    order = (by_unit(losses, units) / by_unit(targets.double(), units)).argsort()
    documents = sorted(set(held(runs[EQUAL][0], text).document_of))
    ends = [len(order) * part // len(THIRDS) for part in range(len(THIRDS) + 1)]
    return {name: frozenset(documents[i] for i in order[low:high]) for name, low, high in zip(THIRDS, ends, ends[1:], strict=False)}


def in_part(runs: Sequence[Result], text: str, numbers: frozenset[int]) -> list[Result]:
    """Returns runs, each on some documents alone."""
    return [of_documents(run, text, numbers) for run in runs]


def third_table(runs: Runs, text: str) -> str:
    """Returns the loop's loss by depth on documents that are easy, middle and hard for layers run once, and it beside them."""
    head, lines = ["documents", "number", "run once", *[f"depth {depth}" for depth in STEPS]], []
    for name, numbers in thirds(runs, text).items() if len(runs) == len(ARMS) else ():
        loop, fixed, once = (in_part(part, text, numbers) for part in (runs[LOOPED], fixed_runs(runs), runs[EQUAL]))
        at = [reports(loop if depth in DEPTHS else fixed, text) for depth in STEPS]
        losses = [number(mean_loss(found, depth)) for found, depth in zip(at, STEPS, strict=True)]
        lines.append([name, str(len(numbers)), number(mean_loss(reports(once, text), 1)), *losses])
        for rival in (EQUAL, LONGER):
            found = pooled(loop, in_part(runs[rival], text, numbers), text)
            assert found is not None
            lines[-1].append(
                f"{signed(found.difference, found.low, found.high)}, by seed {by_seed(found.of_seeds)}: {found.verdict}"
            )
    return table([*head, *(f"loop less {rival}" for rival in (EQUAL, LONGER))], lines)


def fixed_runs(runs: Runs) -> list[Result]:
    """Returns the looped runs with their losses at the fixed depths that rules are held against."""
    return [leaving(run, FIXED) for run in runs[LOOPED]]


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
        page += [f"## {text}: easy, middle and hard documents", third_table(runs, text)]
    (folder / "wide.md").write_text("\n\n".join([*page, *missing_part(found, plan)]) + "\n")
    print(folder / "wide.md")


if __name__ == "__main__":
    main()
