"""The study's table and figure, from its results alone.

python -m experiments.repeats.tables experiments/results/repeats/runs.jsonl experiments/results/repeats
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from experiments.pages import (
    Result,
    asked_tables,
    by_seed,
    difference,
    missing_part,
    number,
    results,
    save_all,
    signed,
    spread,
    table,
)
from experiments.repeats.deep_tables import Chosen, page_parts
from experiments.repeats.plan import (
    ARMS,
    COMPARED_RATES,
    DEPTH_RATES,
    DEPTHS,
    FLOPS,
    FRESH,
    LONGER,
    ONCE,
    PARAMETERS,
    RATES,
    STOPPED,
    TEXTS,
    TUNED,
    WHOLE,
    calm,
    compared,
    depths,
    longer,
    rate_of,
    rates,
    whole_text,
)
from experiments.repeats.run import best_rates, counts
from experiments.seeds import RULE, over_seeds, pooled

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


def stopped_table(early: Chosen) -> str:
    """Returns the losses of every arm at its best validation, seed by seed, and at which update that was."""
    lines = [
        [
            label, f"{times} ×", ", ".join(str(run["update"]) for run in runs),
            *[" / ".join(number(run["loss"][text]) for run in runs) for text in ("valid", "test", "ood")],
        ]
        for (label, times), runs in early.items()
    ]  # fmt: skip
    return table(["arm", "text read", "update, by seed", "valid", "test", "ood"], lines)


def rate_table(found: Sequence[Result]) -> str:
    """Returns the loss on `valid` of every arm at every rate, seed 0: at the end, or where runs are validated on the way at the
    best validation."""
    ends = [(run, run if run["times"] != STOPPED else run.get("stopped")) for run in found if run["seed"] == 0]
    at = {(run["label"], run["times"], run["rate"]): end["loss"]["valid"] for run, end in ends if end is not None}
    lines = [
        [label, f"{times} ×", *[number(at.get((label, times, rate))) for rate in sorted(RATES)]]
        for times in COMPARED_RATES
        for label in TUNED
    ]
    return table(["arm", "text read", *[f"{rate:g}" for rate in sorted(RATES)]], lines)


def loss_table(kept: Chosen) -> str:
    """Returns what each arm is made of and its losses: the text they were trained on at the end, and held-out text."""
    head = ["arm", "parameters", "FLOPs a token"]
    head += [f"{times} ×: {what}" for times in TEXTS for what in ("rate", "trained on", "test", "ood")]
    lines = []
    for label in MAIN:
        own = [run for times in TEXTS for run in kept.get((label, times), [])]
        if not own:
            continue
        cells = [label, f"{own[0]['parameters'] / 1e6:.2f} M", f"{own[0]['flops'] / 1e6:.1f} M"]
        for times in TEXTS:
            runs = kept.get((label, times), [])
            cells += [f"{runs[0]['rate']:g}", spread([run["losses"][-1] for run in runs])] if runs else ["–", "–"]
            cells += [spread([run["loss"][text] for run in runs]) if runs else "–" for text in ("test", "ood")]
        lines.append(cells)
    return table(head, lines)


def against_table(kept: Chosen) -> str:
    """Returns the looped arms less the plain ones on `test`, with the interval over documents, over seeds, and each seed."""
    out = []
    for label in LOOPED:
        for rival in RIVALS:
            for times in TEXTS:
                runs, others = kept.get((label, times), []), kept.get((rival, times), [])
                if cells := against(runs, others):
                    out.append([label, rival, f"{times} ×", *cells])
    return table(["arm", "less", "text read", "test (95 % over documents)", "95 % over seeds", "by seed", "decided"], out)


def against(runs: Sequence[Result], others: Sequence[Result]) -> list[str]:
    """Returns two arms' difference on `test`: with the interval over documents, over seeds, each seed, and what is decided; nothing
    where they share no seed."""
    both = pooled(runs, others, "test")
    if both is None:
        return []
    low, high = both.over_seeds
    several = len(both.seeds) > 1
    word = {"lower": "ahead", "higher": "behind"}.get(both.verdict, "undecided") if several else "one seed"
    spans = f"{difference(low)} to {difference(high)}" if several else "–"
    return [signed(both.difference, both.low, both.high), spans, by_seed(both.of_seeds), word]


def prices(kept: Chosen, label: str, times: int) -> dict[int, float]:
    """Returns what reading a text `times` over costs an arm against as many tokens of fresh text, by seed, in nats on `test`."""
    fresh = {run["seed"]: run["loss"]["test"] for run in kept.get((label, 1), [])}
    return {run["seed"]: run["loss"]["test"] - fresh[run["seed"]] for run in kept.get((label, times), []) if run["seed"] in fresh}


def price_table(kept: Chosen) -> str:
    """Returns what re-reading costs each arm, and by how much less than the plain arms it costs the looped ones."""
    repeated = [times for times in TEXTS if times > 1]
    head = ["arm", *[f"{times} × less 1 ×" for times in repeated]]
    head += [f"{times} ×: less that of {rival} (95 % over seeds)" for times in repeated for rival in RIVALS[:2]]
    out = []
    for label in MAIN:
        own = {times: prices(kept, label, times) for times in repeated}
        if not any(own.values()):
            continue
        cells = [label, *[f"{difference(_mean(own[t]))}; {by_seed(list(own[t].values()))}" if own[t] else "–" for t in repeated]]
        for times in repeated:
            for rival in RIVALS[:2]:
                other = prices(kept, rival, times)
                apart = [own[times][seed] - other[seed] for seed in own[times] if seed in other]
                shown = label != rival and apart
                mean = sum(apart) / len(apart) if apart else 0.0
                told = signed(mean, *over_seeds(apart)) if len(apart) > 1 else f"{difference(mean)} (one seed)"
                cells.append(told if shown else "–")
        out.append(cells)
    return table(head, out)


def whole_table(kept: Chosen) -> str:
    """Returns the arms on all of the text, and what they are made of."""
    out = []
    for label in WHOLE:
        for run in kept.get((label, 4), []):
            sizes = f"{run['parameters'] / 1e6:.2f} M", f"{run['flops'] / 1e6:.1f} M", f"{run['tokens'] / 1e6:.0f} M"
            losses = (run["losses"][-1], *(run["loss"][text] for text in ("valid", "test", "ood")))
            out.append([WHOLE[label], *sizes, f"{run['rate']:g}", str(run["seed"]), *map(number, losses)])
    return table(["arm", "parameters", "FLOPs a token", "tokens read", "rate", "seed", "trained on", "valid", "test", "ood"], out)


def whole_against(kept: Chosen) -> str:
    """Returns the arms on all of the text, pair by pair."""
    arms = {arm: kept.get((label, 4), []) for label, arm in WHOLE.items()}
    out = [[arm, rival, *cells] for arm, rival in WHOLE_PAIRS if (cells := against(arms[arm], arms[rival]))]
    return table(["arm", "less", "test (95 % over documents)", "95 % over seeds", "by seed", "decided"], out)


def depth_table(kept: Chosen) -> str:
    """Returns ASURA's losses by depth, on text that is read once, and how far they are from those of depth 1."""
    first = kept.get((BY_DEPTH[1], 1), [])
    out = []
    for depth, label in BY_DEPTH.items():
        runs = kept.get((label, 1), [])
        if runs:
            cells = [str(depth), f"{runs[0]['parameters'] / 1e6:.2f} M", f"{runs[0]['flops'] / 1e6:.1f} M", f"{runs[0]['rate']:g}"]
            cells += [spread([run["loss"][text] for run in runs]) for text in ("test", "ood")]
            out.append([*cells, *((depth > 1 and against(runs, first)) or ["–"] * 4)])
    head = ["depth", "parameters", "FLOPs a token", "rate", "test", "ood", "test, less depth 1 (95 % over documents)"]
    return table([*head, "95 % over seeds", "by seed", "decided"], out)


