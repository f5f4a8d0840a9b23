"""What docs/when-to-loop-tasks.md says about swaps: the arms at equal FLOPs and at equal parameters, depth, windows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from experiments.hops.depth_tables import deeper, models, swaps_by_rate, trained_mean
from experiments.hops.plan import ARMS, RATES, SWAPS_OWN
from experiments.hops.reading import RATE, TRAINED, best_anywhere, last_valid, mean_exact, rate, solved_at, solved_hops
from experiments.pages import Result
from experiments.readme.rows import WORDS, interval, line, of, when
from experiments.readme.tasks.exits import found
from experiments.readme.tasks.hops import LOOPED, PLAIN, less, side_by_side, told, verdict
from experiments.seeds import decided, over_seeds, paired_p

ALL, WINDOW = "all in sight", "window 2"
FIXED, RANDOM = f"1⊗16, {WINDOW}", f"1⊗16, {WINDOW}, depth 8 to 24"
OWN = f"{ALL}, rate {SWAPS_OWN:g}"
DEPTHS = (8, 16, 32, 64)
ENOUGH = 24  # steps: enough for all trained swaps with a window
WHOLE = 0.999  # of rows: what counts as learned to the end
NAMED = {SWAPS_OWN: "5e-4", RATE: "1e-3", RATES[-1]: "2e-3"}
# what the page shows of swaps: model → how it is called there
SHOWN = {
    f"1⊗8, {OWN}": "1⊗8",
    f"plain 8, {OWN}": "plain 8",
    f"1⊗8, {ALL}": "1⊗8",
    f"plain 8, {ALL}": "plain 8",
    f"plain 1, {ALL}": "plain 1",
    f"1⊗8, {ALL}, depth 4 to 12": "1⊗8, 4 to 12 steps",
    FIXED: "1⊗16, window",
    f"plain 16, {WINDOW}": "plain 16, window",
    RANDOM: "1⊗16, window, 8 to 24 steps",
}


def arms() -> dict[str, list[Result]]:
    """Returns the models of swaps at every rate, seeds in order."""
    return models(found(), "chain", "chain_rates")


def claims() -> Iterator[str]:
    """Yields what the rows say of swaps."""
    for name, shown in SHOWN.items():
        runs = arms()[name]
        one, looped = runs[0], ARMS[runs[0]["arm"]][1] > 1
        at = [" / ".join(str(solved_at(run, depth)) for run in runs) if looped else "–" for depth in DEPTHS]
        mean = " / ".join(f"{100 * mean_exact(run):.1f}" for run in runs)
        own = " / ".join(str(solved_hops(run)) for run in runs)
        size, cost = f"{one['parameters'] / 1e6:.2f} M", f"{one['flops'] / 1e6:.1f} M"
        yield line(shown, NAMED[rate(one)], size, cost, mean, own, *at)
    most = max(solved_hops(run) for runs in arms().values() for run in runs)
    told_as = f"At its trained depth, the mean one where depth is random, no run solves more than {most} swaps"
    yield when(most < TRAINED[-1], told_as)
    yield from version_claims()
    yield from rate_claims()
    yield from flops_claims()
    yield from brief_claims()
    yield from deeper_claims()
    yield from window_claims()
    yield from far_claims()
    yield from random_claims()


def version_claims() -> Iterator[str]:
    """Yields which rows are of an earlier version of the code."""
    earlier = {run["origin"]["commit"] for run in arms()[f"plain 1, {ALL}"]}
    first = {run["name"] for run in found() if run["group"].startswith("chain") and run["origin"]["commit"] in earlier}
    common = [run for name in SHOWN for run in arms()[name] if rate(run) == RATE]
    told_as = {run["name"] for run in common if run["seed"] == 0 or run["arm"] == "plain 1"}
    yield when(first == told_as, "Seed 0 at 1e-3 and all seeds of plain 1 were run at an earlier version of the code than the rest")


def rate_claims() -> Iterator[str]:
    """Yields which rate is each arm's own, by seed 0 and by the mean of all seeds, and that it is the lowest of those tried."""
    tried = sorted((RATE, *RATES))
    for arm in (LOOPED, PLAIN):
        rates = swaps_by_rate(found(), arm)
        means = {each: sum(map(last_valid, runs)) / len(runs) for each, runs in rates.items()}
        if next(iter(rates)) != SWAPS_OWN or min(means, key=lambda each: means[each]) != SWAPS_OWN or sorted(rates) != tried:
            raise ValueError(f"{SWAPS_OWN:g} is not the own rate of {arm} on swaps")
    same = "It is 5e-4 for both, and the mean loss of three seeds says the same. This is the lowest rate tried"
    yield when(tried[0] == SWAPS_OWN, same)
    high = [100 * mean_exact(run) for arm in (LOOPED, PLAIN) for run in swaps_by_rate(found(), arm)[tried[-1]]]
    yield f"At 2e-3 both train badly ({min(high):.0f} to {max(high):.0f} % in the mean of 1 to 16 swaps)"


