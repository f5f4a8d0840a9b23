"""What pages ask of the rows of the retrofit study that were run twice at one commit: how much chance alone changes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from statistics import mean

from experiments.ouroboros.again_tables import FIRST, SECOND, alike, loss_at
from experiments.ouroboros.answers import TRAINED
from experiments.ouroboros.plan import DIAGONAL, TOKEN
from experiments.ouroboros.rates import arm_of
from experiments.ouroboros.run import DEPTHS, TEXTS
from experiments.pages import Result
from experiments.seeds import over_seeds
from experiments.templates.ouroboros import again, read, second, tried

PAIR = ("run a", "run b")  # of one commit
BASE = (SECOND, *PAIR)  # all runs on the base of the second set
DEEPER = TRAINED[1:]


@cache
def twice() -> dict[tuple[str, int], dict[str, Result]]:
    """Returns all runs of the rows that were run twice, by arm and seed, then by where they are from."""
    rows = alike(read("twice"), tried(), again()).values()
    return {(arm_of(runs[PAIR[0]]), runs[PAIR[0]]["seed"]): runs for runs in rows}


def reach(arm: str, depths: Sequence[int], where: Sequence[str] = PAIR, text: str = "test") -> list[float]:
    """Returns how far the finite losses of one row's runs lie apart, by depth and seed."""
    rows = [[runs[key] for key in where] for (of_arm, _), runs in twice().items() if of_arm == arm]
    losses = [[loss_at(run, text, depth) for run in runs] for depth in depths for runs in rows]
    finite = [[*filter(math.isfinite, each)] for each in losses]
    return [max(each) - min(each) for each in finite]


def above_first(arm: str, *depths: int) -> list[float]:
    """Returns how far each later run of seed 1 is above the first set's on `test`."""
    runs = twice()[arm, 1]
    later = [run for key, run in runs.items() if key != FIRST]
    return [loss_at(run, "test", depth) - loss_at(runs[FIRST], "test", depth) for depth in depths for run in later]


def parted(place: int) -> list[float]:
    """Returns how far the training losses of runs a and b of reading each token lie apart in some ten updates, by seed."""
    curves = [[runs[key]["losses"][place] for key in PAIR] for (arm, _), runs in twice().items() if arm == TOKEN]
    return [abs(a - b) for a, b in curves]


def in_place(where: str, text: str, depth: int | None) -> list[float]:
    """Returns reading each token less the static diagonal by seed, with these runs of the rows run twice, at a depth or (None) at
    the depth of each arm that has the least mean loss of those where all runs are finite."""
    arms = [
        {run["seed"]: twice()[arm, run["seed"]][where] if (arm, run["seed"]) in twice() else run for run in second()[arm]}
        for arm in (TOKEN, DIAGONAL)
    ]
    means = [{at: mean(loss_at(run, text, at) for run in runs.values()) for at in DEPTHS} for runs in arms]
    best = [min((value, at) for at, value in of.items() if math.isfinite(value))[1] for of in means]
    one, other = best if depth is None else (depth, depth)
    return [loss_at(run, text, one) - loss_at(arms[1][seed], text, other) for seed, run in arms[0].items()]


def stands(where: str, side: str) -> list[int | None]:
    """Returns the depths (None: best depths) at which reading each token stands so with these runs, on both texts, over seeds."""
    found: list[int | None] = []
    for depth in (*DEPTHS, None):
        intervals = [over_seeds(in_place(where, text, depth)) for text in TEXTS]
        if all(high < 0 if side == "ahead" else low > 0 for low, high in intervals):
            found.append(depth)
    return found
