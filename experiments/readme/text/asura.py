"""What docs/asura.md says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from statistics import mean

from experiments.asura.pairing import arranged
from experiments.asura.plan import SIZES, WHOLE, rows
from experiments.pages import Result, by_label, results
from experiments.readme.rows import RESULTS, WORDS, of, when
from experiments.readme.text import repeats
from experiments.seeds import Pooled, mean_loss, over_seeds, paired_p, pooled, reports

STUCK = 6.9  # nats: the loss that the model without its skip never gets below
FLOPS, PARAMETERS, NAIVE = "plain, equal FLOPs", "plain, equal parameters", "naive universal"

Labels = Mapping[str, list[Result]]


@cache
def sizes() -> dict[str, Labels]:
    """Returns the runs by size and label, a part with the rows that stand for it."""
    found = results([str(RESULTS / "asura/runs.jsonl")], rows())
    return {size: arranged(by_label(run for run in found if run["size"] == size)) for size in SIZES}


def losses(labels: Labels, label: str) -> list[float]:
    """Returns the loss on `test` at the deepest depth, seed by seed."""
    return [mean_loss([each], each.depth[-1]) for each in reports(labels[label], "test")]


def apart(labels: Labels, label: str) -> list[float]:
    """Returns how far a row's loss lies above ASURA's, seed by seed."""
    return [a - b for a, b in zip(losses(labels, label), losses(labels, WHOLE), strict=True)]


def against(label: str, rival: str) -> tuple[Pooled, Pooled]:
    """Returns one row less another at the small and at the middle size."""
    small, middle = (pooled(labels[label], labels[rival], "test") for labels in sizes().values())
    assert small is not None and middle is not None
    return small, middle


def times(label: str, rival: str, what: str) -> tuple[float, float]:
    """Returns how many times the FLOPs or parameters of another row a row has, at both sizes."""
    small, middle = (labels[label][0][what] / labels[rival][0][what] for labels in sizes().values())
    return small, middle


def equal_parameters() -> str:
    """Returns how far the plain transformer of nearly equal parameters is behind: "0.05 to 0.07 nats"."""
    least, most = sorted(mean(apart(labels, PARAMETERS)) for labels in sizes().values())
    return f"{least:.2f} to {most:.2f} nats"


def at_equal_parameters() -> str:
    """Returns the same with whether both sizes are decided, and at which cost."""
    lower = all(each.verdict == "lower" for each in against(WHOLE, PARAMETERS))
    cost = " to ".join(f"{each:.1f}" for each in times(WHOLE, PARAMETERS, "flops"))
    return when(lower, f"by {equal_parameters()}, decided, for {cost} times the FLOPs")


def equal_flops() -> tuple[float, float, str, str]:
    """Returns how far the plain transformer of equal FLOPs is ahead at the small size and behind at the middle one; of the
    latter its p, and whether it is decided."""
    small, middle = (apart(labels, FLOPS) for labels in sizes().values())
    low, high = over_seeds(middle)
    return -mean(small), mean(middle), f"p = {paired_p(middle):.2f}", "not decided" if low <= 0 <= high else "decided"


def small_flops() -> str:
    """Returns whether the difference at nearly equal FLOPs is decided at the small size."""
    return "not decided" if against(WHOLE, FLOPS)[0].verdict == "not resolved" else "decided"


def loop_claims() -> Iterator[str]:
    """Yields what docs/when-to-loop-text.md says of text from scratch at one rate for all."""
    small, middle = against(WHOLE, PARAMETERS)
    parts, cost = times(PARAMETERS, WHOLE, "parameters"), times(WHOLE, PARAMETERS, "flops")
    decided = small.verdict == middle.verdict == "lower"
    yield when(
        decided,
        f"nearly equal parameters ({parts[0]:.2f} and {parts[1]:.2f} of ASURA's) | **ahead** by {-small.difference:.3f} and "
        f"{-middle.difference:.3f} nats (decided), for {cost[0]:.1f} and {cost[1]:.1f} times the FLOPs",
    )
    small, middle = against(WHOLE, FLOPS)
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
    between = against(WHOLE, PARAMETERS)[0].verdict == "lower" and small.verdict == "higher"
    yield when(between, "ASURA's small size lies between four and twelve plain layers")


def bare_claims() -> Iterator[str]:
    """Yields what docs/when-to-loop-text.md says of the naive loop, with exactly the parameters and the FLOPs of plain rows."""
    exact = {each for rival, what in ((PARAMETERS, "parameters"), (FLOPS, "flops")) for each in times(NAIVE, rival, what)} == {1}
    small, middle = against(NAIVE, PARAMETERS)
    cost = times(NAIVE, PARAMETERS, "flops")
    decided = exact and (small.verdict, middle.verdict) == ("lower", "higher")
    yield when(
        decided,
        f"ahead by {-small.difference:.3f} at the small size, **behind** by {middle.difference:.3f} at the middle one (both "
        f"decided), for {cost[0]:.1f} and {cost[1]:.1f} times the FLOPs",
    )
    worse = "the middle bare loop is worse than plain layers of its own parameters"
    yield when(decided, f"{worse} (by {middle.difference:.3f}, decided), which no positive exponent allows")
    small, middle = against(NAIVE, FLOPS)
    decided = exact and small.verdict == middle.verdict == "higher"
    yield when(decided, f"behind plain layers of equal FLOPs by {small.difference:.2f} and {middle.difference:.2f} (decided)")


def claims() -> Iterator[str]:
    """Yields what the rows say."""
    yield when(all(each.verdict == "lower" for each in against(WHOLE, PARAMETERS)), f"by {equal_parameters()} (decided)")
    yield f"at equal updates ahead at both sizes, by {equal_parameters()}"
    small, middle = against(FLOPS, WHOLE)
    behind, ahead, p, verdict = equal_flops()
    yield when(small.difference < 0, f"behind at the small size ({behind:.3f} nats, {repeats.agree(small)} seeds, {small_flops()})")
    seeds = ", ".join(f"{value:.3f}" for value in middle.of_seeds)
    yield when(
        middle.difference > 0,
        f"At the middle one, at 1e-3, it is ahead by {ahead:.3f}, on {repeats.agree(middle)} seeds "
        f"({seeds}; paired t-test {p}), which is {'not resolved' if verdict == 'not decided' else 'resolved'}",
    )
    tuned, same = (repeats.beside(WHOLE, rival, 1) for rival in (repeats.FLOPS, repeats.LONGER))
    assert tuned is not None and same is not None
    lead, weak = f"{-tuned.difference:.2f} nats, decided", repeats.beside(repeats.FLOPS, repeats.PARAMETERS, 1)
    assert weak is not None
    told = f"on that text twelve layers are behind four on {repeats.agree(weak)} seeds, {repeats.DECIDED[weak.verdict]})"
    yield when(
        tuned.verdict == "lower" and weak.difference > 0,
        f"ahead there of twelve plain layers of nearly equal FLOPs ({lead}; a weak control: {told}",
    )
    cost = repeats.spent().replace(" on ", ", spent on ")
    seeds = f"{WORDS[len(same.seeds)]} seeds, {'decided' if same.verdict == 'higher' else 'undecided'}"
    yield f"behind four plain layers with {cost} ({same.difference:.2f} nats on the same text, {seeds}"
    yield f"does not train at this rate and warm-up (1e-3, 60 updates), on {stuck()} seeds"


def stuck() -> str:
    """Returns with how many seeds the middle size does not train without its projected skip."""
    without = list(sizes().values())[1]["without the projected skip"]
    return of(sum(min(run["losses"]) > STUCK for run in without), len(without))