def own() -> tuple[list[Result], list[Result]]:
    """Returns the looped layer and eight layers on swaps, each at the rate of its least loss (seed 0)."""
    looped, plain = (next(iter(swaps_by_rate(found(), arm).values())) for arm in (LOOPED, PLAIN))
    return looped, plain


def times_smaller(looped: Sequence[Result], plain: Sequence[Result]) -> int:
    """Returns how many times the parameters of a looped model the plain one has."""
    return round(plain[0]["parameters"] / looped[0]["parameters"])


def flops_claims() -> Iterator[str]:
    """Yields differences at equal FLOPs and at equal parameters."""
    if own()[0][0]["flops"] != own()[1][0]["flops"]:
        raise ValueError("FLOPs differ")
    _, low, high, _ = less(*own())
    yield when(low <= 0 <= high, "At equal FLOPs and own rates no difference was found")
    yield f"1⊗8 less plain 8: {told(*own())}, {verdict(*own())} ({side_by_side(*own())} by seed)"
    common = arms()[f"1⊗8, {ALL}"], arms()[f"plain 8, {ALL}"]
    ahead = sum(mean_exact(a) > mean_exact(b) for a, b in zip(*common, strict=True))
    yield f"At 1e-3 it was ahead on {of(ahead, len(common[0]))} seeds: {told(*common)}, {verdict(*common)}"
    first, first_own = (100 * (mean_exact(a[0]) - mean_exact(b[0])) for a, b in (common, own()))
    yield f"told the {first:.2f} points of seed 0 at 1e-3 as a lead. At 5e-4 the same seed has {first_own:.2f}"
    one = arms()[f"1⊗8, {ALL}"], arms()[f"plain 1, {ALL}"]
    yield f"1⊗8 less plain 1: {told(*one)}, {verdict(*one)}"
    window = arms()[FIXED], arms()[f"plain 16, {WINDOW}"]
    yield when(less(*window)[1] > 0, "With a window and at 1e-3 the loop is ahead of sixteen layers")
    chance = paired_p([mean_exact(a) - mean_exact(b) for a, b in zip(*window, strict=True)])
    yield when(
        0.025 < chance < 0.05, f"By itself it has p = {chance:.3f}, which a correction for a second comparison would take away"
    )
    both = f"1⊗16 less plain 16, both with a window: {told(*window)}, {verdict(*window)}"
    yield f"{both}, with 1/{times_smaller(*window)} of the parameters"


def brief_claims() -> Iterator[str]:
    """Yields what the first list and the first table of the page say of swaps."""
    mean, low, high, seeds = less(*own())
    word = decided((low, high))
    if mean <= 0 or word != "undecided":
        raise ValueError("the loop is not ahead by an undecided amount")
    yield f"1⊗8 is {mean:.1f} points ahead of eight layers in the mean ({interval(low, high, 1)}, {word}, {WORDS[seeds]} seeds)"
    ahead = f"{mean:.1f} points ahead ({interval(low, high, 1)}, {word}, {WORDS[seeds]} seeds)"
    told_as = f"{ahead}, with 1/{times_smaller(*own())} of the parameters"
    yield f"**no difference found** at own rates (5e-4, the lowest tried, for both): {told_as}"
    one, window = (arms()[f"1⊗8, {ALL}"], arms()[f"plain 1, {ALL}"]), (arms()[FIXED], arms()[f"plain 16, {WINDOW}"])
    if any(less(*pair)[1] <= 0 for pair in (one, window)):
        raise ValueError("a lead at 1e-3 is not decided")
    sizes = [f"{runs[0]['parameters'] / 1e6:.2f} M" for runs in window]
    cost = one[0][0]["flops"] / one[1][0]["flops"]
    lead, *_, count = less(*one)
    yield f"**loop**: {lead:.1f} points ahead (decided, {WORDS[count]} seeds; 1e-3 for both), for {cost:.0f} times the FLOPs"
    yield f"1⊗16 ({sizes[0]}) | sixteen layers ({sizes[1]}), equal FLOPs | **ahead** by {less(*window)[0]:.1f} points (decided"


