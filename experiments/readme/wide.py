"""What docs/when-to-loop.md and README.md say about the wide-core retrofit at its own rates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

from experiments.ouroboros.rates import GRID, TUNED, arm_of, best_rates, rates_of
from experiments.pages import Result, results
from experiments.readme.rows import RESULTS, WORDS, when
from experiments.seeds import mean_loss, reports
from experiments.sft.wide import EQUAL, LONGER, LOOPED, RATES

RATED, CHOSEN = f"at the best of {WORDS[len(RATES)]} rates each", "(one seed, on the text that chose the rates)"
EARLIER = 5e-4  # the one rate of the runs before


def claims() -> Iterator[str]:
    """Yields what the rows say about the retrofit at other rates, and with seeds."""
    losses, best = rates_of(wide_rows()), own_rate()
    yield f"are best on `valid` at {best:.0e}".replace("e-0", "e-")
    loop, tokens, flops = (f"{losses[arm][best]:.3f}" for arm in (LOOPED, EQUAL, LONGER))
    there = f"the loop has {loop}, the layers run once {tokens} at equal tokens and {flops} at equal FLOPs"
    yield f"{there}: it is {beside_once(by=True)}"
    yield f"At 5e-4 it is {beside_once(EARLIER, by=True)} on the same passages"
    seeds = {arm: [run for run in wide_rows() if run["group"] == TUNED and arm_of(run) == arm] for arm in losses}
    (tokens, read), (flops, longer) = ((told_loss(seeds[arm]), f"{seeds[arm][0]['tokens'] / 1e6:.1f}") for arm in (EQUAL, LONGER))
    alone = not seeds[LOOPED] and len(seeds[EQUAL]) == len(seeds[LONGER]) == 3
    yield when(alone, f"three of each: {tokens} on `test` after {read} million tokens, {flops} after {longer} million")


@cache
def wide_rows() -> list[Result]:
    """Returns the rows of the retrofit at its own rates."""
    return list(results([str(RESULTS / "sft/wide.jsonl")], ()))


def own_rate() -> float:
    """Returns the rate that is the best of every arm; other sentences are due where they differ."""
    (best,) = set(best_rates(wide_rows(), RATES).values())
    return best


def apart(rate: float | None = None) -> list[float]:
    """Returns the looped arm's loss less that of the layers run once at a rate, its best unless told: equal tokens, equal FLOPs."""
    losses, found = rates_of(wide_rows()), own_rate() if rate is None else rate
    return [losses[LOOPED][found] - losses[arm][found] for arm in (EQUAL, LONGER)]


def beside_once(rate: float | None = None, *, bold: bool = False, by: bool = False) -> str:
    """Returns the same in words."""
    return " and ".join(each_beside(rate, bold=bold, by=by))


def each_beside(rate: float | None = None, *, bold: bool = False, by: bool = False) -> list[str]:
    """Returns the same in words, one after the other."""
    told = []
    for far in apart(rate):
        side, size = "ahead" if far < 0 else "behind", f"{abs(far):.3f}"
        told.append(f"**{side}** by {size}" if bold else f"{side} by {size}" if by else f"{size} {side}")
    return told


def cost() -> float:
    """Returns the training FLOPs of the looped arm by those of the layers run once on as many tokens."""
    spent = {arm_of(run): run["flops"] for run in wide_rows() if run["group"] == GRID}
    return spent[LOOPED] / spent[EQUAL]


def told_loss(runs: Sequence[Result]) -> str:
    """Returns the loss on `test` of layers that run once, the mean over seeds."""
    return f"{mean_loss(reports(runs, 'test'), 1):.3f}"
