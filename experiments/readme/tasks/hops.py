"""What docs/when-to-loop-tasks.md says about hops and depth at test time."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache

from experiments.hops.depth_tables import trained_mean
from experiments.hops.plan import ARMS, OWN, RATES
from experiments.hops.reading import (
    RATE,
    SOLVED,
    TRAINED,
    at_depth,
    at_own_depth,
    at_own_rates,
    best_anywhere,
    by_arm,
    mean_exact,
    rate,
    solved_at,
    solved_hops,
    steps_needed,
)
from experiments.pages import Result
from experiments.readme.rows import WORDS, interval, line, of, when
from experiments.readme.tasks import exits
from experiments.readme.tasks.exits import found
from experiments.seeds import decided, over_seeds

LOOPED, PLAIN = "1⊗8", "plain 8"
SHOWN = ("1⊗8", "2⊗4", "plain 8", "plain 1", "plain 2")
SETTLED = (1, 2, 4, 8, 12, 16)  # hops whose steps are shown
FAR = (24, 32)  # hops that were not trained
GUESS = 1 / 4  # of rows: there are four letters
ANSWERED = 1 / 3  # of rows: hops that a model right on fewer does not answer
LEARNED = 0.1  # loss on the validation rows


@cache
def arms_of() -> dict[str, list[Result]]:
    """Returns the runs of the comparison by arm, each at its own rate."""
    return at_own_rates(found())


def sizes() -> tuple[str, str]:
    """Returns the parameters of the looped layer and of eight layers, in millions."""
    looped, plain = (f"{arms_of()[arm][0]['parameters'] / 1e6:.2f}" for arm in (LOOPED, PLAIN))
    return looped, plain


def less(first: Sequence[Result], second: Sequence[Result]) -> tuple[float, float, float, int]:
    """Returns one arm less another in mean exact match (points), its interval, and over how many seeds, paired by seed."""
    others = {run["seed"]: run for run in second}
    points = [100 * (mean_exact(run) - mean_exact(others[run["seed"]])) for run in first if run["seed"] in others]
    return sum(points) / len(points), *over_seeds(points), len(points)


def told(first: Sequence[Result], second: Sequence[Result]) -> str:
    """Returns one arm less another in points, with the interval over seeds."""
    mean, low, high, seeds = less(first, second)
    span = "" if seeds == 1 else f" ({interval(low, high, 2)})"
    return f"{mean:+z.2f} points{span}".replace("-", "−")


def side_by_side(first: Sequence[Result], second: Sequence[Result]) -> str:
    """Returns one arm less another in points, seed by seed."""
    points = [100 * (mean_exact(a) - mean_exact(b)) for a, b in zip(first, second, strict=True)]
    return " / ".join(f"{each:+z.2f}" for each in points).replace("-", "−")


def verdict(first: Sequence[Result], second: Sequence[Result]) -> str:
    """Returns over how many seeds a difference of two arms is, and whether it is decided."""
    _, low, high, seeds = less(first, second)
    if seeds == 1:
        return "one seed"
    return f"{WORDS[seeds]} seeds, {'not ' if low <= 0 <= high else ''}decided"


def asked_far() -> list[Result]:
    """Returns the runs that were asked for hops beyond the trained ones."""
    return [row for row in found() if "32" in row["tests"] and not row["group"].startswith("chain")]


def far() -> tuple[float, str]:
    """Returns the best exact match of any looped run at hops beyond the trained ones, at any depth, and the deepest depth."""
    rows = [row for row in asked_far() if ARMS[row["arm"]][1] > 1]
    depths = {test["depth"][-1] for row in rows for test in row["tests"].values()}
    return best_far(rows), " and ".join(map(str, sorted(depths)))


def best_far(rows: Sequence[Result]) -> float:
    """Returns the best exact match of some runs at hops beyond the trained ones, at any depth."""
    return max(best_anywhere(row, hops) for row in rows for hops in FAR)


def none_far() -> bool:
    """Whether no run, looped or plain, answers hops beyond the trained ones at any depth."""
    return best_far(asked_far()) < ANSWERED


def times_smaller() -> int:
    """Returns how many times fewer parameters the looped layer has than eight layers, which solve the same hops at equal FLOPs."""
    looped, plain = arms_of()[LOOPED], arms_of()[PLAIN]
    if any(solved_hops(run) < TRAINED[-1] for run in (*looped, *plain)) or looped[0]["flops"] != plain[0]["flops"]:
        raise ValueError("one layer run eight times does not solve all that eight layers solve at equal FLOPs")
    return round(plain[0]["parameters"] / looped[0]["parameters"])


def same_task() -> str:
    """Returns that the looped layer solves the hops that eight layers solve, at equal FLOPs, with which part of the parameters."""
    return f"solves what eight layers solve, with 1/{times_smaller()} of the parameters and equal FLOPs"


def claims() -> Iterator[str]:
    """Yields what the rows say."""
    (count,) = {test["rows"] for runs in arms_of().values() for run in runs for test in run["tests"].values()}
    yield f"the last letter of {count} rows for each p, and on p = {FAR[0]} and {FAR[1]}, which were not trained"
    yield f"right on at least {100 * SOLVED:.0f} % of their rows. {count} of {count} rows"
    for arm in SHOWN:
        one = arms_of()[arm][0]
        solved = " / ".join(str(min(solved_hops(run), TRAINED[-1])) for run in arms_of()[arm])
        yield line(arm, f"{one['parameters'] / 1e6:.2f} M", f"{one['flops'] / 1e6:.1f} M", solved)
    looped, plain = sizes()
    flops = {arms_of()[arm][0]["flops"] for arm in (LOOPED, "2⊗4", PLAIN)}
    both = f"| 1⊗8 ({looped} M) and 2⊗4 ({arms_of()['2⊗4'][0]['parameters'] / 1e6:.2f} M) | eight layers ({plain} M)"
    yield when(len(flops) == 1, f"{both}, equal FLOPs | **both solve the task**")
    yield same_task()
    yield from brief_claims()
    for ours, theirs, told_as in (("1⊗8", "plain 1", "points in the mean of 1 to 16 hops "), ("2⊗4", "plain 2", "")):
        mean, low, high, _ = less(arms_of()[ours], arms_of()[theirs])
        over = " over seeds" if told_as else ""
        yield when(low > 0, f"{ours} less {theirs}: {mean:.1f} {told_as}({low:.1f} to {high:.1f}{over})")
    for arm in ("1⊗8", "2⊗4"):
        yield f"{arm} less plain 8: {told(arms_of()[arm], arms_of()[PLAIN])}"
    spans = [less(arms_of()[arm], arms_of()[PLAIN]) for arm in ("1⊗8", "2⊗4")]
    yield when(all(low <= 0 <= high for _, low, high, _ in spans), "Neither is decided.")
    at_one = by_arm(row for row in found() if row["group"] == "compared")
    later = sum(learned(a) > learned(b) for a, b in zip(at_one[LOOPED], at_one[PLAIN], strict=True))
    yield f"1⊗8 learned later than plain 8 on {of(later, len(at_one[LOOPED]))} seeds"
    yield from step_claims()
    yield from beyond_claims()
    yield from rate_claims()
    yield from longer_claims()
    yield from random_claims()
    yield from exits.claims()


def brief_claims() -> Iterator[str]:
    """Yields what the first table of the page says about hops at equal parameters and at equal FLOPs."""
    for looped, plain in (("1⊗8", "plain 1"), ("2⊗4", "plain 2")):
        ours, theirs = ({solved_hops(run) for run in arms_of()[arm]} for arm in (looped, plain))
        (most,), (few,) = ours, theirs
        size = f"{arms_of()[looped][0]['parameters'] / 1e6:.2f} M"
        layers = {"plain 1": "one layer", "plain 2": "two layers"}[plain]
        seeds = of(len(arms_of()[looped]), len(arms_of()[looped]))
        against = f"{looped} ({size}) | {layers} run once, equal parameters"
        cost = round(arms_of()[looped][0]["flops"] / arms_of()[plain][0]["flops"])
        yield f"{against} | **loop**: {most} hops solved against {few}, {seeds} seeds, for {cost} times the FLOPs |"
    whole = [solved_hops(run) == TRAINED[-1] for arm in ("1⊗8", "2⊗4", PLAIN) for run in arms_of()[arm]]
    both = [less(arms_of()[arm], arms_of()[PLAIN]) for arm in ("1⊗8", "2⊗4")]
    words = {decided((low, high)) for _, low, high, _ in both}
    apart = " and ".join(f"{abs(mean):.2f}" for mean, *_ in both)
    yield f"all {TRAINED[-1]} hops on {of(sum(whole) // 3, len(whole) // 3)} seeds; {apart} points apart ({' and '.join(words)})"


def beyond_claims() -> Iterator[str]:
    """Yields what is right beyond the trained hops, and what is left of the trained ones at depth 32, each arm at its own rate."""
    own = max(at_own_depth(run)[hops] for arm in ("1⊗8", "2⊗4") for run in arms_of()[arm] for hops in FAR)
    best, depths = far()
    guess = f"at or below a guess ({100 * GUESS:.0f} %"
    yield when(own <= GUESS, f"24 and 32 hops are {guess}; largest {100 * own:.1f} %) at the trained depth")
    yield when(own <= GUESS, f"right on at most {100 * own:.1f} % of the rows at the trained depth, which is {guess})")
    yield f"{100 * best:.1f} % is the largest of any looped run at any depth up to {depths}"
    yield f"At any depth from 1 to {depths} the largest of all looped runs is {100 * best:.1f} %"
    random, grown = (best_far([row for row in asked_far() if row["group"] == group]) for group in ("random", "grown"))
    yield f"24 and 32 hops are not answered at random depth either (at most {100 * random:.1f} % at any depth)"
    yield f"while hops are added (one seed, at most {100 * grown:.1f} %)"
    left = {
        arm: " / ".join(f"{100 * trained_mean(run, 32):.1f}" for run in arms_of()[arm])
        + f" % with {arm} ({rate(arms_of()[arm][0]) * 1e3:g}e-3)"
        for arm in ("1⊗8", "2⊗4")
    }
    yield f"the mean of 1 to 16 hops at depth 32 is {' and '.join(left.values())}"


def settled(arm: str, hops: int) -> list[int | None]:
    """Returns from which step on a number of hops is solved, seed by seed, each arm at its own rate."""
    return [steps_needed(run, hops) for run in arms_of()[arm]]


def step_claims() -> Iterator[str]:
    """Yields from which step on answers are right, by the hops they need, beside the layers that are known to be enough."""
    for arm in ("1⊗8", "2⊗4"):
        cells = [" / ".join(str(step) for step in settled(arm, hops)) for hops in SETTLED]
        yield line(f"step of {arm}", *cells)
    yield line("2 + log₂ p", *(f"{2 + math.log2(hops):.3g}" for hops in SETTLED))
    first, second = settled("1⊗8", 1), settled("1⊗8", 2)
    later = sum(a > b for a, b in zip(first, second, strict=True) if a is not None and b is not None)
    yield f"One hop settles later than two on {of(later, len(first))} seeds of 1⊗8"
    above = min(step - 2 - math.log2(16) for step in settled("1⊗8", 16) if step is not None)
    yield f"Sixteen hops settle {above:g} steps later than 2 + log₂ p"


def rate_claims() -> Iterator[str]:
    """Yields which arms' own rates lie at the ends of those tried."""
    tried = (RATE, *RATES)
    ends = all(each in (min(tried), max(tried)) for each in OWN.values())
    yield when(ends, "The own rates of 2⊗4 (2e-3) and plain 8 (5e-4) lie at the ends of what was tried")
    chose = all(run["seed"] == 0 for run in found() if run["group"] == "rates")
    yield when(chose, "Seed 0, which chose the rates, is one of the three seeds")