def deeper_claims() -> Iterator[str]:
    """Yields what more steps than were trained do where every token is in sight."""
    by_rate = swaps_by_rate(found(), LOOPED)
    gains = {each: deeper(by_rate[each]) for each in (SWAPS_OWN, RATE)}
    spans = {each: (sum(points) / len(points), *over_seeds(points)) for each, points in gains.items()}
    if any(low <= 0 for _, low, _ in spans.values()):
        raise ValueError("a gain from more steps is not decided")
    gained = [f"+{mean:.1f} points ({interval(low, high, 1)}) at {NAMED[each]}" for each, (mean, low, high) in spans.items()]
    yield f"1⊗8 at depth 16 less itself at depth 8: {' and '.join(gained)}, both decided"
    yield f"twice the trained steps add {spans[SWAPS_OWN][0]:.1f} points on the lengths that were trained (decided)"
    depths = by_rate[RATE][0]["tests"]["1"]["depth"]
    whole = {
        each: [depth for depth in depths if all(solved_at(run, depth) == TRAINED[-1] for run in by_rate[each])]
        for each in (SWAPS_OWN, RATE)
    }
    stretch = [depth for depth in depths if whole[RATE][0] <= depth <= whole[RATE][-1]]
    both = " and ".join(map(str, sorted({*whole[SWAPS_OWN]} & {*whole[RATE]})))
    yield f"At depths {both} it solves all 16 swaps at both rates, with three of three seeds"
    held = f"At 1e-3 it does so at every depth from {whole[RATE][0]} to {whole[RATE][-1]} that was measured"
    yield when(whole[RATE] == stretch, held)
    worst = min(by_rate[SWAPS_OWN], key=lambda run: solved_at(run, 64))
    lost = f"with seed {worst['seed']} it solves {solved_at(worst, 32)} swaps at depth 32 and {solved_at(worst, 64)} at depth 64"
    yield f"At 5e-4 more steps than that can spoil it: {lost}"
    peaks = {swaps: [best_anywhere(run, swaps) for each in (SWAPS_OWN, RATE) for run in by_rate[each]] for swaps in (24, 32)}
    yield f"24 swaps are right on {100 * min(peaks[24]):.0f} to {100 * max(peaks[24]):.0f} % of the rows at the best depth"
    yield f"32 on at most {100 * max(peaks[32]):.0f} %"


def runs_with_window() -> dict[str, Result]:
    """Returns the looped runs with a window, by how the page calls them."""
    names = {FIXED: "16 steps", RANDOM: "8 to 24 steps"}
    return {f"seed {run['seed']} of {shown}": run for name, shown in names.items() for run in arms()[name]}


def learned() -> list[str]:
    """Returns the runs with a window that learned all trained swaps, given enough steps."""
    return [name for name, run in runs_with_window().items() if trained_mean(run, ENOUGH) >= WHOLE]


