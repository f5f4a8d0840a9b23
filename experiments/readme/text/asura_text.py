"""What the pages say of the middle ASURA and plain layers on all of the text: one seed, two rates each."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from experiments.asura.plan import ALL_COMPARED, ALL_RATES, ALL_TEXT, rows
from experiments.asura.tables import best_of_rates
from experiments.pages import Result, by_label, results
from experiments.readme.rows import RESULTS, WORDS, when
from experiments.readme.text.asura import FLOPS, apart, sizes
from experiments.seeds import Pooled, held, pooled


@cache
def arms() -> dict[str, list[Result]]:
    """Returns the runs by label."""
    return by_label(run for run in results([str(RESULTS / "asura/runs.jsonl")], rows()) if run["size"] == ALL_TEXT)


def behind(rate: float, text: str = "test") -> Pooled:
    """Returns ASURA less 18 plain layers at a rate."""
    ours, theirs = (arms()[f"{arm}, rate {rate:g}"] for arm in ALL_COMPARED)
    found = pooled(ours, theirs, text)
    assert found is not None
    return found


def at_better_rates(text: str = "test") -> Pooled:
    """Returns ASURA less 18 plain layers, each at its better rate."""
    ours, theirs = (best_of_rates(arms())[arm] for arm in ALL_COMPARED)
    found = pooled(ours, theirs, text)
    assert found is not None
    return found


def seeds() -> str:
    """Returns of how many seeds it is: "one seed"."""
    count = len(at_better_rates().seeds)
    return f"{WORDS[count]} seed{'s' * (count > 1)}"


def higher() -> bool:
    """Whether ASURA is behind at both rates, on both texts, over documents."""
    return all(behind(rate, text).low > 0 for rate in ALL_RATES for text in ("test", "ood"))


def largest() -> bool:
    """Whether the larger rate is the better one of both arms."""
    return {runs[0]["label"] for runs in best_of_rates(arms()).values()} == {
        f"{arm}, rate {max(ALL_RATES):g}" for arm in ALL_COMPARED
    }


def claims() -> Iterator[str]:
    """Yields what docs/asura.md says."""
    low, high = (behind(rate) for rate in ALL_RATES)
    yield when(
        higher(),
        f"it is behind 18 plain layers of nearly equal FLOPs by {low.difference:.3f} nats at 1e-3 ({low.low:.3f} to {low.high:.3f} "
        f"over documents) and by {high.difference:.3f} at 2e-3 ({high.low:.3f} to {high.high:.3f})",
    )
    ood = [behind(rate, "ood").difference for rate in ALL_RATES]
    yield f"on `ood` by {ood[0]:.3f} and {ood[1]:.3f}; {seeds()}"
    gains = [arms()[f"{arm}, rate 0.001"][0]["valid"] - arms()[f"{arm}, rate 0.002"][0]["valid"] for arm in ALL_COMPARED]
    yield when(largest(), f"2e-3 is the better rate of both (by {gains[0]:.3f} and {gains[1]:.3f} on `valid`)")
    first = apart(sizes()["middle"], FLOPS)[0]
    yield when(first > 0, f"With a quarter of the text the same seed was {first:.3f} ahead")
    best = best_of_rates(arms())
    tested = [held(best[arm][0], "test").loss[-1] for arm in ALL_COMPARED]
    yield f"{tested[0]:.3f} and {tested[1]:.3f} at 2e-3"
    seconds = [run["train_seconds"] for runs in arms().values() for run in runs]
    yield f"{min(seconds):.0f} to {max(seconds):.0f} seconds"
    tokens = {run["tokens"] for runs in arms().values() for run in runs}
    yield when(len(tokens) == 1, f"all {max(tokens) / 1e6:.1f} million tokens")


def loop_claims() -> Iterator[str]:
    """Yields what docs/when-to-loop-text.md says."""
    found = at_better_rates()
    ours, theirs = (best_of_rates(arms())[arm][0] for arm in ALL_COMPARED)
    flops, parameters = (theirs[what] / ours[what] for what in ("flops", "parameters"))
    both = " and ".join(f"{behind(rate).difference:.3f}" for rate in ALL_RATES[::-1])
    yield when(
        higher() and largest(),
        f"18 plain layers, {flops:.2f} of its FLOPs, {parameters:.1f} times its parameters | **behind** by {both} at 2e-3 and 1e-3 "
        f"({seeds()}; over documents both intervals leave 0 out)",
    )
    amount = f"{found.difference:.3f} behind"
    yield when(
        higher(), f"on {ours['tokens'] / 1e6:.1f} million tokens, at the better of two rates each, the middle size was {amount}"
    )
    yield when(higher(), f"on four times the text it is {amount} ({seeds()})")
