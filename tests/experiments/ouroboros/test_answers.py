"""What is decided on both texts, and the marks of a name, from differences made by hand."""

from __future__ import annotations

import pytest

from experiments.ouroboros.answers import decided, named
from experiments.seeds import Pooled
from tests.experiments.results import result


def pair(difference: float, width: float = 0.01, of_seeds: tuple[float, ...] | None = None) -> Pooled:
    alone = of_seeds or (difference, difference)
    low, high = difference - width, difference + width
    return Pooled(tuple(range(len(alone))), (1, 1), difference, low, high, alone, (0.5,) * len(alone), True)


LOWER, HIGHER, OPEN = pair(-0.1), pair(0.1), pair(0.001)


@pytest.mark.parametrize(
    ("test", "ood", "word"),
    [
        (LOWER, LOWER, "yes"),
        (HIGHER, HIGHER, "no"),
        (LOWER, OPEN, "not resolved"),
        (LOWER, HIGHER, "not resolved"),
        (LOWER, pair(-0.1, of_seeds=(-0.3, 0.1)), "not resolved"),
        (LOWER, pair(-0.1, of_seeds=(-0.1,)), "not resolved"),
    ],
)
def test_both_texts_must_agree(test: Pooled, ood: Pooled, word: str) -> None:
    assert decided({"test": test, "ood": ood}) == word


def test_a_name_is_marked_where_the_future_is_seen_and_where_a_run_diverged() -> None:
    sound, rough = result("a", {1: 0.0}, losses=[7.0, 5.0, 5.9]), result("a", {1: 0.0}, losses=[])
    assert named("a", [sound, rough]) == "a"
    diverged, leaking = result("a", {1: 0.0}, losses=[7.0, 5.0, 6.1]), result("a", {1: 0.0})
    assert named("a", [sound, diverged]) == "a ‡"
    leaking["texts"]["ood"]["likelihood"] = False
    assert named("a", [leaking, sound]) == "a †" and named("a", [leaking, diverged]) == "a † ‡"
