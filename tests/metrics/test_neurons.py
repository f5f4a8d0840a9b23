"""Prediction and suppression neurons: moments by their definition, planted neurons are found."""

from __future__ import annotations

import pytest
import torch

import loopwright.metrics.predictions as module
from loopwright.metrics.predictions import neuron_moments


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
