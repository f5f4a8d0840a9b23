"""What the README and docs/when-to-loop-text.md say of the ASURA study."""

from __future__ import annotations

from collections.abc import Iterator

from experiments.asura.plan import ALL_COMPARED, ALL_RATES, LARGER_START, WHOLE
from experiments.asura.tables import best_of_rates
from experiments.readme.rows import when
from experiments.readme.text import repeats
from experiments.templates import words
from experiments.templates.asura import (
    FLOPS,
    NAIVE,
    NO_NORMS,
    PARAMETERS,
    arms,
    at_better_rates,
    behind,
    behind_everywhere,
    better_rate,
    both,
    gains,
    left,
    on_texts,
    p,
    strict,
    times,
)


def equal_parameters() -> str:
    """Returns how far the plain transformer of nearly equal parameters is behind: "0.05 to 0.07 nats"."""
    return f"{words.from_to(both(WHOLE, PARAMETERS), 2)} nats"


def at_equal_parameters() -> str:
    """Returns the same with whether both sizes are decided, and at which cost."""
    lower = all(each.verdict == "lower" for each in both(WHOLE, PARAMETERS))
    cost = " to ".join(f"{each:.1f}" for each in times(WHOLE, PARAMETERS, "flops"))
    return when(lower, f"by {equal_parameters()}, decided, for {cost} times the FLOPs")


def equal_flops() -> str:
    """Returns how ASURA stands to the plain transformer of nearly equal FLOPs, for the README."""
    small, middle = both(WHOLE, FLOPS)
    word = {each: words.decided(each).replace("undecided", "not decided") for each in (small, middle)}
    size = f"behind by {small.difference:.3f} at the small size ({word[small]})"
    return f"{size}, ahead by {-middle.difference:.3f} at the middle one (p = {p(middle):.2f}, {word[middle]})"


def loop_claims() -> Iterator[str]:
    """Yields what docs/when-to-loop-text.md says of text from scratch at one rate for all."""
    small, middle = both(WHOLE, PARAMETERS)
    parts, cost = times(PARAMETERS, WHOLE, "parameters"), times(WHOLE, PARAMETERS, "flops")
    decided = small.verdict == middle.verdict == "lower"
    yield when(
        decided,
        f"nearly equal parameters ({parts[0]:.2f} and {parts[1]:.2f} of ASURA's) | **ahead** by {-small.difference:.3f} and "
        f"{-middle.difference:.3f} nats (decided), for {cost[0]:.1f} and {cost[1]:.1f} times the FLOPs",
    )
    small, middle = both(WHOLE, FLOPS)
    parts, larger = times(FLOPS, WHOLE, "flops"), times(FLOPS, WHOLE, "parameters")
    decided = (small.verdict, middle.verdict) == ("higher", "not resolved")
    yield when(
        decided,
        f"nearly equal FLOPs ({parts[0]:.2f} and {parts[1]:.2f} of ASURA's), {larger[0]:.1f} and {larger[1]:.1f} times its "
        f"parameters | **behind** by {small.difference:.3f} at the small size (decided), ahead by {-middle.difference:.3f} at the "
        "middle one (undecided)",
    )
    yield when(decided, f"ASURA was {small.difference:.3f} behind at nearly equal FLOPs (small size, decided)")
    yield when(decided, f"and the middle size {-middle.difference:.3f} ahead (undecided)")
    yield when(decided, f"the middle ASURA is {-middle.difference:.3f} ahead of plain layers of nearly equal FLOPs (undecided)")
    yield from bare_claims()
    yield from repeats.shares()
    between = both(WHOLE, PARAMETERS)[0].verdict == "lower" and small.verdict == "higher"
    yield when(between, "ASURA's small size lies between four and twelve plain layers")


def bare_claims() -> Iterator[str]:
    """Yields what docs/when-to-loop-text.md says of the naive loop, with exactly the parameters and the FLOPs of plain rows."""
    exact = {each for rival, what in ((PARAMETERS, "parameters"), (FLOPS, "flops")) for each in times(NAIVE, rival, what)} == {1}
    small, middle = both(NAIVE, PARAMETERS)
    cost = times(NAIVE, PARAMETERS, "flops")
    decided = exact and (small.verdict, middle.verdict) == ("lower", "higher")
    yield when(
        decided,
        f"ahead by {-small.difference:.3f} at the small size, **behind** by {middle.difference:.3f} at the middle one (both "
        f"decided), for {cost[0]:.1f} and {cost[1]:.1f} times the FLOPs",
    )
    worse = "the middle bare loop is worse than plain layers of its own parameters"
    yield when(decided, f"{worse} (by {middle.difference:.3f}, decided), which no positive exponent allows")
    small, middle = both(NAIVE, FLOPS)
    decided = exact and small.verdict == middle.verdict == "higher"
    yield when(decided, f"behind plain layers of equal FLOPs by {small.difference:.2f} and {middle.difference:.2f} (decided)")


def plain_lead() -> str:
    """Returns the lead of the middle size from the larger start, which is decided on both texts until it is corrected."""
    found, corrected = on_texts("middle", LARGER_START, FLOPS), strict("middle", LARGER_START, FLOPS)
    return when({each.verdict for each in found} == {"lower"} and not corrected, f"{-found[0].difference:.3f}")


def part_claims() -> Iterator[str]:
    """Yields what docs/when-to-loop-text.md says of it."""
    start = "With one projection for all its steps, from the larger of two starts"
    yield f"{start}, the middle size was {plain_lead()} ahead on 9.8 million tokens"


def all_text_claims() -> Iterator[str]:
    """Yields what docs/when-to-loop-text.md says."""
    found = at_better_rates()
    ours, theirs = (best_of_rates(arms())[arm][0] for arm in ALL_COMPARED)
    flops, parameters = (theirs[what] / ours[what] for what in ("flops", "parameters"))
    sizes = words.size([behind(rate) for rate in ALL_RATES[::-1]])
    yield when(
        behind_everywhere() and better_rate() == max(ALL_RATES),
        f"18 plain layers, {flops:.2f} of its FLOPs, {parameters:.1f} times its parameters | **behind** by {sizes} at 2e-3 and "
        f"1e-3 ({words.seeds(found)}; over documents both intervals leave 0 out)",
    )
    amount = f"{found.difference:.3f} behind"
    yield when(
        behind_everywhere(),
        f"on {ours['tokens'] / 1e6:.1f} million tokens, at the better of two rates each, the middle size was {amount}",
    )
    yield when(behind_everywhere(), f"on four times the text it is {amount} ({words.seeds(found)})")


def short() -> str:
    """Returns what the README says of the parts."""
    told = f"({words.size(both(NO_NORMS), 2)}; after a Bonferroni correction at the middle size alone)"
    at_middle = [size for size, label in left() if label == NO_NORMS] == ["middle"]
    return when(gains() == [NO_NORMS] and at_middle, f"only the norms after layers show a decided gain at both sizes {told}")
