"""What the pages say of ASURA by depth, and of its parts without a loop: depth 1, on text that is read once."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from statistics import mean

from experiments.pages import Result, words
from experiments.readme.rows import WORDS, from_to, interval, line, of, when
from experiments.readme.text.repeats import PARAMETERS, agree, all_runs, kept, losses, spent, told
from experiments.repeats.plan import DEPTH_RATES
from experiments.repeats.tables import BY_DEPTH, HALVES, Chosen, at_rate, slopes
from experiments.seeds import DECIDED, Pooled, decided, over_seeds, pooled

SMALL = min(DEPTH_RATES)
STEADY = 3  # the depth from which on all seeds train alike


@cache
def calm() -> Chosen:
    """Returns all runs on text that is read once at the smaller rate, which is that of the plain layers."""
    return at_rate(all_runs(), SMALL)


def runs_of(depth: int, runs: Chosen | None = None) -> list[Result]:
    """Returns ASURA's runs at a depth, at its own rate unless other runs are given."""
    return [*(kept() if runs is None else runs)[BY_DEPTH[depth], 1]]


def losses_of(depth: int, runs: Chosen | None = None) -> list[float]:
    """Returns the losses on `test`, seed by seed."""
    return [run["loss"]["test"] for run in runs_of(depth, runs)]


def less(depth: int, other: int, runs: Chosen | None = None) -> Pooled:
    """Returns ASURA at one depth less ASURA at another."""
    return _pooled(runs_of(depth, runs), runs_of(other, runs))


def less_plain(depth: int, runs: Chosen | None = None) -> Pooled:
    """Returns ASURA at a depth less the plain layers of nearly equal parameters, at their own rates unless other runs are given."""
    return _pooled(runs_of(depth, runs), [*(kept() if runs is None else runs)[PARAMETERS, 1]])


