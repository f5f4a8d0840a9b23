"""The parts of the page about depth: hops at random depth, swaps, and the engine's exit rules by how hard a row is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from experiments.hops.plan import ARMS, HARDNESS, SWAPS_OWN
from experiments.hops.reading import (
    RATE,
    TRAINED,
    at_depth,
    best_anywhere,
    deepest,
    exact_of,
    last_valid,
    mean_exact,
    rate,
    solved_at,
    solved_hops,
)
from experiments.pages import Result, by_label, number, table
from experiments.seeds import over_seeds

BEYOND = (8, 12, 16, 32)
CHAIN_DEPTHS = (4, 8, 16, 32, 64, 80)
FAR = (24, 32, 48, 64)
CHAIN_HOW = (
    "A start value and swaps of five values, with an answer after each; 16 swaps were trained, up to 64 are asked in 500 rows. A "
    "number of swaps is *solved* where it and all smaller ones that were measured (1 to 16, 24, 32, 48, 64) are right on at least "
    "95 % of the rows. A guess is right on a fifth. Seeds stand side by side. The rate is 0.001 "
    "where no other is named."
)
EXIT_HOW = (
    "Mean steps and exact match (%) of answers that leave the loop by a rule of the engine, the mean over seeds; *easy* is 1 to 5 "
    "hops or swaps, *middle* 6 to 10, *hard* 11 to 16, *beyond* what was not trained (24 and 32 hops; 24, 32, 48 and 64 swaps). At "
    "full depth an answer takes all the steps allowed. Rules have the engine's own limits; for entropy a stricter one, "
    "chosen on these rows, is shown too."
)


def apart(points: Sequence[float]) -> list[str]:
    """Returns differences in points by seed, their mean with its interval, and whether it is decided."""
    low, high = over_seeds(points)
    mean = f"{number(sum(points) / len(points), 2)} ({number(low, 2)} to {number(high, 2)})"
    verdict = "decided" if low > 0 or high < 0 else "undecided"
    return [" / ".join(number(value, 2) for value in points), mean, verdict if len(points) > 1 else "one seed"]


def models(found: Iterable[Result], *groups: str) -> dict[str, list[Result]]:
    """Returns the runs of some groups by arm and label, seeds in order."""
    chosen = [run | {"label": f"{run['arm']}, {run['label']}"} for run in found if run["group"] in groups]
    return by_label(chosen)


def trained_mean(result: Result, depth: int) -> float:
    """Returns exact match in the mean of all trained numbers of hops or swaps, at a depth."""
    return sum(at_depth(result, hops, depth) for hops in TRAINED) / len(TRAINED)


def seeds(values: Iterable[float]) -> str:
    """Returns shares in percent, seeds side by side."""
    return " / ".join(f"{100 * value:.4g}" for value in values)


def random_table(found: Iterable[Result]) -> str:
    """Returns the looped layer at a fixed depth, at random depth and at a grown one: what is solved at some depths."""
    head = [
        "1⊗8", "seeds", "hops solved at depth 8", "at depth 12",
        *(f"mean of 1 to 16 hops (%) at depth {depth}" for depth in BEYOND), "24 and 32 hops at the best of all depths",
    ]  # fmt: skip
    fixed = [run for run in found if run["group"] == "compared" and run["arm"] == "1⊗8"]
    arms = {"fixed depth of 8": fixed, **models(found, "random", "grown")}
    return table(head, (
        [
            name.removeprefix("1⊗8, "), ", ".join(str(run["seed"]) for run in runs),
            *(" / ".join(str(solved_at(run, depth)) for run in runs) for depth in (8, 12)),
            *(seeds(trained_mean(run, depth) for run in runs) for depth in BEYOND),
            "; ".join(seeds(best_anywhere(run, hops) for run in runs) for hops in (24, 32)),
        ]
        for name, runs in arms.items() if runs
    ))  # fmt: skip


def random_pairs(found: Iterable[Result]) -> str:
    """Returns random depth less the fixed depth at some depths, paired by seed."""
    fixed = {run["seed"]: run for run in found if run["group"] == "compared" and run["arm"] == "1⊗8"}
    both = [(run, fixed[run["seed"]]) for run in found if run["group"] == "random" and run["seed"] in fixed]
    lines = []
    for depth in BEYOND if both else ():
        points = [100 * (trained_mean(a, depth) - trained_mean(b, depth)) for a, b in both]
        lines.append([f"depth {depth}", *apart(points)])
    return table(["random depth less fixed depth, mean of 1 to 16 hops", "points, by seed", "mean (95 % over seeds)", ""], lines)


def swap_models(found: Iterable[Result]) -> dict[str, list[Result]]:
    """Returns the models of swaps at the recipe's rate, and 1⊗8 and plain 8 at their own as well."""
    arms = models(found, "chain", "chain_rates")
    return {name: runs for name, runs in arms.items() if rate(runs[0]) in (RATE, SWAPS_OWN)}


