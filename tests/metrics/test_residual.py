"""Relative steps and contraction factors, on maps whose factors are known."""

from __future__ import annotations

import pytest
import torch

from loopwright.metrics.residual import contraction, relative_step


def test_relative_step_is_a_ratio_of_norms_per_row() -> None:
    a = torch.tensor([[[3.0, 0.0], [0.0, 4.0]], [[1.0, 0.0], [0.0, 0.0]]])
    b = a + torch.tensor([[[0.3, 0.0], [0.0, 0.4]], [[0.0, 2.0], [0.0, 0.0]]])
    assert torch.allclose(relative_step(a, b), torch.tensor([0.1, 2.0]))


def test_padding_does_not_count() -> None:
    a, b = torch.randn(2, 5, 3), torch.randn(2, 5, 3)
    valid = torch.tensor([[True] * 5, [False, False, True, True, True]])
    found = relative_step(a, b, valid)
    assert torch.allclose(found[0], relative_step(a[:1], b[:1])[0])
    assert torch.allclose(found[1], relative_step(a[1:, 2:], b[1:, 2:])[0])
    poisoned = b.clone()
    poisoned[1, :2] = float("nan")
    assert torch.equal(found, relative_step(a, poisoned, valid.long()))


@pytest.mark.parametrize("count", [3, 4, 9])
@pytest.mark.parametrize("factor", [0.5, 1.0, 1.3])
def test_contraction_of_a_scaled_rotation_is_its_factor(count: int, factor: float) -> None:
    turn = factor * torch.tensor([[0.6, 0.8], [-0.8, 0.6]], dtype=torch.float64)
    states = [torch.randn(3, 2, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))]
    for _ in range(count - 1):
        states.append(states[-1] @ turn + 1)
    assert torch.allclose(contraction(states), torch.full((3,), factor, dtype=torch.float64))
    assert torch.equal(contraction(torch.stack(states)), contraction(states))
    valid = torch.tensor([[True, True]] * 3)
    states[-1] = states[-1].clone()
    states[-1][:, 1] = 99.0
    valid[:, 1] = False
    assert torch.allclose(contraction(states, valid), torch.full((3,), factor, dtype=torch.float64))


def test_what_stands_still_has_moved_by_nothing() -> None:
    zero, one = torch.zeros(1, 2, 3), torch.ones(1, 2, 3)
    assert relative_step(zero, zero).tolist() == [0.0]
    assert relative_step(zero, one).tolist() == [float("inf")]
    assert contraction([one, one, one]).tolist() == [0.0]
    with pytest.raises(ValueError, match="2 states"):
        contraction([one, one])


def test_low_precision_is_summed_in_float32() -> None:
    a = torch.ones(1, 4096, 2, dtype=torch.bfloat16)
    assert relative_step(a, a * 1.5).dtype == torch.float32
    assert relative_step(a, a * 1.5).item() == pytest.approx(0.5, rel=1e-6)
