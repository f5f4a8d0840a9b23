"""Verdicts: the words follow the numbers, in each direction."""

import copy
from typing import Any

from loopwright.analysis.report.findings import converges, safe, stages
from tests.analysis.summaries import dense, looped


def made(**changes: Any) -> dict[str, Any]:
    metrics = copy.deepcopy(looped())
    metrics["limits"]["tokens"] = [1.0, 0.0, 0.0, 0.0]
    metrics["convergence"]["layers"] = [[0.0, 1.0, 0.0]] * 4
    metrics["answers"] |= {"depth": 4, "kept": 1.0}
    metrics["spectrum"]["radius"] = [0.5, 0.5, 0.5]
    steady = metrics["by_place"]["colsum"]["mean"]
    for i in range(1, 49):
        steady[i] = 0.1 * ((i - 1) % 4)
    return metrics | changes


def test_a_cycle_a_single_point_and_no_rest():
    assert converges(made()).good and "points of their own" in converges(made()).sentence
    shares = {"labels": [], "layers": [[0.0, 0.0, 1.0]] * 4}
    assert "one point" in converges(made(convergence=shares)).sentence
    shares = {"labels": [], "layers": [[1.0, 0.0, 0.0]] * 4}
    assert converges(made(convergence=shares)).good is False
    shares = {"labels": [], "layers": [[0.3, 0.7, 0.0]] * 4}
    assert converges(made(convergence=shares)).sentence.startswith("Mostly: 70 %")
    shares = {"labels": [], "layers": [[0.45, 0.0, 0.55]] * 4}
    assert converges(made(convergence=shares)).sentence.startswith("Mostly, but to one point: 55 %")
    assert converges(made(convergence=shares)).good is None
    shares = {"labels": [], "layers": [[0.0, 0.6, 0.4]] * 4}
    found = converges(made(convergence=shares))
    assert found.good and found.sentence.startswith("Yes: 100 %") and "(40 % where the others rest too)" in found.sentence
    few = made()
    del few["convergence"]
    assert converges(few).good is None


def test_a_state_that_grows_does_not_rest_however_its_direction_does():
    def of(sizes: list[float | None]) -> Any:
        return converges(made(by_step={**looped()["by_step"], "state_norm": {"mean": sizes}}))

    assert of([1.0] * 12).good
    grown = of([float(t) for t in range(1, 13)])
    assert grown.good is False and grown.sentence.endswith("it is 2.0 times as long after 12 steps as after 6.")
    assert of([1.0] * 6 + [None] * 6).good  # told elsewhere: a state that is no number


def test_one_layer_has_no_stages():
    one = made(places={"prelude": 0, "core": 1, "coda": 0, "steps": 12})
    assert stages(one, dense()).sentence.startswith("Not shown: one layer") and not stages(one, None).numbers
    two = made(places={"prelude": 1, "core": 1, "coda": 0, "steps": 12})
    assert "one layer" not in stages(two, None).sentence


def test_layers_at_rest_with_tokens_that_swing_are_no_yes():
    """A layer rests in the mean over its tokens."""
    swings = made(limits={"tokens": [0.9, 0.08, 0.02, 0.0]})
    assert converges(swings).good is None
    assert (
        converges(swings).sentence.startswith("Mostly: 100 % of layers")
        and "Of their tokens 8 % orbit, 2 % slide." in converges(swings).sentence
    )


def test_depth_is_safe_only_where_everything_says_so():
    found = safe(made())
    assert found.good is True and found.sentence.startswith("Yes, up to the 12 steps that were run: states rest")


def test_answers_that_change_say_no_with_what_else_speaks_against_it():
    found = safe(made(answers={"depth": 4, "kept": 0.5}, spectrum={"radius": [1.2]}))
    assert found.good is False
    assert found.sentence == (
        "No: only 50 % of answers at depth 12 are those of depth 4 (wanted: at least 95 %); ρ = 1.20 at the last state."
    )


def test_answers_that_stay_are_never_called_a_no():
    """What is missing or speaks against safety leaves the question open, and the reason says what it is."""
    for key, value, word in (
        ("limits", {"tokens": [0.9, 0.1, 0, 0]}, "90 % of tokens at rest"),
        ("spectrum", {"radius": [1.2]}, "ρ = 1.20"),
        ("spectrum", {}, "ρ not measured"),
    ):
        found = safe(made(**{key: value}))
        assert found.good is None and word in found.reason
        assert found.sentence.startswith("Not shown: 100 % of answers stay as at depth 4, but ")
    moved = made()
    for i in range(45, 49):
        moved["by_place"]["colsum"]["mean"][i] += 0.2
    assert safe(moved).good is None and "stages moved" in safe(moved).sentence
    uncompared = safe(made(answers={"depth": 4}))
    assert uncompared.good is None and uncompared.sentence.startswith("Not shown: no answers were compared (wanted")
    assert all("of answers" not in what for _, what in uncompared.numbers), "no number where nothing was measured"


def test_too_few_steps_are_not_called_motion():
    few = made()
    del few["limits"]
    assert safe(few).good is None and "too few steps to see tokens rest" in safe(few).sentence


def test_nothing_is_said_beyond_what_was_run():
    assert safe(made(answers={"depth": 12, "kept": 1.0})).good is None
    assert safe(dense()).good is None


def test_stages_are_those_of_a_model_of_the_same_shape():
    metrics = made()
    other = copy.deepcopy(dense())
    first = metrics["by_place"]["colsum"]["mean"]
    other["by_place"]["colsum"]["mean"] = [first[0], *first[1:5], first[-1]]
    assert stages(metrics, other).good and stages(metrics, other).numbers[1][0] == "1.00"
    for i in range(5, 45):
        metrics["by_place"]["colsum"]["mean"][i] *= -1
    few = stages(metrics, other)
    assert few.good is None and few.sentence.startswith("Only in 16.6 % of steps: the curve over one block has")
    metrics = made()
    other["by_place"]["colsum"]["mean"] = [-v for v in other["by_place"]["colsum"]["mean"]]
    assert stages(metrics, other).good is False
    assert stages(metrics, None).good is None and stages(dense(), None).good is None


def test_a_feedforward_models_stages_are_told_in_words():
    metrics = copy.deepcopy(dense())
    metrics["by_place"]["colsum"]["mean"] = [0.1, 0.2, 0.9, 0.3, 0.2, 0.1]
    metrics["by_place"]["entropy"]["mean"] = [2.0, None, 1.0, 0.5, 1.5, 1.0]
    metrics["by_place"]["largest"]["mean"] = [1.0, 23504.1, 3.0, 4.0, 5.0, 6.0]
    found = stages(metrics, None)
    assert "on few tokens at 40 % of its depth" in found.sentence and "most compressed at 60 %" in found.sentence
    assert [value for value, _ in found.numbers] == ["0.90", "0.50", "23,504"]
    metrics["by_place"]["colsum"]["mean"], metrics["by_place"]["entropy"]["mean"] = [0.1] * 5 + [0.2], [0.5] + [None] * 5
    metrics["by_place"]["largest"]["mean"] = [None] * 6
    words = stages(metrics, None).sentence
    assert "at its last layer" in words and "most compressed at its first layer" in words and "stands at no layer" in words
