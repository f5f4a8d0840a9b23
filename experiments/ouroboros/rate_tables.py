"""The page and figures of the retrofit study's arms, each at its own rate, from the rows alone.

    python -m experiments.ouroboros.rate_tables R/rates.jsonl R/runs.jsonl R       # R: experiments/results/ouroboros

The second file gives the ends of the gap: the truncated model and the full one, on the same passages.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from experiments.ouroboros.answers import answer, named
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
)
from experiments.ouroboros.run import DEPTHS, TEXTS
from experiments.ouroboros.tables import Pairs, Runs, all_pairs, answers_table
from experiments.pages import (
    Result,
    asked_tables,
    by_label,
    by_seed,
    missing_part,
    number,
    percent,
    results,
    save_all,
    signed,
    spread,
    table,
)
from experiments.seeds import RULE, best_depth, mean_loss, reports
from loopwright.plot.drawing import Axes, Curve, Drawing, figure, lines
from loopwright.plot.style import COLOURS

MOST_SHOWN = 6.0  # nats
ASKED = ((CONTROLLER, BLIND), (TOKEN, BLIND), (NORMED, BLIND))
RIVALS = ((CONTROLLER, DIAGONAL), (TOKEN, DIAGONAL), (BLIND, DIAGONAL))
PAIRS = (
    *ASKED, *RIVALS, (CONTROLLER, STATIC), (TOKEN, STATIC), (BLIND, STATIC),
    (DIAGONAL, STATIC), (DIAGONAL, GATE), (BLIND, GATE), (TOKEN, CONTROLLER), (PUBLISHED, BLIND), (LEAKING, CONTROLLER),
    (TOKEN, ONCE), (STATIC, ONCE),
)  # fmt: skip


def planned(found: Sequence[Result]) -> Iterator[Row]:
    """All rows that the plan has for the rates that were chosen."""
    best = best_rates(found)
    yield from grid(ARMS)
    yield from tuned(ARMS, SEEDS, best)
    yield from grid(MORE)
    yield from tuned(MORE, SEEDS, best)
    yield from tuned(CLOSE, FURTHER, best)


def as_planned(every: Sequence[Result], plan: Callable[[Sequence[Result]], Iterator[Row]]) -> tuple[list[Result], list[Row]]:
    """Returns the rows of grid and seeds in the order of their plan, and the plan."""
    found = [run for run in every if run["group"] in (GRID, TUNED)]
    rows = list(plan(found))
    place = {row.name: number for number, row in enumerate(rows)}
    return sorted(found, key=lambda run: place.get(run["name"], len(place))), rows


def at_own_rates(found: Sequence[Result], rates: Sequence[float] = RATES) -> Runs:
    """Returns the runs at the rates that were chosen, by arm, seeds in order."""
    best = best_rates(found, rates)
    own = [run for run in found if run["group"] == TUNED and run["rate"] == best.get(arm_of(run))]
    return by_label({**run, "label": arm_of(run)} for run in own)


def grid_table(found: Sequence[Result]) -> str:
    """Returns the loss on `valid` of every arm at every rate, the least in bold."""
    tried = rates_of(found)
    shown = sorted({rate for losses in tried.values() for rate in losses})
    lines = []
    for arm, losses in tried.items():
        least = min(losses.values())
        cells = [number(losses.get(rate, math.nan)) if losses.get(rate) != math.inf else "diverged" for rate in shown]
        lines.append([arm, *[f"**{cell}**" if losses.get(r) == least else cell for r, cell in zip(shown, cells, strict=True)]])
    return table(["arm", *[f"{rate:g}" for rate in shown]], lines)


def skipped_table(found: Sequence[Result]) -> str:
    """Returns how many of the updates each run skipped, its loss or gradient not being finite, for the arms in which any did."""
    counts: dict[str, dict[str, int]] = {}
    for run in found:
        what = f"{run['rate']:g}, seed {run['seed']}"
        counts.setdefault(arm_of(run), {})[what] = run.get("skipped", 0)
    lines = [[arm, "; ".join(f"{what}: {n}" for what, n in each.items())] for arm, each in counts.items() if any(each.values())]
    return table(["arm", "updates skipped by rate and seed"], lines) if lines else "No update was skipped."


def at_edge(found: Sequence[Result], rates: Sequence[float] = RATES) -> list[str]:
    """Returns the arms whose best rate is the least or the largest that was tried."""
    losses = rates_of(found)
    return [f"{arm} ({rate:g})" for arm, rate in best_rates(found, rates).items() if rate in (min(losses[arm]), max(losses[arm]))]


def recovered(runs: Sequence[Result], ends: Runs, text: str) -> float:
    """Returns the share of the gap from the truncated to the full model that a row recovers at its best depth, mean of seeds."""
    if not ends.get(FULL) or not ends.get(TRUNCATED):
        return math.nan
    found, full, short = (reports(each, text) for each in (runs, ends[FULL], ends[TRUNCATED]))
    top, bottom = mean_loss(short, short[0].depth[0]), mean_loss(full, best_depth(full))
    return (top - mean_loss(found, best_depth(found))) / (top - bottom)


def loss_table(runs: Runs, ends: Runs, text: str) -> str:
    """Returns the loss of each arm at its rate: by depth, at its best with the range of the seeds, and what it recovers."""
    head = ["arm", "rate", "seeds", "trained", *[f"depth {depth}" for depth in DEPTHS], "best depth: mean (range)", "gap recovered"]
    lines = []
    for label, of_label in runs.items():
        found, first = reports(of_label, text), of_label[0]
        depth = best_depth(found)
        lines.append([
            named(label, of_label), f"{first['rate']:g}", str(len(of_label)), f"{first['trainable']:,}",
            *[number(mean_loss(found, each)) for each in DEPTHS],
            f"{depth}: {spread([mean_loss([each], depth) for each in found])}", percent(recovered(of_label, ends, text)),
        ])  # fmt: skip
    return table(head, lines)


def pair_table(pairs: Pairs, text: str) -> str:
    """Returns the pairs on one text: the question's and the rival's at each equal depth, all with each arm at its best."""
    head = ["first", "second", "depths", "difference (95 %, documents)", "over seeds (95 %)", "by seed", "first's loss is"]
    lines = []
    for names, found in pairs.items():
        for depth, on_texts in found.items():
            each = on_texts.get(text)
            if each is None or (depth is not None and names not in (*ASKED, *RIVALS)):
                continue
            depths = f"best: {each.depths[0]}, {each.depths[1]}" if depth is None else f"both {depth}"
            low, high = each.over_seeds
            alone = len(each.seeds) == 1  # decides nothing
            over = "–" if alone else f"{number(low, 4)} to {number(high, 4)}"
            verdict = "one seed" if alone else each.verdict
            told = [signed(each.difference, each.low, each.high), over, by_seed(each.of_seeds), verdict]
            lines.append([*names, depths, *told])
    return table(head, lines)


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


def drawings(found: Sequence[Result], pairs: Pairs) -> dict[str, Drawing]:
    """Returns the figures that there are rows for, by name."""
    made = {"rates": partial(rate_curves, found)} if rates_of(found) else {}
    against = {first: pairs[first, second] for first, second in ASKED if (first, second) in pairs}
    if against:
        made["own-rates"] = partial(difference_by_depth, against, than="the blind controller's", depths=DEPTHS[1:])
    return {name: draw() for name, draw in made.items()}


def rules(found: Sequence[Result], rates: Sequence[float] = RATES) -> str:
    """Returns the sentences that say what the numbers are."""
    lines = [
        RULE,
        "Rates: the least loss on `valid` (128 passages) at the best of the depths trained, seed 0, which is not used again.",
        f"Best at an end of what was tried: {', '.join(at_edge(found, rates)) or 'none'}.",
        "Losses of a document's passages are summed before rows are written: pairs are of documents.",
        "† sees the future: its one-pass loss is not a likelihood.",
    ]
    return "\n".join(f"- {line}" for line in lines)


def main() -> None:
    """Writes rates.md and the figures."""
    sources, folder = asked_tables(__doc__)
    every = results(sources, ())
    found, plan = as_planned(every, planned)
    ends, runs = by_label(run for run in every if run["group"] == "references"), at_own_rates(found)
    pairs = all_pairs(runs, PAIRS)
    page = ["# The retrofit study, each arm at its own rate", "`python -m experiments.ouroboros.rate_tables` made this page."]
    page += ["## How to read it", rules(found), "## Loss on valid by rate", grid_table(found), "## Updates that were not finite"]
    page += [skipped_table(found), "## Does reading the input help?"]
    for first, second in ASKED:
        said = answer({depth: each for depth, each in pairs.get((first, second), {}).items() if depth is not None})
        page.append(f"`{first}` against `{second}`: **{said}**")
    page.append(answers_table(pairs))
    for text in TEXTS:
        page += [f"## {text}: loss", loss_table(runs, ends, text), f"## {text}: pair by pair", pair_table(pairs, text)]
    later = "What is not in this set may be in the second one, which is read apart: [again.md](again.md)."
    (folder / "rates.md").write_text("\n\n".join([*page, *missing_part(found, plan), later]) + "\n")
    for path in [folder / "rates.md", *save_all(drawings(found, pairs), folder)]:
        print(path)


if __name__ == "__main__":
    main()
