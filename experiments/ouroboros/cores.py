"""Cores of one, three and six of the same 15 layers, each row at its own rate, against these layers run once.

    python -m experiments.ouroboros.cores OUT.jsonl --source BASE --corpus CORPUS --change graph=true --workers 7 --seconds 250

As `experiments.ouroboros.rates`: seed 0 chooses the rate on `valid`, the seeds behind it are measured on `test` and `ood`. Layers
are numbered as in the whole model; of BASE only LAYERS of plan.py are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from experiments.ouroboros.plan import AT_DEPTH, AT_ONE, CORES, UPDATES, Row, looping
from experiments.ouroboros.rates import SEEDS, at_own_rates, chosen, grid, tuned
from experiments.study import Rows

RATES = (6e-3, 1.2e-2, 2.4e-2)  # LoRA on every kept layer is best at 1.6e-2 and breaks at 4e-2
ARMS = (*UPDATES, *(looping(size, how) for how in (AT_DEPTH, AT_ONE) for size in reversed(CORES)))


def stages(rows: Rows) -> Iterator[Iterable[Row]]:
    """Yields grid and seeds in the order of what they are worth."""
    yield grid(ARMS, RATES)
    yield tuned(ARMS, SEEDS, chosen(rows(), RATES))


STUDY = at_own_rates(__doc__, stages)


if __name__ == "__main__":
    STUDY.main()
