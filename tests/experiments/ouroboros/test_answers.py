"""The answer and the target, from differences and shares made by hand."""

from __future__ import annotations

import pytest

from experiments.ouroboros.answers import Candidate, answer, candidates, decided, named, target_sentence
from experiments.seeds import Pooled, Share
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


def test_one_answer_where_all_trained_depths_agree() -> None:
    found = {depth: {"test": LOWER, "ood": pair(-0.05)} for depth in (1, 2, 4, 8)} | {16: {"test": HIGHER, "ood": HIGHER}}
    assert answer(found) == (
        "Yes, at every depth trained (1, 2, 4 and 8). Beyond them: no at depth 16. "
        "Differences of loss at equal depth go from −0.1000 to −0.0500 (2 seeds)."
    )


def test_the_depths_are_named_where_they_part() -> None:
    found = {1: HIGHER, 2: OPEN, 4: LOWER, 8: LOWER}
    said = answer({depth: {"test": each, "ood": each} for depth, each in found.items()})
    assert said.startswith("It depends on the depth: yes at depth 4 and 8; no at depth 1; not resolved at depth 2. Differences")
    assert answer({}) == "Not measured." and answer({16: {"test": LOWER}}) == "Not measured."


def share(value: float, low: float) -> Share:
    return Share(value, low, 2 * value - low, 1.0, (value,))


def test_the_target_is_asked_of_the_best_on_the_first_text() -> None:
    good = Candidate("good", 0.05, {"test": share(0.8, 0.75), "ood": share(0.51, 0.45)})
    bad = Candidate("bad", 0.05, {"test": share(0.6, 0.5), "ood": share(0.9, 0.8)})
    said = target_sentence([bad, good], "Best")
    assert said.startswith("Best: good (1 seed), 5.0 % of the kept parameters trained; 80.0 % (75.0 % to 85.0 %) on test")
    assert "target 70 %: met;" in said and "target 50 %: met by the mean, not by the interval's low end." in said
    assert "on test, target 70 %: not met;" in target_sentence([bad], "Best")
    assert target_sentence([], "Best") == "Best: none was measured."


def test_who_the_target_is_asked_of() -> None:
    both = {"test": share(0.5, 0.4), "ood": share(0.5, 0.4)}
    leaking = result("leaking", {1: 0.0})
    leaking["texts"]["test"]["likelihood"] = False
    runs = {
        "fine": [result("fine", {1: 0.0})], "leaking": [leaking], "large": [result("large", {1: 0.0}, trainable=11)],
        "whole": [result("whole", {1: 0.0}, system="refiner")], "end": [result("end", {1: 0.0}, group="references")],
        "untrained": [result("untrained", {1: 0.0}, trainable=0)], "no share": [result("no share", {1: 0.0})],
    }  # fmt: skip
    shares = {label: both for label in runs if label != "no share"}
    assert [each.label for each in candidates(runs, shares)] == ["fine"]


def test_a_name_is_marked_where_the_future_is_seen_and_where_a_run_diverged() -> None:
    sound, rough = result("a", {1: 0.0}, losses=[7.0, 5.0, 5.9]), result("a", {1: 0.0}, losses=[])
    assert named("a", [sound, rough]) == "a"
    diverged, leaking = result("a", {1: 0.0}, losses=[7.0, 5.0, 6.1]), result("a", {1: 0.0})
    assert named("a", [sound, diverged]) == "a ‡"
    leaking["texts"]["ood"]["likelihood"] = False
    assert named("a", [leaking, sound]) == "a †" and named("a", [leaking, diverged]) == "a † ‡"