def doubling_table(kept: Chosen) -> str:
    """Returns what each doubling of ASURA's depth changes."""
    out = []
    for depth in HALVES:
        runs, half = kept.get((BY_DEPTH[2 * depth], 1), []), kept.get((BY_DEPTH[depth], 1), [])
        if runs and half:
            out.append([f"{2 * depth} less {depth}", *against(runs, half)])
    return table(["depth", "test (95 % over documents)", "95 % over seeds", "by seed", "decided"], out)


def depth_rates(found: Sequence[Result]) -> str:
    """Returns the loss on `valid` of every depth at every rate, text read once, seed 0."""
    at = {(run["label"], run["rate"]): run["loss"]["valid"] for run in found if run["times"] == 1 and run["seed"] == 0}
    lines = [[str(depth), *[number(at.get((label, rate))) for rate in sorted(DEPTH_RATES)]] for depth, label in BY_DEPTH.items()]
    return table(["depth", *[f"{rate:g}" for rate in sorted(DEPTH_RATES)]], lines)


def _mean(values: Mapping[int, float]) -> float:
    return sum(values.values()) / len(values)


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


def slope_table(rates: Mapping[str, Chosen]) -> str:
    """Returns the change with each doubling at the depths' own rate and at another."""
    out = []
    for name, kept in rates.items():
        if found := list(slopes(kept).values()):
            low, high = over_seeds(found)
            spans = f"{difference(low)} to {difference(high)}" if len(found) > 1 else "one seed"
            out.append([name, difference(sum(found) / len(found)), spans, by_seed(found)])
    return table(["rate", "nats a doubling, mean", "95 % over seeds", "by seed"], out)


