"""The page and the figure of the cores of 1, 3 and 6 layers, from the rows alone.

    python -m experiments.ouroboros.core_tables R/cores.jsonl R/runs.jsonl R       # R: experiments/results/ouroboros

The second file gives the ends of the gap.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations

from experiments.ouroboros.answers import decided
from experiments.ouroboros.cores import ARMS, RATES
from experiments.ouroboros.plan import AT_DEPTH, AT_ONE, CORES, ONCE_EQUAL, ONCE_LONGER, Row, looping
from experiments.ouroboros.rate_tables import as_planned, at_own_rates, grid_table, pair_table, recovered, rules, skipped_table
from experiments.ouroboros.rates import SEEDS, best_rates, grid, tuned
from experiments.ouroboros.run import TEXTS
from experiments.ouroboros.tables import Pairs, Runs, all_pairs
from experiments.pages import Result, asked_tables, by_label, missing_part, percent, results, save_all, spread, table
from experiments.seeds import Pooled, best_depth, mean_loss, reports
from loopwright.plot.drawing import MARKERS, Axes, Drawing, panels
from loopwright.plot.style import COLOURS, INK

LOOPED = [looping(size, how) for how in (AT_DEPTH, AT_ONE) for size in CORES]
PAIRS = (
    *((arm, once) for once in (ONCE_EQUAL, ONCE_LONGER) for arm in LOOPED),
    *combinations(LOOPED, 2),
    (ONCE_LONGER, ONCE_EQUAL),
)
TITLES = {ONCE_EQUAL: "equal tokens", ONCE_LONGER: "equal training FLOPs"}


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


def drawings(pairs: Pairs) -> dict[str, Drawing]:
    """Returns the figure of what there are pairs for, by its name: the looped rows against the layers run once."""
    by_rival = {once: {arm: pairs[arm, once][None] for arm in LOOPED if (arm, once) in pairs} for once in TITLES}
    every = [each for found in by_rival.values() for on_texts in found.values() for each in on_texts.values()]
    ends = [end for each in every for end in (each.low, each.high, *each.over_seeds, 0.0)]  # one scale for both panels
    draws = [partial(_against, TITLES[once], found, ends) for once, found in by_rival.items() if found]
    return {"cores": panels(draws, columns=1, height=3.1)} if draws else {}


def _against(title: str, found: Mapping[str, Mapping[str, Pooled]], ends: Sequence[float], axes: Axes) -> None:
    """Draws the differences of each row on each text: thick over documents, thin over seeds, a tick per seed; open: not decided."""
    axes.axvline(0, color=INK, linewidth=1, linestyle=(0, (2, 2)))
    for place, on_texts in enumerate(found.values()):
        told = decided(on_texts) != "not resolved"
        for i, (text, each) in enumerate(on_texts.items()):
            y, colour = place + 0.3 * (i - 0.5), COLOURS[i]
            axes.plot(each.over_seeds, [y, y], color=colour, linewidth=1)
            axes.plot([each.low, each.high], [y, y], color=colour, linewidth=5, solid_capstyle="butt", alpha=0.4)
            axes.plot(each.of_seeds, [y] * len(each.of_seeds), marker="|", markersize=8, color=INK, linestyle="none", linewidth=0.9)
            face = {} if told else {"markerfacecolor": "white"}
            axes.plot([each.difference], [y], marker=MARKERS[i], markersize=6, color=colour, linestyle="none", **face)
            if place == 0:
                axes.plot([], [], marker=MARKERS[i], markersize=6, color=colour, linestyle="none", label=text)
    axes.set_xlim(min(ends) - 0.003, max(ends) + 0.003)
    axes.set_yticks(range(len(found)), [re.sub(r", \d+ steps|placed ", "", label) for label in found])
    axes.set_ylim(len(found) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    axes.set_title(title)
    axes.set_xlabel("loss less that of the layers run once (nats)")


def main() -> None:
    """Writes cores.md and the figure."""
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
    for path in [folder / "cores.md", *save_all(drawings(pairs), folder)]:
        print(path)


if __name__ == "__main__":
    main()