def half_of(depth: int, runs: Chosen | None = None) -> Pooled | None:
    """Returns ASURA at a depth less ASURA at half of it, where that was run."""
    return less(depth, depth // 2, runs) if depth % 2 == 0 and depth // 2 in HALVES else None


def _pooled(first: list[Result], second: list[Result]) -> Pooled:
    found = pooled(first, second, "test")
    assert found is not None and len(found.seeds) == 3
    return found


def signs(values: tuple[float, ...] | list[float], digits: int = 3) -> str:
    """Returns values seed by seed, with their signs."""
    return " / ".join(f"{value:+.{digits}f}" for value in values).replace("-", "−")


def best_at(depth: int) -> str:
    """Returns with how many seeds a depth has the lowest loss of all: "two of three"."""
    by_depth = zip(*(losses_of(each) for each in BY_DEPTH), strict=True)
    best = [list(BY_DEPTH)[row.index(min(row))] for row in by_depth]
    return of(best.count(depth), len(best))


def none_decided(runs: Chosen | None = None) -> bool:
    """Whether no depth differs from depth 1, and no doubling from its half, by a decided amount."""
    pairs = [(depth, 1) for depth in BY_DEPTH if depth > 1] + [(2 * depth, depth) for depth in HALVES]
    return {less(*pair, runs).verdict for pair in pairs} == {"not resolved"}


def claims() -> Iterator[str]:
    """Yields the table of depths and what docs/when-to-loop-text.md says under it."""
    for depth in BY_DEPTH:
        first = runs_of(depth)[0]
        yield line(
            str(depth), f"{first['parameters'] / 1e6:.2f} M", f"{first['flops'] / 1e6:.1f} M", losses(runs_of(depth)),
            told(less(depth, 1) if depth > 1 else None), told(half_of(depth)), told(less_plain(depth)),
        )  # fmt: skip
    yield without_loop()
    yield shares()
    three = less(3, 1)
    ahead = f"depth 3 is {-three.difference:.3f} ahead of depth 1 ({interval(*three.over_seeds)}, {DECIDED[three.verdict]})"
    yield when(three.difference < 0, ahead)
    yield when(none_decided(), "No depth differs from depth 1, and no doubling from its half, by a decided amount")
    eight, two = less(8, 1).difference, less(2, 1).difference
    yield f"In the mean depth 8 is {-eight:.3f} ahead of depth 1, and depth 2 is {two:.3f} behind it"
    yield f"With {best_at(1)} seeds depth 1 has the lowest loss of all {WORDS[len(BY_DEPTH)]} depths"
    yield from uneven_claims()
    yield from small_claims()
    tried = {(run["label"], run["rate"]): run["loss"]["valid"] for run in all_runs() if run["times"] == 1 and run["seed"] == 0}
    gains = [tried[label, SMALL] - tried[label, max(DEPTH_RATES)] for label in BY_DEPTH.values()]
    own = {run["rate"] for depth in BY_DEPTH for run in runs_of(depth)} == {max(DEPTH_RATES)}
    yield when(own, f"4e-3 is the better one at every depth, by {min(gains):.2f} to {max(gains):.2f}")


def without_loop() -> str:
    """Returns how ASURA at depth 1 stands to four plain layers."""
    found = less_plain(1)
    return (
        f"it is {-found.difference:.3f} ahead of four plain layers on {agree(found)} seeds ({signs(found.of_seeds)}; "
        f"{interval(*found.over_seeds)}, {DECIDED[found.verdict]})"
    )


def shares() -> str:
    """Returns which part of its parameters and FLOPs the four plain layers have."""
    ours, theirs = runs_of(1)[0], kept()[PARAMETERS, 1][0]
    parts = [theirs[what] / ours[what] for what in ("parameters", "flops")]
    return f"{parts[0]:.2f} of its parameters and {parts[1]:.2f} of its FLOPs"


def uneven_claims() -> Iterator[str]:
    """Yields at which depths seeds lie far apart, and where the lead over plain layers is decided."""
    shallow = [depth for depth in BY_DEPTH if depth < STEADY]
    worst = {max(range(3), key=lambda seed: losses_of(depth)[seed]) for depth in shallow}
    bad = " and ".join(f"{max(losses_of(depth)):.3f}" for depth in shallow)
    yield when(worst == {2}, f"Seed 2 trains badly at depths {' and '.join(map(str, shallow))} ({bad})")
    apart = {depth: max(losses_of(depth)) - min(losses_of(depth)) for depth in BY_DEPTH}
    far = " and ".join(f"{apart[depth]:.2f}" for depth in shallow)
    near = max(apart[depth] for depth in BY_DEPTH if depth not in shallow)
    yield f"the seeds lie {far} apart there, and at most {near:.2f} from depth {STEADY} on"
    decided = words([depth for depth in BY_DEPTH if less_plain(depth).verdict == "lower"])
    yield f"At 4e-3 the lead over four plain layers is decided at depths {decided}, and not at the others"
    one, three = (less_plain(depth).of_seeds[:2] for depth in (1, STEADY))
    larger = all(ours < theirs for ours, theirs in zip(one, three, strict=True))
    told_one, told_three = (" and ".join(f"{-each:.3f}" for each in leads) for leads in (one, three))
    yield when(larger, f"With seeds 0 and 1 it is larger at depth 1 ({told_one}) than at depth {STEADY} ({told_three})")


def small_claims() -> Iterator[str]:
    """Yields what depth changes at the smaller rate, and the straight line in its logarithm at both."""
    for depth in BY_DEPTH:
        cells = told(less(depth, 1, calm()) if depth > 1 else None), told(half_of(depth, calm())), told(less_plain(depth, calm()))
        yield line(str(depth), losses(runs_of(depth, calm())), *cells)
    plain = less_plain(1, calm())
    yield (
        f"Depth 1 is {-plain.difference:.3f} ahead of them on {agree(plain)} seeds ({signs(plain.of_seeds)}; "
        f"{interval(*plain.over_seeds)}, {DECIDED[plain.verdict]})"
    )
    others = [less_plain(depth, calm()) for depth in BY_DEPTH if depth > 1]
    ahead = {each.verdict for each in others} == {"lower"}
    yield when(ahead, f"the other depths are {from_to(each.difference for each in others)} ahead of them (all decided)")
    yield when(none_decided(calm()), "no depth differs from depth 1, and no doubling from its half, by a decided amount at 2e-3")
    yield behind_one()
    yield f"Each interval by itself leaves open a gain of at most {most_gain():.3f} nats over depth 1"
    apart = [max(found) - min(found) for found in (losses_of(depth, calm()) for depth in BY_DEPTH)]
    yield f"the three seeds lie at most {max(apart):.3f} apart at every depth"
    yield from rate_claims()
    by_seed, small = (list(slopes(runs).values()) for runs in (kept(), calm()))
    yield f"the loss changes by {signs(by_seed)} nats with each doubling at 4e-3 ({sloped(by_seed)})"
    yield f"at 2e-3 by {signs(small, 4)} ({sloped(small, 4)})"
    line_of = f"a gain of more than {-over_seeds(small)[0]:.3f} nats with each doubling is excluded (95 % over seeds)"
    yield f"If the loss lies on such a line, at 2e-3 {line_of}"
    eight = less(8, 1, calm())
    most = -min(eight.low, eight.over_seeds[0])
    yield f"depth 8 against depth 1 leaves open a gain of {most:.3f}, which is {most / 3:.3f} with each doubling"


def behind_one() -> str:
    """Returns how far greater depths are behind depth 1 at the smaller rate, in the mean."""
    found = [less(depth, 1, calm()).difference for depth in BY_DEPTH if depth > 1]
    return when(min(found) > 0, f"in the mean depths 2 to 8 are {from_to(found)} behind depth 1")


def most_gain() -> float:
    """Returns the largest gain over depth 1 that an interval, over seeds or over documents, leaves open at the smaller rate."""
    found = [less(depth, 1, calm()) for depth in BY_DEPTH if depth > 1]
    return -min(min(each.low, each.over_seeds[0]) for each in found)


def sloped(found: list[float], digits: int = 3) -> str:
    """Returns the mean of slopes, its interval over seeds, and whether it leaves 0 out."""
    low, high = over_seeds(found)
    word = decided((low, high))
    return f"mean {signs([mean(found)], digits)}, {interval(low, high, digits)}, {word}"


def rate_claims() -> Iterator[str]:
    """Yields what the larger rate changes at each depth, and which part of depth 3's lead comes with it."""
    by_rate = {depth: _pooled(runs_of(depth), runs_of(depth, calm())) for depth in BY_DEPTH}
    better = [each.difference for depth, each in by_rate.items() if depth != 2]
    worse = by_rate[2].difference
    yield when(
        max(better) < 0 < worse,
        f"In the mean 4e-3 is better than 2e-3 by {from_to(better, 2)} at every depth but 2, where it is {worse:.2f} worse",
    )
    decided = words([depth for depth, each in by_rate.items() if each.verdict == "lower"])
    yield f"decided at depths {decided}"
    own, same, rate = less_plain(3), less_plain(3, calm()), by_rate[3]
    all_of = {own.verdict, same.verdict, rate.verdict, less_plain(1, calm()).verdict} == {"lower"}
    yield when(
        all_of,
        f"Of the lead of {-own.difference:.3f} that depth 3 has at own rates, {-same.difference:.3f} is there at 2e-3, where "
        f"depth 1 leads by {without(3)} (all decided)",
    )
    yield when(all_of, f"The rest, {-rate.difference:.3f}, comes with the larger rate (decided)")
    first, second, third = by_rate[1].of_seeds
    gains = f"By the same change depth 1 gains {-first:.3f} and {-second:.3f} with seeds 0 and 1 and loses {third:.3f} with seed 2"
    yield when(max(first, second) < 0 < third, f"{gains} ({DECIDED[by_rate[1].verdict]})")


def brief_claims() -> Iterator[str]:
    """Yields the same in short: the first part of docs/when-to-loop-text.md."""
    one, three, found = mean(losses_of(1)), mean(losses_of(3)), less(3, 1)
    shown = f"depth 1 shows no decided difference from depth 3 (losses of {one:.3f} and {three:.3f}), nor from any other depth"
    yield when(none_decided(), f"{shown} up to {max(BY_DEPTH)}")
    yield f"There {best_at(1)} seeds are best at depth 1"
    plain = less_plain(1)
    ahead = f"depth 3 is {-found.difference:.3f} ahead of depth 1 ({DECIDED[found.verdict]}"
    yield when(none_decided() and found.difference < 0, f"{ahead}, as at every depth)")
    yield f"depth 1 is {-plain.difference:.3f} ahead of four plain layers on {agree(plain)} seeds ({DECIDED[plain.verdict]})"
    yield shares()
    yield when(less_plain(1, calm()).verdict == "lower", f"is {without(3)} ahead of four plain layers (decided)")
    yield when(less_plain(1, calm()).verdict == "lower", f"depth 1 is ahead of four plain layers by {without(3)} (decided)")
    yield when(none_decided(calm()), f"no greater depth differs from it by a decided amount ({behind_one()})")
    yield when(none_decided(calm()), f"{behind_one()} (undecided at every depth)")


def without(digits: int) -> str:
    """Returns ASURA's lead over plain layers without a loop, at their rate."""
    return f"{-less_plain(1, calm()).difference:.{digits}f}"


def limit_claims() -> Iterator[str]:
    """Yields what the limits of docs/when-to-loop-text.md say of depth and of more updates."""
    led = less_plain(1, calm()).verdict == "lower" and none_decided() and none_decided(calm())
    ahead = f"at the rate of four plain layers it led them by {without(2)} without a loop (decided)"
    yield when(led, f"{ahead}, and no depth added to that by a decided amount")
    yield spent().replace(" on ", " in ")


def coverage_claims() -> Iterator[str]:
    """Yields what docs/coverage.md says of the logarithm of the depth."""
    own, small = (list(slopes(runs).values()) for runs in (kept(), calm()))
    low, high = over_seeds(own)
    yield when(low <= 0 <= high, "At 4e-3, the rate that was chosen, such a gain is not shown and not excluded")
    low, high = over_seeds(small)
    change = f"at 2e-3 the loss changes by {signs([mean(small)])} nats with each doubling (undecided)"
    straight = f"if it lies on a straight line, a gain of more than {-low:.3f} with each doubling is excluded (95 % over seeds)"
    yield when(low <= 0 <= high, f"{change}; {straight}")
    sizes = [run["parameters"] / 1e6 for depth in BY_DEPTH for run in runs_of(depth)]
    yield f"{min(sizes):.1f} to {max(sizes):.1f} million parameters"


def short() -> str:
    """Returns what the README says."""
    led = less_plain(1, calm()).verdict == "lower" and none_decided(calm()) and [*BY_DEPTH] == [1, 2, 3, 4, 6, 8]
    return when(
        led,
        f"without its loop it leads four plain layers, too, by {without(2)} at their rate (decided), where no greater depth "
        "adds a decided amount",
    )
