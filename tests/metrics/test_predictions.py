"""Predictions step by step, neurons and massive activations."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import loopwright.metrics.predictions as module
from loopwright.metrics.predictions import (
    answer_flips,
    lens_reading,
    massive_activations,
    neuron_moments,
    prediction_divergence,
    prediction_entropy,
    settled_step,
)


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


def moments_of(effect: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns kurtosis and skew of each column, in float64."""
    y = effect.double() - effect.double().mean(0)
    second = y.square().mean(0)
    return y.pow(4).mean(0) / second**2, y.pow(3).mean(0) / second**1.5


def test_moments_are_those_of_the_effect_on_the_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    down, words = torch.randn(6, 9, generator=generator), torch.randn(50, 6, generator=generator).exp()
    gain = torch.rand(6, generator=generator) + 0.5
    found = neuron_moments(down, words, gain=gain)
    kurtosis, skew = moments_of(words @ (gain[:, None] * down))
    assert torch.allclose(found.kurtosis.double(), kurtosis, atol=1e-4) and torch.allclose(found.skew.double(), skew, atol=1e-4)
    assert not torch.allclose(neuron_moments(down, words).kurtosis, found.kurtosis)
    assert torch.allclose(neuron_moments(1e-12 * down, words, gain=gain).kurtosis, found.kurtosis, atol=1e-3)
    monkeypatch.setattr(module, "_NUMBERS_AT_ONCE", 100)  # two neurons at a time
    assert torch.allclose(neuron_moments(down, words, gain=gain).kurtosis, found.kurtosis)


def test_planted_neurons_are_told_apart() -> None:
    generator = torch.Generator().manual_seed(1)
    words = 0.05 * torch.randn(400, 16, generator=generator)
    words[7, 0] = 9.0  # one token that channel 0 speaks of
    down = torch.zeros(16, 4)
    down[0, 0], down[0, 1], down[1:, 2] = 1.0, -1.0, torch.randn(15, generator=generator)
    found = neuron_moments(down, words)  # the last neuron does nothing
    assert found.predicts().tolist() == [True, False, False, False]
    assert found.suppresses().tolist() == [False, True, False, False]
    assert found.shares() == (0.25, 0.25)
    assert found.predicts(threshold=1e6).sum() == 0
    assert found.kurtosis[0].item() == pytest.approx(400, rel=0.05)  # one of n: about n


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="of one D"):
        neuron_moments(torch.ones(4, 6), torch.ones(9, 6))


def test_a_planted_one_is_found_and_both_thresholds_count() -> None:
    x = torch.full((3, 4, 8), 0.1)
    x[0, 2, 5] = -150.0
    x[1, 2, 5] = 99.0  # too small
    x[2] = 1.0
    x[2, 1, 3] = 999.0  # not far enough from the rest
    found = massive_activations(x)
    assert found.massive.tolist() == [1, 0, 0]
    assert found.top.tolist() == [150, 99, 999] and found.token.tolist() == [2, 2, 1] and found.channel.tolist() == [5, 5, 3]
    assert found.ratio.tolist() == torch.tensor([150 / 0.1, 99 / 0.1, 999]).tolist()
    assert massive_activations(x, floor=90, ratio=900).massive.tolist() == [1, 1, 1]


@settings(max_examples=25)
@given(seed=st.integers(0, 999), tokens=st.integers(1, 6), left=st.integers(0, 3), right=st.integers(0, 3))
def test_padded_is_alone(seed: int, tokens: int, left: int, right: int) -> None:
    x = 100 * torch.randn(2, tokens, 5, generator=torch.Generator().manual_seed(seed))
    valid = torch.nn.functional.pad(torch.ones(2, tokens), (left, right))
    for value in (1e9, torch.nan):
        padded = torch.nn.functional.pad(x, (0, 0, left, right), value=value)
        found, alone = massive_activations(padded, valid, ratio=2), massive_activations(x, ratio=2)
        for name in ("top", "median", "token", "channel", "massive"):
            assert torch.equal(getattr(found, name), getattr(alone, name)), name


def test_what_is_no_number_is_said() -> None:
    x = torch.ones(3, 2, 4)
    x[0, 0, 0], x[1, 0, 0] = torch.nan, torch.inf
    found = massive_activations(x, torch.tensor([[1, 1], [1, 1], [0, 0]]))
    assert found.top[0].isnan() and found.top[1].isinf() and found.top[2].isnan() and found.median[2].isnan()
    assert found.massive.tolist() == [0, 1, 0]
