"""Directions: a pure function of seed, update, row, token and channel; of norm 1; evenly spread."""

import pytest
import torch

from loopwright.training.objectives.jacobian import POOL, Directions, JacobianProbe, norms, token_places, windows


def drawn(rows, *, seed=0, update=0, length=5, width=16, valid=None, dtype=torch.float64) -> torch.Tensor:
    like = torch.empty(1, length, width, dtype=dtype)
    rows = torch.as_tensor(rows)
    return Directions(seed)(update, rows, token_places(valid, like), like, valid)


def test_norm_one_per_row_over_the_real_tokens():
    valid = torch.tensor([[True] * 5, [False, False, True, True, True]])
    v = drawn([0, 1], valid=valid)
    assert norms(v).flatten().tolist() == pytest.approx([1, 1])
    assert v[1, :2].abs().max() == 0


def test_a_row_has_its_direction_whatever_stands_beside_it():
    v = drawn([3, 8, 1_000_003])
    assert torch.equal(drawn([8]), v[1:2])
    assert torch.equal(drawn([1_000_003, 3]), v[[2, 0]])
    left = drawn([8], length=7, valid=torch.tensor([[False] * 2 + [True] * 5]))
    assert torch.allclose(left[:, 2:], v[1:2], rtol=1e-12)


def test_everything_it_depends_on_changes_it():
    v = drawn([3])
    for other in (drawn([4]), drawn([3], update=1), drawn([3], seed=1), drawn([3], seed=-1)):
        assert (v * other).sum().abs() < 0.6
    assert (v[0, 0] * v[0, 1]).sum().abs() < 0.5 * v[0, 0].norm() * v[0, 1].norm()


def test_directions_are_evenly_spread():
    """The mean of v vᵀ is the unit matrix over n, up to what so many draws leave."""
    v = drawn(torch.arange(6000), length=3, width=8, dtype=torch.float32).flatten(1)
    mean = v.T @ v / len(v) * v.shape[1]
    assert (mean - torch.eye(24)).abs().max() < 5 * 1.5 / len(v) ** 0.5


def test_the_windows_close_to_a_ring():
    w = windows(0, torch.device("cpu"), 16)
    assert w.shape == (POOL, 16)
    assert torch.equal(w[POOL - 1, 1:], w[0, :15])
    assert w[:, 0].std().item() == pytest.approx(0.98, abs=0.02)  # a normal cut at 3


def test_a_probe_picks_and_hides():
    x = torch.arange(12.0).view(3, 2, 2)
    probe = JacobianProbe(torch.tensor([2, 0]), x, torch.tensor([[True, False], [True, True]]))
    assert torch.equal(probe.pick(x), x[[2, 0]])
    assert probe.real(x[:2])[0, 1].tolist() == [0, 0]
    everything = JacobianProbe(None, x, None)
    assert everything.pick(x) is x and everything.real(x) is x