def plain_table(kept: Chosen) -> str:
    """Returns ASURA at each depth less the plain layers, on text that is read once. At depth 1 no layer runs twice: what is left of
    a lead is that of ASURA's other parts."""
    out = []
    for depth, label in BY_DEPTH.items():
        for rival in RIVALS[:2]:
            if cells := against(kept.get((label, 1), []), kept.get((rival, 1), [])):
                out.append([str(depth), rival, *cells])
    return table(["depth", "less", "test (95 % over documents)", "95 % over seeds", "by seed", "decided"], out)


def page(found: Sequence[Result]) -> str:
    """Returns the whole page."""
    kept, calmer = chosen(found), at_rate(found, min(DEPTH_RATES))
    best = best_rates(found)
    planned = [*rates(), *compared(best), *depths(best), *longer(best), *calm(), *whole_text(best)]
    parts = [
        "# Text that runs out: the same number of tokens from less and less text",
        "`python -m experiments.repeats.tables` made this page. Means over seeds (least to largest). " + RULE,
        "## Rates: loss on `valid`, seed 0; where text is read sixteen times, that of the best validation", rate_table(found),
        "## Losses at each arm's own rate, of those in the table above", loss_table(kept),
        "## Looped less plain", against_table(kept),
        "## At the best validation on `valid`, where runs were validated on the way", stopped_table(stopped(kept)),
        "### Looped less plain", against_table(stopped(kept)),
        "## What reading again costs", price_table(kept),
        "## ASURA by depth, text read once", f"A depth that was not run at both rates stands here at {DEPTH_RATES[0]:g}.",
        depth_table(kept),
        "### What a doubling changes", doubling_table(kept),
        "### A straight line in log2 of the depth, fitted to each seed",
        slope_table({"own": kept, f"{min(DEPTH_RATES):g}": calmer}), "### Less plain layers",
        "*Equal* FLOPs and parameters are those of depth 3, but for 10 %.", plain_table(kept),
        "### Loss on `valid` by rate, seed 0", depth_rates(found),
        f"### All at {min(DEPTH_RATES):g}, the rate of the plain layers", depth_table(calmer), doubling_table(calmer),
        plain_table(calmer),
        "## All of the text, read four times", whole_table(kept), whole_against(kept),
        *page_parts(kept),
        *missing_part(found, {run.name: run for run in planned}.values()),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """Writes table.md and the figures."""
    from experiments.repeats.figures import draw_all

    sources, folder = asked_tables(__doc__)
    found = results(sources, [*rates()], counts)
    (folder / "table.md").write_text(page(found))
    save_all(draw_all(found, chosen(found)), folder)


if __name__ == "__main__":
    main()
