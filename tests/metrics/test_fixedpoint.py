"""Fixed points: the farthest layer, gaps to it, and cyclic, degenerate and missing convergence told apart on known maps."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from loopwright.metrics.attention import attention_distance
from loopwright.metrics.states import (
    CONVERGENCE,
    convergence,
    farthest_layers,
    farthest_maps,
    fixed_point_gap,
    residual_cosine,
    residual_distance,
)
from tests.metrics.maps import causal_maps


def test_the_farthest_layer_by_distance_need_not_be_that_by_cosine() -> None:
    one = torch.tensor([1.0, 0.0])
    fixed = torch.stack([one, 9 * one, torch.tensor([0.0, 1.0])]).view(3, 1, 1, 2).expand(3, 2, 4, 2)
    found = farthest_layers(fixed)
    assert found.distance.tolist() == [[1, 1], [2, 2], [1, 1]]
    assert found.cosine.tolist() == [[2, 2], [2, 2], [0, 0]]
    gap = fixed_point_gap(fixed[0], fixed, layer=0, farthest=found)
    assert gap.distance.tolist() == [0, 0] and gap.cosine.tolist() == [1, 1]
    assert gap.far_distance.tolist() == [8, 8] and gap.far_cosine.tolist() == [0, 0]


@settings(max_examples=20)
@given(seed=st.integers(0, 999), layers=st.integers(2, 4), pad=st.integers(0, 3))
def test_gaps_are_extremes_over_layers_and_rows_stand_alone(seed: int, layers: int, pad: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    fixed, state = torch.randn(layers, 3, 4, 5, generator=generator), torch.randn(3, 4, 5, generator=generator)
    farthest = farthest_layers(fixed)
    each = torch.stack([residual_distance(fixed[1], x) for x in fixed])
    assert torch.equal(each.gather(0, farthest.distance[1:2])[0], each.amax(0))
    each = torch.stack([residual_cosine(fixed[1], x) for x in fixed])
    assert torch.equal(each.gather(0, farthest.cosine[1:2])[0], each.amin(0))
    gap = fixed_point_gap(state, fixed, layer=1, farthest=farthest)
    assert torch.equal(gap.far_cosine, fixed_point_gap(state, list(fixed), layer=1, farthest=farthest).far_cosine)

    def padded(x: Tensor) -> Tensor:
        return torch.nn.functional.pad(x, (0, 0, pad, 0), value=torch.nan)

    valid = torch.nn.functional.pad(torch.ones(3, 4), (pad, 0))
    for row in range(3):
        alone = padded(fixed[:, row : row + 1])
        other = farthest_layers(alone, valid[:1])
        found = fixed_point_gap(padded(state[row : row + 1]), alone, layer=1, farthest=other, valid=valid[:1])
        for name in ("distance", "cosine", "far_distance", "far_cosine"):
            assert torch.allclose(getattr(found, name)[0], getattr(gap, name)[row], atol=1e-6), name


def test_the_farthest_map() -> None:
    maps = torch.stack([causal_maps(2, 3, 5, seed=i) for i in range(4)])
    found = farthest_maps(maps)
    each = torch.stack([attention_distance(maps[2], x).mean(-1) for x in maps])
    assert found.shape == (4, 2) and torch.equal(found[2], each.argmax(0))


def run(layers: list[Tensor], bias: list[Tensor], steps: int = 128) -> Tensor:
    """Returns the residual after each layer of each step [S, L, 1, 1, D] of affine layers."""
    state, seen = torch.ones(1, 1, layers[0].shape[0], dtype=torch.float64), []
    for _ in range(steps):
        for weight, add in zip(layers, bias, strict=True):
            state = state @ weight + add
            seen.append(state)
    return torch.stack(seen).unflatten(0, (steps, len(layers)))


def kind(path: Tensor) -> str:
    fixed = path[-1]
    farthest = farthest_layers(fixed)
    gaps = [fixed_point_gap(step[0], fixed, layer=0, farthest=farthest) for step in path[:-1]]
    same, far = (torch.stack([getattr(gap, name)[0] for gap in gaps]) for name in ("cosine", "far_cosine"))
    return CONVERGENCE[convergence(same, far)]


def test_kinds_of_convergence() -> None:
    eye = torch.eye(2, dtype=torch.float64)
    turn = torch.tensor([[0.6, 0.8], [-0.8, 0.6]], dtype=torch.float64)
    here, there = torch.tensor([1.0, 0.0], dtype=torch.float64), torch.tensor([0.0, 1.0], dtype=torch.float64)
    assert kind(run([0.5 * eye, 0.5 * eye], [here, there])) == "cyclic"
    assert kind(run([0.5 * eye, eye], [here, 0 * here])) == "degenerate"
    assert kind(run([turn, eye], [0 * here, here])) == "none"
    assert kind(run([0.5 * eye], [here])) == "cyclic"  # one layer has no other to share its point with


def test_slow_convergence_counts_in_the_second_half_only() -> None:
    same = torch.tensor([[0.0] * 5 + [1.0] * 5, [0.0] * 6 + [1.0] * 4, [1.0] * 9 + [torch.nan]])
    assert convergence(same, torch.zeros(3, 10)).tolist() == [1, 0, 0]
    assert convergence(same, same).tolist() == [2, 0, 0]
    with pytest.raises(ValueError, match="of one shape"):
        convergence(same, same[0])
