"""Stage curves: resampling, distance and correlation on curves whose answers are known."""

from __future__ import annotations

import math

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.metrics.attention import block_curves, block_halves, curve_correlation, curve_distance, relative_depth, resample


@settings(max_examples=25)
@given(seed=st.integers(0, 999), layers=st.integers(1, 12), points=st.integers(2, 50))
def test_resampling_is_linear_interpolation(seed: int, layers: int, points: int) -> None:
    curve = torch.randn(2, layers, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    at = numpy.linspace(0, 100, points)
    expected = [numpy.interp(at, relative_depth(layers).numpy(), row.numpy()) for row in curve]
    assert numpy.allclose(resample(curve, points).numpy(), numpy.stack(expected))


def test_a_line_is_the_same_line_at_any_number_of_layers() -> None:
    line = torch.linspace(0, 1, 4)
    assert curve_distance(line, torch.linspace(0, 1, 16)).item() == pytest.approx(0, abs=1e-7)
    assert curve_distance(line, torch.zeros(5)).item() == pytest.approx(0.5)
    assert curve_distance(line, line + 0.25).item() == pytest.approx(0.25)
    assert curve_correlation(line, torch.linspace(3, 9, 7)).item() == pytest.approx(1)
    assert curve_correlation(line, -line).item() == pytest.approx(-1)
    assert math.isnan(curve_correlation(line, torch.ones(3)).item())


def test_one_dense_curve_meets_every_step() -> None:
    steps, dense = torch.rand(5, 6), torch.rand(11)
    found = curve_distance(steps, dense)
    assert found.shape == (5,)
    assert torch.allclose(found, torch.stack([curve_distance(step, dense) for step in steps]))
    assert torch.allclose(curve_distance(dense, steps), found)


def test_a_block_stands_between_prelude_and_coda_at_every_step() -> None:
    prelude, core, coda = torch.tensor([1.0, 2.0]), torch.tensor([[3.0], [4.0]]), torch.tensor([5.0])
    assert block_curves(prelude, core, coda).tolist() == [[1, 2, 3, 5], [1, 2, 4, 5]]
    assert block_curves(prelude[:0], core, coda[:0]).tolist() == core.tolist()
    assert block_curves(prelude.expand(3, 2), core.expand(3, 2, 1), coda.expand(3, 1)).shape == (3, 2, 4)


def test_halves() -> None:
    first, second = block_halves(torch.arange(6))
    assert first.tolist() == [0, 1, 2] and second.tolist() == [3, 4, 5]
    first, second = block_halves(torch.arange(5))
    assert first.tolist() == [0, 1, 2] and second.tolist() == [2, 3, 4]


def test_no_layers_are_refused() -> None:
    with pytest.raises(ValueError, match="0 layers at 101 points"):
        resample(torch.zeros(0))
