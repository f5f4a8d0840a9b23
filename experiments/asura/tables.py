"""The ASURA study's tables and figures, from its results alone.

python -m experiments.asura.tables experiments/results/asura/runs.jsonl experiments/results/asura
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from experiments.asura.figures import draw_all
from experiments.asura.pairing import arranged, files_of, whole_of, wholes
from experiments.asura.plan import ALL_COMPARED, ALL_RATES, ALL_TEXT, SIZES, rows
from experiments.asura.run import TEXTS
from experiments.pages import Result, by_label
from experiments.tables import Page, Pair, arm_table, columns_of, loss_columns, named_pairs, of, pair_table

Labels = Mapping[str, Sequence[Result]]
COLUMNS = {
    "training files": files_of, **columns_of("parameters", "flops", "tokens"), "last training loss": of("losses", -1),
    **columns_of("valid"), **loss_columns(TEXTS), "median gradient norm": lambda run: statistics.median(run["gradient_norms"]),
    "largest": lambda run: max(run["gradient_norms"]), **columns_of("spikes", "skipped"),
}  # fmt: skip


def best_of_rates(labels: Labels) -> dict[str, Sequence[Result]]:
    """Returns the runs of each arm at the rate with the least loss on `valid`, where all its rates were run."""
    best = {}
    for arm in ALL_COMPARED:
        tried = [labels.get(f"{arm}, rate {rate:g}", []) for rate in ALL_RATES]
        if all(tried):
            best[arm] = min(tried, key=lambda runs: runs[0]["valid"])
    return best


def by_size(found: Sequence[Result]) -> dict[str, dict[str, list[Result]]]:
    """Returns the rows of each size by part, those made again in the place of the first ones."""
    sizes = {size: by_label(run for run in found if run["size"] == size) for size in SIZES}
    return {size: arranged(labels) for size, labels in sizes.items() if labels}


def against_whole(labels: Labels) -> list[Pair]:
    """Returns every part beside the ASURA rows that read the same batches at the same schedule."""
    asura = {label: wholes(runs, labels) for label, runs in labels.items() if whole_of(runs[0], labels) is not runs[0]}
    return [(label, "ASURA", labels[label], runs) for label, runs in asura.items()]


def parts(found: list[Result]) -> dict[str, str]:
    """Returns the tables of the page."""
    made = {}
    for size, labels in by_size(found).items():
        made[size] = arm_table(labels, COLUMNS)
        made[f"{size}: parts less ASURA on the same batches"] = pair_table(against_whole(labels), TEXTS)
    whole = by_label(run for run in found if run["size"] == ALL_TEXT)
    better = {f"{arm}, the better rate": runs for arm, runs in best_of_rates(whole).items()}
    names = [[f"{arm}, {rate}" for arm in ALL_COMPARED] for rate in (*(f"rate {rate:g}" for rate in ALL_RATES), "the better rate")]
    made[ALL_TEXT] = arm_table(whole, COLUMNS)
    pairs = named_pairs({**whole, **better}, ((plain, asura) for asura, plain in names))
    return made | {f"{ALL_TEXT}: plain less ASURA": pair_table(pairs, TEXTS)}


PAGE = Page(
    "The ASURA study", ("asura/runs.jsonl",), parts, lambda found: rows(), lambda found: draw_all(by_size(found))
)  # fmt: skip


if __name__ == "__main__":
    PAGE.main(__doc__, "experiments.asura.tables")
