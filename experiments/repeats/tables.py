"""The study's page and figures, from its results alone.

python -m experiments.repeats.tables experiments/results/repeats/runs.jsonl experiments/results/repeats
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence

from experiments.pages import Result
from experiments.repeats.deep_tables import RANDOM, Chosen, deep_runs
from experiments.repeats.plan import (
    ARMS,
    DEPTH_RATES,
    DEPTHS,
    FLOPS,
    FRESH,
    LONGER,
    ONCE,
    PARAMETERS,
    TESTED,
    TEXTS,
    WHOLE,
    Row,
    calm,
    compared,
    depths,
    longer,
    rate_of,
    rates,
    whole_text,
)
from experiments.repeats.run import best_rates, counts
from experiments.seeds import RULE
from experiments.tables import Page, arm_table, columns_of, exit_table, loss_columns, named_pairs, of, pair_table
from loopwright.plot.drawing import Drawing

LOOPED = ("ASURA", "Huginn-like")
RIVALS = (FLOPS, PARAMETERS, LONGER, FRESH)
MAIN = tuple(label for label in ARMS if label not in (*DEPTHS, *WHOLE))
BY_DEPTH = dict(sorted({3: "ASURA", **{depth: label for label, depth in DEPTHS.items()}}.items()))
HALVES = [depth for depth in BY_DEPTH if 2 * depth in BY_DEPTH]
# what is compared on all of the text
WHOLE_PAIRS = (
    *((arm, rival) for arm in (*LOOPED, ONCE) for rival in (FLOPS, PARAMETERS)),
    *((arm, ONCE) for arm in LOOPED), ("Huginn-like", "ASURA"), (FLOPS, PARAMETERS),
)  # fmt: skip


def chosen(found: Sequence[Result]) -> dict[tuple[str, int], list[Result]]:
    """Returns the runs of every arm at its own rate, by arm and how often the text is read, seeds in order; of a depth whose rates
    were not all tried, those at the rate of depth 3."""
    best = {(label, 1): DEPTH_RATES[0] for label in DEPTHS} | best_rates(found)
    kept: dict[tuple[str, int], list[Result]] = {(label, times): [] for label in ARMS for times in TEXTS}
    for run in sorted(found, key=lambda run: run["seed"]):
        if run["rate"] == rate_of(best, run["label"], run["times"]):
            kept[run["label"], run["times"]].append(run)
    return {key: runs for key, runs in kept.items() if runs}


def at_rate(found: Sequence[Result], rate: float) -> dict[tuple[str, int], list[Result]]:
    """Returns the runs on text that is read once at one rate, arm by arm, seeds in order."""
    kept: dict[tuple[str, int], list[Result]] = {}
    for run in sorted(found, key=lambda run: run["seed"]):
        if run["times"] == 1 and run["rate"] == rate:
            kept.setdefault((run["label"], 1), []).append(run)
    return kept


def stopped(kept: Chosen) -> dict[tuple[str, int], list[Result]]:
    """Returns the runs that were validated on the way as they stood at their best validation, in the place of their end."""
    early = {key: [run | run["stopped"] for run in runs if "stopped" in run] for key, runs in kept.items()}
    return {key: runs for key, runs in early.items() if runs}


def slopes(kept: Chosen) -> dict[int, float]:
    """Returns by how many nats ASURA's loss changes with each doubling of its depth, seed by seed: the straight line in log2 of the
    depth that fits best. Seeds that a depth lacks are left out."""
    if any((label, 1) not in kept for label in BY_DEPTH.values()):
        return {}
    seeds_of = [{run["seed"]: run["loss"]["test"] for run in kept[label, 1]} for label in BY_DEPTH.values()]
    doublings = [math.log2(depth) for depth in BY_DEPTH]
    return {
        seed: statistics.linear_regression(doublings, [losses[seed] for losses in seeds_of]).slope
        for seed in seeds_of[0]
        if all(seed in losses for losses in seeds_of)
    }


def planned(found: Sequence[Result]) -> Iterator[Row]:
    """Yields the plan for the rates that were chosen, each row once."""
    best = best_rates(found)
    every = [*rates(), *compared(best), *depths(best), *longer(best), *calm(), *whole_text(best)]
    yield from {row.name: row for row in every}.values()


def named(kept: Chosen) -> dict[str, list[Result]]:
    """Returns the arms with how often they read the text in their names."""
    return {f"{label}, {times} ×": [*runs] for (label, times), runs in kept.items()}


def pairs(label: str, rivals: Sequence[str]) -> list[tuple[str, str]]:
    """Returns an arm beside others on each text."""
    return [(f"{label}, {times} ×", f"{rival}, {times} ×") for rival in rivals for times in TEXTS]


def by_depth(rate: Chosen) -> list[tuple[str, str]]:
    """Returns ASURA's depths beside half of each, the first of them, and plain layers."""
    asura = {depth: f"{label}, 1 ×" for depth, label in BY_DEPTH.items()}
    doubled = [(asura[2 * depth], asura[depth]) for depth in HALVES]
    beside = [(asura[depth], asura[1]) for depth in asura if depth > 2]
    return [*doubled, *beside, *((name, f"{rival}, 1 ×") for name in asura.values() for rival in RIVALS[:2])]