def chain_table(found: Iterable[Result]) -> str:
    """Returns what each model of swaps solves at its trained depth and at others; the rate is 1e-3 where no other is named."""
    head = [
        "model", "parameters", "FLOPs a token", "seeds", "swaps solved at the trained depth", "mean of 1 to 16 (%)",
        *(f"solved at depth {depth}" for depth in CHAIN_DEPTHS), *(f"{swaps} swaps at the best of all depths (%)" for swaps in FAR),
    ]  # fmt: skip
    lines = []
    for name, runs in swap_models(found).items():
        one = runs[0]
        looped = ARMS[one["arm"]][1] > 1
        lines.append([
            name, f"{one['parameters']:,}", f"{one['flops'] / 1e6:.1f} M", ", ".join(str(run["seed"]) for run in runs),
            " / ".join(str(solved_hops(run)) for run in runs), seeds(mean_exact(run) for run in runs),
            *(" / ".join(str(solved_at(run, depth)) for run in runs) if looped else "" for depth in CHAIN_DEPTHS),
            *(seeds(best_anywhere(run, swaps) for run in runs) for swaps in FAR),
        ])  # fmt: skip
    return table(head, lines)


def chain_pairs(found: Iterable[Result]) -> str:
    """Returns differences of models of swaps at their trained depths, at the recipe's rate, paired by seed."""
    arms = models(found, "chain")
    pairs = (
        ("1⊗8, all in sight", "plain 8, all in sight"), ("1⊗8, all in sight", "plain 1, all in sight"),
        ("1⊗16, window 2", "plain 16, window 2"), ("1⊗8, all in sight, depth 4 to 12", "1⊗8, all in sight"),
        ("1⊗16, window 2, depth 8 to 24", "1⊗16, window 2"),
    )  # fmt: skip
    lines = []
    for first, second in pairs:
        others = {run["seed"]: run for run in arms.get(second, ())}
        both = [(run, others[run["seed"]]) for run in arms.get(first, ()) if run["seed"] in others]
        if both:
            lines.append([f"{first} less {second}", *apart([100 * (mean_exact(a) - mean_exact(b)) for a, b in both])])
    return table(["mean of 1 to 16 swaps, rate 0.001", "points, by seed", "mean (95 % over seeds)", ""], lines)


def swaps_by_rate(found: Iterable[Result], arm: str) -> dict[float, list[Result]]:
    """Returns the runs of an arm that sees all tokens by rate, seeds in order; the rate of the least loss with seed 0 first."""
    runs = [run for run in found if run["arm"] == arm and run["label"] in ("all in sight", f"all in sight, rate {rate(run):g}")]
    rates = {each: sorted((run for run in runs if rate(run) == each), key=lambda run: run["seed"]) for each in map(rate, runs)}
    first = {each: last_valid(found[0]) for each, found in rates.items() if found[0]["seed"] == 0}
    return {each: rates[each] for each in sorted(first, key=lambda each: first[each])}


