"""What the pages say of ASURA by depth, and of its parts without a loop: depth 1, on text that is read once."""

from __future__ import annotations

from collections.abc import Iterator

from experiments.pages import Result
from experiments.readme.repeats import DECIDED, PARAMETERS, all_runs, kept, losses, mean, told
from experiments.readme.rows import WORDS, line, of, when
from experiments.repeats.plan import DEPTH_RATES
from experiments.repeats.tables import BY_DEPTH, HALVES, Chosen, at_rate, slopes
from experiments.seeds import Pooled, over_seeds, pooled

SMALL = min(DEPTH_RATES)
STEADY = 3  # the depth from which on all seeds train alike


def runs_of(depth: int) -> list[Result]:
    """Returns ASURA's runs at a depth, at its own rate."""
    return kept()[BY_DEPTH[depth], 1]


def losses_of(depth: int) -> list[float]:
    """Returns the losses on `test`, seed by seed."""
    return [run["loss"]["test"] for run in runs_of(depth)]


def less(depth: int, other: int) -> Pooled:
    """Returns ASURA at one depth less ASURA at another."""
    found = pooled(runs_of(depth), runs_of(other), "test")
    assert found is not None
    return found


def less_plain(depth: int, runs: Chosen | None = None) -> Pooled:
    """Returns ASURA at a depth less the plain layers of nearly equal parameters, at their own rates unless other runs are given."""
    runs = kept() if runs is None else runs
    found = pooled(runs[BY_DEPTH[depth], 1], runs[PARAMETERS, 1], "test")
    assert found is not None
    return found


def signs(values: tuple[float, ...] | list[float]) -> str:
    """Returns values seed by seed, with their signs."""
    return " / ".join(f"{value:+.3f}" for value in values).replace("-", "−")


def span(low: float, high: float) -> str:
    """Returns an interval with its signs."""
    return f"{low:+.3f} to {high:+.3f}".replace("-", "−")


def best_at(depth: int) -> str:
    """Returns with how many seeds a depth has the lowest loss of all: "two of three"."""
    by_depth = zip(*(losses_of(each) for each in BY_DEPTH), strict=True)
    best = [list(BY_DEPTH)[row.index(min(row))] for row in by_depth]
    return of(best.count(depth), len(best))


def none_decided() -> bool:
    """Whether no depth differs from depth 1, and no doubling from its half, by a decided amount."""
    pairs = [(depth, 1) for depth in BY_DEPTH if depth > 1] + [(2 * depth, depth) for depth in HALVES]
    return {less(*pair).verdict for pair in pairs} == {"not resolved"}


def claims() -> Iterator[str]:
    """Yields the table of depths and what docs/when-to-loop.md says under it."""
    for depth in BY_DEPTH:
        first = runs_of(depth)[0]
        half = less(depth, depth // 2) if depth % 2 == 0 and depth // 2 in HALVES else None
        yield line(
            str(depth), f"{first['parameters'] / 1e6:.2f} M", f"{first['flops'] / 1e6:.1f} M", losses(runs_of(depth)),
            told(less(depth, 1) if depth > 1 else None), told(half), told(less_plain(depth)),
        )  # fmt: skip
    yield without_loop()
    yield shares()
    three = less(3, 1)
    ahead = f"depth 3 is {-three.difference:.3f} ahead of depth 1 ({span(*three.over_seeds)}, {DECIDED[three.verdict]})"
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
    seeds = of(sum(each < 0 for each in found.of_seeds), len(found.seeds))
    return (
        f"it is {-found.difference:.3f} ahead of four plain layers on {seeds} seeds ({signs(found.of_seeds)}; "
        f"{span(*found.over_seeds)}, {DECIDED[found.verdict]})"
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
    decided = [str(depth) for depth in BY_DEPTH if less_plain(depth).verdict == "lower"]
    yield f"The lead over four plain layers is decided at depths {', '.join(decided[:-1])} and {decided[-1]}, and not at the others"
    one, three = (less_plain(depth).of_seeds[:2] for depth in (1, STEADY))
    larger = all(ours < theirs for ours, theirs in zip(one, three, strict=True))
    told_one, told_three = (" and ".join(f"{-each:.3f}" for each in leads) for leads in (one, three))
    yield when(larger, f"With seeds 0 and 1 it is larger at depth 1 ({told_one}) than at depth {STEADY} ({told_three})")


def small_claims() -> Iterator[str]:
    """Yields what depth changes at the smaller rate, seed 0, and the straight line in its logarithm at both."""
    first = at_rate([run for run in all_runs() if run["seed"] == 0], SMALL)
    found = [first[label, 1][0]["loss"]["test"] for label in BY_DEPTH.values()]
    leads = [-less_plain(depth, first).difference for depth in BY_DEPTH]
    yield (
        f"with seed 0 all {WORDS[len(found)]} depths lie between {min(found):.3f} and {max(found):.3f}, each {min(leads):.3f} to "
        f"{max(leads):.3f} ahead of four plain layers"
    )
    by_seed, (small,) = list(slopes(kept()).values()), slopes(first).values()
    low, high = over_seeds(by_seed)
    word = "undecided" if low <= 0 <= high else "decided"
    yield (
        f"the loss changes by {signs(by_seed)} nats with each doubling (mean {signs([mean(by_seed)])}, {span(low, high)}, {word}), "
        f"and at 2e-3, seed 0, by {signs([small])}"
    )


def brief_claims() -> Iterator[str]:
    """Yields the same in short: the first part of docs/when-to-loop.md."""
    one, three, found = mean(losses_of(1)), mean(losses_of(3)), less(3, 1)
    shown = f"ASURA shows no decided difference from depth 3 (losses of {one:.3f} and {three:.3f}), nor from any other depth"
    yield when(none_decided(), f"{shown} up to {max(BY_DEPTH)}")
    yield f"{best_at(1)} seeds are best at depth 1"
    plain = less_plain(1)
    seeds = of(sum(each < 0 for each in plain.of_seeds), len(plain.seeds))
    ahead = f"depth 3 is {-found.difference:.3f} ahead of depth 1 ({DECIDED[found.verdict]}"
    yield when(none_decided() and found.difference < 0, f"{ahead}, as at every depth)")
    yield f"Depth 1 is {-plain.difference:.3f} ahead of four plain layers on {seeds} seeds ({DECIDED[plain.verdict]})"
    yield shares()


def asura_claims() -> Iterator[str]:
    """Yields what docs/asura.md says of depth."""
    found, plain = less(3, 1), less_plain(1)
    yield when(none_decided(), "no depth from 2 to 8 differs from depth 1 by a decided amount")
    yield f"depth 3 is {-found.difference:.3f} ahead of it, {DECIDED[found.verdict]}"
    yield f"{best_at(1)} seeds are best at depth 1"
    seeds = of(sum(each < 0 for each in plain.of_seeds), len(plain.seeds))
    yield f"{-plain.difference:.3f} ahead of four plain layers on {seeds} seeds ({DECIDED[plain.verdict]})"


def short() -> str:
    """Returns what the README says."""
    found = less(3, 1)
    return (
        f"without a loop (depth 1) ASURA is {-found.difference:.2f} behind depth 3 ({DECIDED[found.verdict]}), and {best_at(1)} "
        "seeds are best at depth 1"
    )
