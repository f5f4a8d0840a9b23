"""Huginn's Adam. Its equation over several updates is held in tests/systems/test_huginn.py."""

from __future__ import annotations

import math

import pytest
import torch

from loopwright.training.optim import EllisAdam


def moved(grads: list[float], weight: float = 0.0, **options: float) -> float:
    """Where a weight stands after updates with these gradients, in units of the rate."""
    p = torch.nn.Parameter(torch.tensor([weight], dtype=torch.float64))
    optimiser = EllisAdam([p], lr=1e-3, betas=(0.9, 0.95), **options)
    for grad in grads:
        p.grad = torch.tensor([grad], dtype=torch.float64)
        optimiser.step()
    return (p.item() - weight) / 1e-3


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_the_first_step_is_larger_than_the_rate_and_the_same_for_every_size_of_gradient(size: float) -> None:
    assert moved([size]) == pytest.approx(-math.atan2(1, 1 / math.sqrt(0.05)) / 0.1, rel=1e-9)


def test_a_gradient_of_zero_moves_nothing_and_is_no_fault() -> None:
    assert moved([0.0, 0.0, 0.0]) == 0.0


def test_a_spike_is_held_back_over_its_whole_tensor() -> None:
    """g / √v of a spike is 1 / √(1 − β₂) at most: so much less the tensor moves, also where its gradient is as it was."""
    p = torch.nn.Parameter(torch.zeros(4))
    optimiser = EllisAdam([p], lr=1.0, betas=(0.9, 0.95))
    for spike in (1.0, 1.0, 1e3):
        before = p.detach().clone()
        p.grad = torch.tensor([spike, spike, spike, 1.0])
        optimiser.step()
    bias = 1 - 0.9**3
    free = math.atan2(1.0, math.sqrt(1.0 / (1 - 0.95**3))) / bias  # of the last weight, whose gradients are all alike
    assert (before - p)[3].item() == pytest.approx(free / math.sqrt(3 / 4 / 0.05), rel=0.02)


def test_decay_follows_the_schedule_and_not_the_rate() -> None:
    p = torch.nn.Parameter(torch.tensor([1.0], dtype=torch.float64))
    optimiser = EllisAdam([p], lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    for factor, left in ((1.0, 0.9), (0.5, 0.9 * 0.95), (0.0, 0.9 * 0.95)):
        optimiser.param_groups[0]["lr"] = 1e-3 * factor
        p.grad = torch.zeros_like(p)
        optimiser.step()
        assert p.item() == pytest.approx(left, rel=1e-12)


def test_what_has_no_gradient_stays_and_a_closure_is_called() -> None:
    p, q = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    optimiser = EllisAdam([p, q], lr=0.1, betas=(0.9, 0.95), weight_decay=0.1)

    def closure() -> float:
        p.grad = torch.ones(2)
        return 3.0

    assert optimiser.step(closure) == 3.0 and p[0] < 0.9 and torch.equal(q, torch.ones(2)) and q not in optimiser.state


def test_a_rate_of_zero_moves_nothing() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    weight.grad = torch.ones(3)
    EllisAdam([weight], lr=0.0, betas=(0.9, 0.95), weight_decay=0.1).step()
    assert torch.equal(weight, torch.ones(3))