def window_claims() -> Iterator[str]:
    """Yields what six runs with a window learned, and how many steps they need."""
    runs = runs_with_window()
    whole = learned()
    solving = [name for name, run in runs.items() if solved_at(run, ENOUGH) == TRAINED[-1]]
    clean = [name for name, run in runs.items() if trained_mean(run, ENOUGH) == 1]
    told_as = f"**Of {WORDS[len(runs)]} runs with a window {WORDS[len(solving)]} solve all {TRAINED[-1]} swaps"
    yield when(clean == whole, f"{told_as}, {WORDS[len(clean)]} of them without an error.**")
    yield f"At depth {ENOUGH}, enough for 16 swaps, {' and '.join(whole)} are right on 100.0 % of the rows of 1 to 16 swaps"
    behind = {name: {depth - solved_at(run, depth) for depth in range(8, 17)} for name, run in runs.items()}
    steady = {name: next(iter(each)) for name, each in behind.items() if len(each) == 1}
    two = {steady[name] for name in whole}
    yield when(two == {2}, "and solve d − 2 swaps at depth d (8 to 16)")
    near = [name for name in steady if name not in whole]
    told_as = [steady.get(f"seed 0 of {kind}") for kind in ("16 steps", "8 to 24 steps")]
    yield f"with seed 0 alone, gave d − {told_as[0]} and d − {told_as[1]} as the rules of the two models"
    shares = sorted(100 * trained_mean(runs[name], ENOUGH) for name in near)
    needs = " and ".join(f"d − {steady[name]}" for name in near)
    yield f"{' and '.join(near).capitalize()} are right on {shares[-1]:.1f} and {shares[0]:.1f} %, and solve {needs}"
    poor = [name for name in runs if name not in steady]
    shares = [100 * trained_mean(runs[name], ENOUGH) for name in poor]
    most = [max(solved_at(runs[name], depth) for depth in runs[name]["tests"]["1"]["depth"]) for name in poor]
    solved = " and ".join(map(str, most))
    have = f"{shares[0]:.1f} and {shares[1]:.1f} %"
    yield f"{' and '.join(poor).capitalize()} have {have}, and solve at most {solved} swaps at any depth"


def far_claims() -> Iterator[str]:
    """Yields which runs with a window answer longer chains than were trained, given enough steps."""
    runs = runs_with_window()
    far = {name: max(solved_at(run, depth) for depth in run["tests"]["1"]["depth"]) for name, run in runs.items()}
    longer = [name for name, most in far.items() if most > TRAINED[-1]]
    if longer != learned():
        raise ValueError("longer chains are not answered by the runs that learned the task")
    yield f"**{WORDS[len(longer)].capitalize()} of {WORDS[len(runs)]} solve longer chains**"
    yield f"and swaps through a window in {of(len(longer), len(runs))} runs"
    for name in longer:
        first, second, third = (f"{100 * best_anywhere(runs[name], swaps):.0f} %" for swaps in (24, 32, 48))
        yield f"{name} has 24 swaps right on {first} of the rows, 32 on {second} and 48 on {third}"
    solved = f"{longer[0]} solves {far[longer[0]]} swaps and {longer[1]} solves {far[longer[1]]} (at least 95 % right)"
    yield f"**in {of(len(longer), len(runs))} runs**, given enough steps: {solved}"
    rest = max(best_anywhere(run, 24) for name, run in runs.items() if name not in longer)
    others = WORDS[len(runs) - len(longer)]
    yield f"the other {others} are right on at most {100 * rest:.1f} % at 24 swaps, at any depth"
    near = max((name for name in runs if name not in longer), key=lambda name: best_anywhere(runs[name], 24))
    first, second = (f"{100 * best_anywhere(runs[near], swaps):.0f} %" for swaps in (24, 32))
    yield f"A third comes near: {near} has 24 swaps right on {first} of the rows and 32 on {second}"
    guess = max(best_anywhere(run, 64) for run in runs.values())
    yield f"64 swaps no run answers (at most {100 * guess:.0f} %)"


def random_claims() -> Iterator[str]:
    """Yields random depth beside the fixed one, at 1e-3."""
    first = arms()[f"1⊗8, {ALL}, depth 4 to 12"], arms()[f"1⊗8, {ALL}"]
    ahead = sum(mean_exact(a) > mean_exact(b) for a, b in zip(*first, strict=True))
    yield f"With all in sight it is ahead of the fixed depth on {of(ahead, len(first[0]))} seeds, by {told(*first)}"
    window = arms()[RANDOM], arms()[FIXED]
    yield f"with a window the difference is {told(*window)}"
    points = at_enough(*window)
    low, high = over_seeds(points)
    yield f"at depth {ENOUGH} {sum(points) / len(points):+.2f} ({interval(low, high, 2)})".replace("-", "−")
    undecided = all(bottom <= 0 <= top for bottom, top in (less(*first)[1:3], less(*window)[1:3], (low, high)))
    yield when(undecided, "**Random depth: nothing is decided**")


def at_enough(first: Sequence[Result], second: Sequence[Result]) -> list[float]:
    """Returns one model less another at a depth that is enough for all trained swaps, in points by seed."""
    return [100 * (trained_mean(a, ENOUGH) - trained_mean(b, ENOUGH)) for a, b in zip(first, second, strict=True)]