def longer_claims() -> Iterator[str]:
    """Yields what the rows say of the arms of fewer FLOPs with more updates."""
    leads, solved = [], []
    for arm, runs in by_arm(row for row in found() if row["group"] == "longer").items():
        (partner,) = (name for name in ("1⊗8", "2⊗4") if arms_of()[name][0]["parameters"] == runs[0]["parameters"])
        looped = arms_of()[partner]
        times = WORDS[runs[0]["updates"] // looped[0]["updates"]]
        yield f"{partner} less {arm} with {times} times the updates: {told(looped, runs)}, {verdict(looped, runs)}"
        solved.append(" / ".join(str(solved_hops(run)) for run in runs))
        gain, low, high, _ = less(runs, arms_of()[arm])
        word = decided((low, high))
        gained = f"gains {gain:.1f} points ({interval(low, high, 1)}, {word})"
        yield f"{arm.capitalize()} with {times} times the updates solves {solved[-1]} hops and {gained}"
        leads.append(less(looped, runs))
    ahead = all(low > 0 and seeds == 3 for _, low, _, seeds in leads)
    both = " and ".join(f"{mean:.1f}" for mean, *_ in leads)
    yield when(
        ahead, f"**loop**: ahead by {both} points (both decided, three seeds), 16 hops solved against {' and '.join(solved)}"
    )


def random_claims() -> Iterator[str]:
    """Yields what the rows say of the looped layer at random depth."""
    random = sorted((row for row in found() if row["group"] == "random"), key=lambda row: row["seed"])
    fixed = by_arm(row for row in found() if row["group"] == "compared")[LOOPED]
    for depth in (8, 32):
        first, second = (" / ".join(f"{100 * trained_mean(run, depth):.1f}" for run in runs) for runs in (random, fixed))
        yield f"{first} % at depth {depth}, where a fixed depth of 8 has {second} %"
    falls = [100 * (trained_mean(run, 12) - trained_mean(run, 32)) for run in random]
    yield f"From depth 12 to 32 the mean of 1 to 16 hops falls by at most {max(falls):.1f} points on any seed"
    learned_all = [solved_at(run, 12) >= TRAINED[-1] for run in random]
    single = [max(100 * (at_depth(run, hops, 12) - at_depth(run, hops, 32)) for hops in TRAINED) for run in random]
    two = max(lost for lost, whole in zip(single, learned_all, strict=True) if whole)
    (third,) = (lost for lost, whole in zip(single, learned_all, strict=True) if not whole)
    yield f"loses at most {two:.1f} points on the two seeds that had learned the task, and up to {third:.1f} on the third"


def learned(row: Result) -> float:
    """Returns the update from which on the loss on the validation rows stays small."""
    high = [update for update, loss in row["valid"] if loss >= LEARNED]
    return max(high, default=0)
