"""The page and the figure of the cores of 1, 3 and 6 layers, from the rows alone.

    python -m experiments.ouroboros.core_tables R/cores.jsonl R/runs.jsonl R       # R: experiments/results/ouroboros

The second file gives the ends of the gap.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import combinations

from experiments.ouroboros.answers import decided
from experiments.ouroboros.cores import ARMS, RATES
from experiments.ouroboros.plan import AT_DEPTH, AT_ONE, CORES, ONCE_EQUAL, ONCE_LONGER, looping
from experiments.ouroboros.rate_tables import ABOUT, at_own_rates, of_grid, planned, rated_parts
from experiments.ouroboros.tables import Pairs, all_pairs
from experiments.seeds import Pooled
from experiments.tables import Page
from loopwright.plot.drawing import MARKERS, Axes, Drawing, panels
from loopwright.plot.style import COLOURS, INK

LOOPED = [looping(size, how) for how in (AT_DEPTH, AT_ONE) for size in CORES]
PAIRS = (
    *((arm, once) for once in (ONCE_EQUAL, ONCE_LONGER) for arm in LOOPED),
    *combinations(LOOPED, 2),
    (ONCE_LONGER, ONCE_EQUAL),
)
TITLES = {ONCE_EQUAL: "equal tokens", ONCE_LONGER: "equal training FLOPs"}


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


PAGE = Page(
    "The retrofit study: cores of 1, 3 and 6 layers", ("ouroboros/cores.jsonl", "ouroboros/runs.jsonl"),
    lambda found: rated_parts(found, PAIRS, RATES), partial(planned, arms=ARMS, rates=RATES),
    lambda found: drawings(all_pairs(at_own_rates(of_grid(found), RATES), PAIRS)), name="cores.md", about=ABOUT,
)  # fmt: skip


if __name__ == "__main__":
    PAGE.main(__doc__, "experiments.ouroboros.core_tables")
