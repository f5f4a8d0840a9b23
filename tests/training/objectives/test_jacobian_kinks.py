"""What rounding does to the penalty's gradient over activations with a kink: why processes differ more with ReLU."""

from __future__ import annotations

import pytest
import torch

from tests.cases import noisy
from tests.training.objectives.test_jacobian import SMALL, batch_of, gradients, off, value_of

WIDER = {"hidden_size": 32, "intermediate_size": 128}


def worst_change(mlp: str, mode: str, **options) -> float:
    """How far the penalty's gradient moves when all parameters are moved by one part in a million, at worst of 20 ways.

    In float64, so that nothing but the penalty itself makes it large; rounding in float32 moves states by about as much.
    """
    model = noisy("stars-addition-tiny", std=0.3, **{**SMALL, **WIDER, "mlp": mlp, "injection": {"kind": "add"}})
    model, batch = model.double(), batch_of(16, 8)
    before, generator = gradients(model, value_of(model, batch, mode, **options)), torch.Generator().manual_seed(1)
    own, worst = [p.detach().clone() for p in model.parameters()], 0.0
    for _ in range(20):
        with torch.no_grad():
            for parameter, value in zip(model.parameters(), own, strict=True):
                parameter.copy_(value * (1 + 1e-6 * torch.randn(value.shape, generator=generator, dtype=value.dtype)))
        worst = max(worst, off(gradients(model, value_of(model, batch, mode, **options)), before))
    return worst


@pytest.mark.slow
def test_over_relu_the_gradient_of_a_difference_jumps_and_by_how_much():
    """A unit whose sign differs between the two ends of the difference weighs 1/ε in the gradient: one that is 0 up to rounding
    is on either side by chance. So processes that round otherwise differ more than with GELU, a larger ε or the exact product."""
    smooth = worst_change("gelu", "fd", share=1.0, eps=3e-3)
    kinked = worst_change("relu", "fd", share=1.0, eps=3e-3)
    assert smooth < 5e-5 and 3 * smooth < kinked < 1e-3
    assert worst_change("relu", "fd", share=1.0, eps=3e-2) < 2 * smooth
    assert worst_change("relu", "exact") < 2 * smooth