def parts(found: list[Result]) -> dict[str, str]:
    """Returns the tables of the page."""
    kept, tried = chosen(found), {}
    for run in found:
        tried.setdefault(f"{run['label']}, {run['times']} ×, rate {run['rate']:g}", []).append(run)
    early, calmer = named(stopped(kept)), named(at_rate(found, min(DEPTH_RATES)))
    against = [pair for label in LOOPED for pair in pairs(label, RIVALS)]
    whole = [(NAMES[arm], NAMES[rival]) for arm, rival in WHOLE_PAIRS]
    made = {
        "Every arm, text and rate": arm_table(tried, COLUMNS),
        "At the best validation, where runs were validated on the way": arm_table(early, columns_of("update") | LOSSES),
        "Looped less plain, each at its own rate": pair_table(named_pairs(named(kept), against), ("test",)),
        "The same at the best validation": pair_table(named_pairs(early, against), ("test",)),
        "ASURA by depth, text read once": pair_table(named_pairs(named(kept), by_depth(kept)), ("test",)),
        f"The same at {min(DEPTH_RATES):g}": pair_table(named_pairs(calmer, by_depth(kept)), ("test",)),
        "All of the text": pair_table(named_pairs(named(kept), whole), ("test",)),
    }
    tested = {arm: deep_runs(kept, arm) for arm in TESTED}
    steps = sorted({depth for each in TESTED.values() for depth in each})
    made["Depth at test time, on all of the text"] = arm_table(tested, loss_columns(("test", "ood"), steps))
    for text in ("test", "ood"):
        made[f"{RANDOM}: exit rules on {text}"] = exit_table(tested[RANDOM], text)
    return made


def draw(found: list[Result]) -> Mapping[str, Drawing]:
    """Returns the figures by name."""
    from experiments.repeats.figures import draw_all

    return draw_all(found, chosen(found))


LOSSES = {text: of("loss", text) for text in ("valid", "test", "ood")}
COLUMNS = columns_of("parameters", "flops", "tokens") | {"trained on": of("losses", -1)} | LOSSES | columns_of("skipped")
NAMES = {arm: f"{label}, 4 ×" for label, arm in WHOLE.items()}
PAGE = Page(
    "Text that runs out: the same number of tokens from less and less text", ("repeats/runs.jsonl",), parts, planned, draw, counts,
    about=(RULE, "An arm's own rate is the one with the least loss on `valid`, seed 0; × says how often the text is read."),
)  # fmt: skip


if __name__ == "__main__":
    PAGE.main(__doc__, "experiments.repeats.tables")
