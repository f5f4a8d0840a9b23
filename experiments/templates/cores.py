"""What pages ask of the retrofit study's rows with cores of 1, 3 and 6 layers, each at its own rate."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

from experiments.ouroboros.core_tables import LOOPED
from experiments.ouroboros.cores import RATES
from experiments.ouroboros.plan import AT_DEPTH, AT_ONE, CORES, LAYERS, ONCE_EQUAL, ONCE_LONGER, PLACES, UPDATES, looping
from experiments.ouroboros.rate_tables import at_own_rates
from experiments.ouroboros.rates import best_rates, rates_of
from experiments.ouroboros.tables import Runs
from experiments.pages import Result
from experiments.seeds import Pooled, paired_p
from experiments.templates import ouroboros
from experiments.templates.ouroboros import OnTexts, read
from experiments.templates.rows import rows_of
from experiments.templates.words import same

BROKEN = 1.0  # nats above the best rate


@cache
def tried() -> list[Result]:
    """Returns all rows."""
    return read("cores")


@cache
def runs() -> Runs:
    """Returns the runs of each row at its own rate."""
    return at_own_rates(tried(), RATES)


def less(row: str, other: str) -> OnTexts:
    """Returns a row less another."""
    return ouroboros.less(row, other, of=runs)


def looped() -> Iterator[tuple[str, int, str, Sequence[int]]]:
    """Yields the looped rows: name, layers of the core, where it is placed, and these layers."""
    for how in (AT_DEPTH, AT_ONE):
        for size in CORES:
            first = LAYERS.index(PLACES[how][size])
            yield looping(size, how), size, how, LAYERS[first : first + size]


def standing(side: str, than: str = ONCE_EQUAL) -> list[str]:
    """Returns the looped rows that stand so against the layers run once."""
    return [arm for arm in LOOPED if less(arm, than).side == side]


def best() -> str:
    """Returns the looped row that is ahead of the layers run once; there must be one alone."""
    (found,) = standing("ahead")
    return found


def lead() -> OnTexts:
    """Returns that row less the layers run once."""
    return less(best(), ONCE_EQUAL)


def behind(than: str = ONCE_LONGER) -> list[Pooled]:
    """Returns all looped rows that are behind the layers run once, decided, less these."""
    return ouroboros.every(less(arm, than) for arm in standing("behind", than))


def over_others() -> list[OnTexts]:
    """Returns the looped row that is ahead less each other one."""
    return [less(best(), arm) for arm in LOOPED if arm != best()]


def most_gained() -> float:
    """Returns the least difference of any looped row from the layers run once at equal tokens: below 0 it is a gain."""
    return min(value for arm in LOOPED for value in less(arm, ONCE_EQUAL).apart)


def every_behind() -> bool:
    """Whether all looped rows are behind at equal training FLOPs, decided."""
    return len(standing("behind", ONCE_LONGER)) == len(LOOPED)


def p() -> list[float]:
    """Returns the p of the lead over its seeds on each text."""
    return [paired_p(each.of_seeds) for each in lead()]


def corrected() -> list[float]:
    """Returns the same times the number of looped rows."""
    return [len(LOOPED) * each for each in p()]


def on_first_alone() -> bool:
    """Whether after that correction the lead is decided on the first text alone."""
    return [each < 0.05 for each in corrected()] == [True, False]


def sizes() -> tuple[int, int]:
    """Returns the trained parameters of the looped rows and of the layers run once."""
    core, once = (same(runs()[label][0]["trainable"] for label in labels) for labels in (LOOPED, UPDATES))
    return core, once


def more_trained() -> float:
    """Returns by how many percent the layers run once have more."""
    core, once = sizes()
    return 100 * (once / core - 1)


def training(label: str) -> float:
    """Returns the training FLOPs of a row, but for a factor that all rows share."""
    return float(runs()[label][0]["flops"] * runs()[label][0]["tokens"])


def cost(than: str = ONCE_EQUAL) -> list[float]:
    """Returns the looped rows' training FLOPs, in those of a row that runs once."""
    return [training(arm) / training(than) for arm in LOOPED]


def longer() -> float:
    """Returns how many times the training FLOPs the longer of the layers run once have."""
    return training(ONCE_LONGER) / training(ONCE_EQUAL)


def own_rate() -> float:
    """Returns the own rate of all rows."""
    return same(best_rates(tried(), RATES).values())


def next_rates() -> list[float]:
    """Returns what another rate costs on `valid`, where it does not break the row."""
    steps = [loss - min(each.values()) for each in rates_of(tried()).values() for loss in each.values()]
    return [step for step in steps if 0 < step < BROKEN]


@cache
def untrained() -> dict[tuple[int, ...], float]:
    """Returns the loss before training by the layers of the core; no layers: each run once."""
    return {tuple(row["core"]): row["loss"] for row in rows_of("ouroboros/places.jsonl")}


def untrained_from(first: int) -> list[float]:
    """Returns that of the cores of one, three and six layers that begin at a layer."""
    return [loss for core, loss in untrained().items() if core[:1] == (first,)]


def least_untrained() -> list[float]:
    """Returns the least of all places, by the size of the core."""
    return [min(loss for core, loss in untrained().items() if len(core) == size) for size in CORES]
