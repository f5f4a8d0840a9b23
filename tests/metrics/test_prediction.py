"""Predictions per step: entropy and divergence of known distributions, flips and settled steps."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.metrics.predictions import answer_flips, lens_reading, prediction_divergence, prediction_entropy, settled_step


def test_known_distributions() -> None:
    flat, sure = torch.zeros(8), torch.tensor([0.0] + [-math.inf] * 7)
    assert prediction_entropy(flat).item() == pytest.approx(math.log(8)) and prediction_entropy(sure).item() == 0
    assert prediction_divergence(sure, flat).item() == pytest.approx(math.log(8))
    assert prediction_divergence(flat, sure).item() == math.inf and prediction_divergence(sure, sure).item() == 0
    p, q = torch.tensor([0.9, 0.1]), torch.tensor([0.5, 0.5])
    assert prediction_divergence(p.log() + 3, q.log()).item() == pytest.approx(0.9 * math.log(1.8) + 0.1 * math.log(0.2), rel=1e-5)


@settings(max_examples=25)
@given(seed=st.integers(0, 999), scale=st.floats(0.1, 20))
def test_divergence_is_that_of_torch_and_never_negative(seed: int, scale: float) -> None:
    a, b = scale * torch.randn(2, 3, 5, 11, generator=torch.Generator().manual_seed(seed))
    expected = torch.nn.functional.kl_div(b.log_softmax(-1), a.log_softmax(-1), log_target=True, reduction="none").sum(-1)
    assert torch.allclose(prediction_divergence(a, b), expected, atol=1e-5) and (prediction_divergence(a, b) >= 0).all()
    assert prediction_divergence(a, a + 1).max() < 1e-4  # a shift of all logits says nothing
    assert torch.allclose(prediction_entropy(a), torch.distributions.Categorical(logits=a).entropy(), atol=1e-5)


def test_a_reading_compares_with_the_step_before() -> None:
    steps = torch.randn(4, 2, 3, 9, generator=torch.Generator().manual_seed(0))
    readings = [lens_reading(steps[0])] + [lens_reading(b, a) for a, b in itertools.pairwise(steps)]
    assert readings[0].divergence.isnan().all() and not readings[0].flipped.any()
    answers = torch.stack([reading.answer for reading in readings])
    assert torch.equal(answers, steps.argmax(-1))
    assert torch.equal(torch.stack([reading.flipped for reading in readings[1:]]), answer_flips(answers))
    assert torch.equal(readings[2].divergence, prediction_divergence(steps[2], steps[1]))
    assert lens_reading(steps[0].bfloat16()).entropy.dtype == torch.float32


def test_flips_and_settled_steps() -> None:
    answers = torch.tensor([[1, 4, 5], [1, 2, 5], [3, 1, 5], [3, 4, 5]])
    assert answer_flips(answers).sum(0).tolist() == [1, 3, 0]
    assert settled_step(answers).tolist() == [2, 3, 0]  # the second was there before, and left
