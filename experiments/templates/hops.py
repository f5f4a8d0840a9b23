"""What pages ask of the rows on hops: looped and plain arms, hops and depths beyond those trained."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cache

from experiments.hops.depth_tables import trained_mean
from experiments.hops.plan import ARMS, OWN, RATES
from experiments.hops.reading import (
    RATE,
    TRAINED,
    at_depth,
    at_own_depth,
    at_own_rates,
    best_anywhere,
    by_arm,
    mean_exact,
    solved_at,
    solved_hops,
    steps_needed,
)
from experiments.pages import Result
from experiments.templates.rows import of, rows_of
from experiments.templates.words import Gaps

LOOPED, PLAIN = "1⊗8", "plain 8"
OURS = ("1⊗8", "2⊗4")
SHOWN = (*OURS, "plain 8", "plain 1", "plain 2")
SETTLED = (1, 2, 4, 8, 12, 16)  # hops whose steps are shown
FAR = (24, 32)  # hops that were not trained
GUESS = 1 / 4  # of rows: there are four letters
ANSWERED = 1 / 3  # of rows: hops that a model right on fewer does not answer
LEARNED = 0.1  # loss on the validation rows


@cache
def found() -> list[Result]:
    """Returns all rows of the study."""
    return rows_of("hops/runs.jsonl")


@cache
def arms_of() -> dict[str, list[Result]]:
    """Returns the runs of the comparison by arm, each at its own rate."""
    return at_own_rates(found())


def group(name: str) -> list[Result]:
    """Returns the rows of a group, seeds in order."""
    return sorted((row for row in found() if row["group"] == name), key=lambda row: int(row["seed"]))


@cache
def compared() -> dict[str, list[Result]]:
    """Returns the runs at the rate of the recipe by arm."""
    return by_arm(row for row in found() if row["group"] == "compared")


def longer(arm: str) -> list[Result]:
    """Returns the runs of an arm with more updates."""
    return by_arm(row for row in found() if row["group"] == "longer")[arm]


def more_updates(arm: str) -> float:
    """Returns how many times the updates these have; their training must cost the FLOPs of the looped arm of their parameters."""
    runs, (looped,) = longer(arm), [arms_of()[each] for each in OURS if parameters(each, arm) == 1]
    spent = [run["updates"] * run["flops"] for run in (runs[0], looped[0])]
    if abs(spent[0] / spent[1] - 1) >= 0.01:
        raise ValueError(f"{arm}: more updates do not cost the FLOPs of the looped arm")
    return float(runs[0]["updates"] / looped[0]["updates"])


def less(first: Sequence[Result], second: Sequence[Result]) -> Gaps:
    """Returns one arm less another in mean exact match (points), paired by seed."""
    others = {run["seed"]: run for run in second}
    both = [(run, others[run["seed"]]) for run in first if run["seed"] in others]
    return Gaps(tuple(100 * (mean_exact(a) - mean_exact(b)) for a, b in both))


def ratio(what: str, first: Sequence[Result], second: Sequence[Result]) -> float:
    """Returns how many times the parameters or FLOPs of some runs others have."""
    return float(first[0][what] / second[0][what])


def dearer(first: str, second: str) -> float:
    """Returns how many times the FLOPs of another arm an arm has."""
    return ratio("flops", arms_of()[first], arms_of()[second])


def parameters(first: str, second: str) -> float:
    """Returns how many times its parameters."""
    return ratio("parameters", arms_of()[first], arms_of()[second])


def solved(runs: Sequence[Result]) -> list[int]:
    """Returns how many of the trained hops (or swaps) are solved, seed by seed."""
    return [min(solved_hops(run), TRAINED[-1]) for run in runs]


def all_solve(arm: str) -> int:
    """Returns how many hops all seeds of an arm solve; it is an error where they differ."""
    (count,) = {solved_hops(run) for run in arms_of()[arm]}
    return count


def means(runs: Sequence[Result], depth: int | None = None) -> list[float]:
    """Returns the mean of 1 to 16 hops (or swaps) in percent, seed by seed, at the trained depth where none is given."""
    return [100 * (mean_exact(run) if depth is None else trained_mean(run, depth)) for run in runs]


def at(runs: Sequence[Result], hops: int) -> list[float]:
    """Returns exact match in percent at a number of hops, at the trained depth."""
    return [100 * at_own_depth(run)[hops] for run in runs]


def rows() -> int:
    """Returns how many rows each test has."""
    (count,) = {test["rows"] for runs in arms_of().values() for run in runs for test in run["tests"].values()}
    return int(count)


def far_at_own() -> float:
    """Returns the best exact match of the looped arms beyond the trained hops, at the trained depth."""
    return max(at_own_depth(run)[hops] for arm in OURS for run in arms_of()[arm] for hops in FAR)


def asked_far(name: str = "") -> list[Result]:
    """Returns the runs that were asked for hops beyond the trained ones, of one group where it is named."""
    runs = [row for row in found() if "32" in row["tests"] and not row["group"].startswith("chain")]
    return [row for row in runs if name in ("", row["group"])]


def far(name: str = "") -> float:
    """Returns the best exact match of any looped run there at any depth."""
    return _best(row for row in asked_far(name) if ARMS[row["arm"]][1] > 1)


def _best(rows: Iterable[Result]) -> float:
    return max(best_anywhere(row, hops) for row in rows for hops in FAR)


def deepest() -> int:
    """Returns the deepest depth at which looped runs were asked for them."""
    (depth,) = {test["depth"][-1] for row in asked_far() if ARMS[row["arm"]][1] > 1 for test in row["tests"].values()}
    return int(depth)


def none_far() -> bool:
    """Whether no run, looped or plain, answers hops beyond the trained ones at any depth."""
    return _best(asked_far()) < ANSWERED


def times_smaller() -> int:
    """Returns how many times fewer parameters the looped layer has than eight layers, which solve the same hops at equal FLOPs."""
    if {all_solve(LOOPED), all_solve(PLAIN)} != {TRAINED[-1]} or dearer(LOOPED, PLAIN) != 1:
        raise ValueError("one layer run eight times does not solve all that eight layers solve at equal FLOPs")
    return round(parameters(PLAIN, LOOPED))


def learned_at(arm: str) -> list[int]:
    """Returns the update from which on the loss on the validation rows stays small, seed by seed."""
    found = []
    for row in compared()[arm]:
        high = max((place for place, (_, loss) in enumerate(row["valid"]) if loss >= LEARNED), default=-1)
        found.append(int(row["valid"][high + 1][0]) + 1)  # updates are numbered from 0
    return found


def later(arm: str) -> str:
    """Returns with how many seeds an arm learned later than eight layers."""
    pairs = list(zip(learned_at(arm), learned_at(PLAIN), strict=True))
    return of(sum(a > b for a, b in pairs), len(pairs))


def settled(arm: str, hops: int) -> list[int]:
    """Returns from which step on a number of hops is solved, seed by seed, each arm at its own rate."""
    return [step for run in arms_of()[arm] if (step := steps_needed(run, hops)) is not None]


def enough(hops: int) -> str:
    """Returns how many layers are known to be enough."""
    return f"{2 + math.log2(hops):.3g}"


def later_than_enough() -> float:
    """Returns how much later than that sixteen hops settle, with the seed that is first."""
    return min(settled(LOOPED, 16)) - 2 - math.log2(16)


def first_later() -> str:
    """Returns with how many seeds one hop settles later than two."""
    pairs = list(zip(settled(LOOPED, 1), settled(LOOPED, 2), strict=True))
    return of(sum(a > b for a, b in pairs), len(pairs))


def falls() -> list[float]:
    """Returns how many points of the mean of trained hops random depth loses from depth 12 to 32, seed by seed."""
    return [a - b for a, b in zip(means(group("random"), 12), means(group("random"), 32), strict=True)]


def single_falls(whole: bool) -> list[float]:
    """Returns the most that a single number of hops loses so, of seeds that had learned all hops or of the others."""
    runs = [run for run in group("random") if (solved_at(run, 12) >= TRAINED[-1]) is whole]
    return [max(100 * (at_depth(run, hops, 12) - at_depth(run, hops, 32)) for hops in TRAINED) for run in runs]


def most_learned() -> int:
    """Returns how many hops the seed at random depth that learned the fewest solves at its best depth."""
    return min(max(solved_at(run, depth) for depth in run["tests"]["1"]["depth"]) for run in group("random"))


def rates_at_ends() -> bool:
    """Whether the own rates that are not the recipe's lie at the ends of those tried."""
    tried = (RATE, *RATES)
    return all(each in (min(tried), max(tried)) for each in OWN.values())


def one_seed_chose() -> bool:
    """Whether seed 0 alone chose the rates."""
    return all(run["seed"] == 0 for run in group("rates"))


def at_low_rate(arm: str) -> int:
    """Returns how many hops an arm solves at the lowest rate (seed 0)."""
    (run,) = (run for run in group("rates") if run["arm"] == arm and f"{min(RATES):g}" in run["label"])
    return solved_hops(run)
