"""Cores of one, three and six layers, each row at its own rate, against the same layers run once.

    python -m experiments.ouroboros.cores OUT.jsonl --source BASE --corpus CORPUS --change graph=true --workers 7 --seconds 250

As `experiments.ouroboros.rates`: seed 0 chooses the rate on `valid`, the seeds behind it are measured on `test` and `ood`. Layers
are numbered as in the whole model; of BASE those that no layout keeps are not read (`unpack` of experiments/sft/blocks.py leaves
them out). CORPUS needs two of the training files.
"""

from __future__ import annotations

from experiments.ouroboros.plan import AT_DEPTH, AT_ONE, CORES, looping, running_once
from experiments.ouroboros.rates import SEEDS, begun, grid, tuned

RATES = (4e-3, 1.6e-2)
BEST_LAYERS = (1, AT_ONE)  # of all layouts, the least loss when run once
RIVALS = (running_once(*BEST_LAYERS), running_once(*BEST_LAYERS, longer=True))
ARMS = (*RIVALS, *(looping(size, how) for how in (AT_ONE, AT_DEPTH) for size in CORES))
MORE = tuple(running_once(size, AT_DEPTH) for size in CORES)  # is it the loop or the layers?


def main() -> None:
    """Runs grid and seeds in the order of what they are worth."""
    study = begun(__doc__, RATES)
    study.run(grid(ARMS, RATES))
    study.run([*tuned(ARMS, SEEDS, study.best()), *grid(MORE, RATES)])
    study.run(tuned(MORE, SEEDS, study.best()))


if __name__ == "__main__":
    main()