def chain_rate_table(found: Iterable[Result]) -> str:
    """Returns the arms of equal FLOPs at every rate, the best of seed 0 by loss on `valid` in bold, their difference at it, and the
    looped one at twice its trained depth less itself."""
    lines, own = [], {}
    for arm in ("1⊗8", "plain 8"):
        rates = swaps_by_rate(found, arm)
        own[arm] = next(iter(rates.values()), [])
        for each, runs in sorted(rates.items()):
            mark = "**" if runs is own[arm] and len(rates) > 1 else ""
            losses = " / ".join(f"{last_valid(run):.4f}" for run in runs)
            cells = [f"{each:g}", losses, " / ".join(str(solved_hops(run)) for run in runs), seeds(map(mean_exact, runs))]
            lines.append([arm, *(f"{mark}{cell}{mark}" for cell in cells)])
    rates_part = table(["all in sight", "rate", "loss on `valid`, by seed", "swaps solved", "mean of 1 to 16 (%)"], lines)
    others = {run["seed"]: run for run in own["plain 8"]}
    both = [(run, others[run["seed"]]) for run in own["1⊗8"] if run["seed"] in others]
    if not both:
        return rates_part
    pairs = [["1⊗8 less plain 8, each at its own rate", *apart([100 * (mean_exact(a) - mean_exact(b)) for a, b in both])]]
    for each, runs in sorted(swaps_by_rate(found, "1⊗8").items()):
        pairs.append([f"1⊗8 at depth 16 less itself at depth 8, rate {each:g}", *apart(deeper(runs))])
    return rates_part + "\n\n" + table(["mean of 1 to 16 swaps", "points, by seed", "mean (95 % over seeds)", ""], pairs)


def deeper(runs: Iterable[Result], depth: int = 16, trained: int = 8) -> list[float]:
    """Returns what a depth gains over the trained one in the mean of all trained numbers of swaps, in points by seed."""
    return [100 * (trained_mean(run, depth) - trained_mean(run, trained)) for run in runs]


def exit_table(found: Iterable[Result]) -> str:
    """Returns mean steps and exact match by group of every looped model whose exits were measured."""
    head = ["model", "seeds", "at most", "rule", *HARDNESS]
    lines = []
    for task, arms in (("hops", models(found, "random", "grown", "own")), ("swaps", swap_models(found))):
        for name, runs in arms.items():
            for limit in runs[0]["exits"]:
                shown = [f"{task}: {name}", ", ".join(str(run["seed"]) for run in runs), limit]
                lines.append([*shown, "full depth", *(full_depth(runs, group, int(limit)) for group in HARDNESS)])
                lines += [
                    [*shown, rule, *(left_by(runs, rule, group, limit) for group in HARDNESS)] for rule in runs[0]["exits"][limit]
                ]
    return table(head, lines)


def full_depth(runs: Sequence[Result], group: str, limit: int) -> str:
    """Returns the steps and the exact match of a group where every answer takes all steps, the mean over seeds."""
    return f"{limit}; {100 * sum(exact_of(run, group, limit) for run in runs) / len(runs):.1f}"


def left_by(runs: Sequence[Result], rule: str, group: str, limit: str) -> str:
    """Returns the mean steps and the exact match of a group under a rule, the mean over seeds."""
    steps, exact = exit_means(runs, rule, group, limit)
    return f"{steps:.1f}; {100 * exact:.1f}"


def exit_means(runs: Sequence[Result], rule: str, group: str, limit: str | None = None) -> tuple[float, float]:
    """Returns mean steps and exact match of a group under a rule, over seeds; at most the deepest trained steps where no limit is
    given."""
    found = [run["exits"][limit or str(deepest(run))][rule][group] for run in runs]
    return sum(steps for steps, _ in found) / len(found), sum(exact for _, exact in found) / len(found)
