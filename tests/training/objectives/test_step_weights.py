"""Weights over steps: their sum, their forms, and what is refused."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.training.objectives.readout import StepWeights


@given(st.integers(1, 9), st.sampled_from(["uniform", "linear", "geometric", [0.0, 0.0, 2.0]]), st.floats(0.1, 2))
@settings(max_examples=30)
def test_weights_sum_to_one(steps, weights, ratio):
    found = StepWeights("x", weights, ratio)(steps)
    assert len(found) == (steps if isinstance(weights, str) else min(steps, 3))
    assert sum(found) == pytest.approx(1) and min(found) >= 0


def test_the_forms():
    assert StepWeights("x", "linear")(4) == pytest.approx([0.1, 0.2, 0.3, 0.4])
    assert StepWeights("x", "geometric", 0.5)(3) == pytest.approx([1 / 7, 2 / 7, 4 / 7])


@pytest.mark.parametrize("weights", ["linera", [], [1.0, 0.0], [-1.0, 1.0], [float("nan"), 1.0]])
def test_what_is_no_weighting_is_refused_in_one_line(weights):
    with pytest.raises(ValueError, match=r"^objective \(grpo\): credit is") as error:
        StepWeights("objective (grpo): credit", weights)
    assert "\n" not in str(error.value)
