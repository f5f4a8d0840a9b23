"""The residual stream: its numbers, its paths and where it comes to rest."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

from loopwright.metrics.attention import attention_distance
from loopwright.metrics.states import (
    CONVERGENCE,
    contraction,
    convergence,
    cycle_path,
    farthest_layers,
    farthest_maps,
    fixed_point_gap,
    last_tokens,
    layer_paths,
    pca_path,
    pca_paths,
    prompt_path,
    relative_step,
    residual_cosine,
    residual_cosines,
    residual_distance,
    residual_entropy,
    residual_norm,
    step_factors,
    step_windows,
    token_cosines,
    token_mean,
    token_norms,
)
from tests.cases import golden_folders
from tests.metrics.maps import causal_maps, padded_states

CASES = [
    (folder, case["prefix"])
    for folder in golden_folders("attention-metrics")
    for case in json.loads((folder / "case.json").read_text())["cases"]
]


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
@pytest.mark.parametrize(("folder", "prefix"), CASES)
def test_entropy_is_golden(folder: Path, prefix: str, dtype: torch.dtype, bound: float) -> None:
    values = load_file(folder / "golden.safetensors")
    x, valid = values[prefix + "residual"].to(dtype), values.get(prefix + "token_mask")
    assert abs(residual_entropy(x, valid).item() - values[prefix + "matrix_entropy"].item()) < bound


def test_entropy_of_known_spectra() -> None:
    assert residual_entropy(torch.eye(5)).item() == pytest.approx(math.log(5))
    assert residual_entropy(torch.ones(7, 3)).item() == pytest.approx(0, abs=1e-12)
    assert residual_entropy(torch.eye(6)[:, :2]).item() == pytest.approx(math.log(2))
    x = torch.diag(torch.tensor([3.0, 1.0]))  # eigenvalues 9 and 1 of 10
    assert residual_entropy(1e30 * x).item() == pytest.approx(-(0.9 * math.log(0.9) + 0.1 * math.log(0.1)))


@pytest.mark.parametrize("shape", [(3, 9), (9, 3)])
def test_the_smaller_gram_matrix_is_decomposed(shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    seen, real = [], torch.linalg.eigvalsh
    monkeypatch.setattr(torch.linalg, "eigvalsh", lambda x: (seen.append(tuple(x.shape)), real(x))[1])
    residual_entropy(torch.randn(2, *shape))
    assert seen == [(2, 3, 3)]


def test_entropy_where_there_is_nothing_or_no_number() -> None:
    x = torch.stack([torch.zeros(3, 4), torch.full((3, 4), torch.nan), torch.eye(3, 4), torch.eye(3, 4)])
    found = residual_entropy(x, torch.tensor([[1, 1, 1], [1, 1, 1], [1, 1, 0], [0, 0, 0]]))
    assert found[0] == 0 and found[1].isnan() and found[2].item() == pytest.approx(math.log(2)) and found[3].isnan()


@settings(max_examples=25)
@given(seed=st.integers(0, 999), tokens=st.integers(1, 8), width=st.integers(1, 8), left=st.integers(0, 3), right=st.integers(0, 3))
def test_padded_states_are_states_alone(seed: int, tokens: int, width: int, left: int, right: int) -> None:
    a, b, padded_a, padded_b, valid = padded_states(2, tokens, width, left, right, seed=seed)
    assert torch.allclose(residual_entropy(padded_a, valid), residual_entropy(a), atol=1e-6)
    assert torch.allclose(residual_norm(padded_a, valid), residual_norm(a), atol=1e-6)
    assert torch.allclose(residual_distance(padded_a, padded_b, valid=valid), residual_distance(a, b), atol=1e-6)
    assert torch.allclose(residual_cosine(padded_a, padded_b, valid=valid), residual_cosine(a, b), atol=1e-6)
    states, padded = torch.stack([a, b, a + b]), torch.stack([padded_a, padded_b, padded_a + padded_b])
    assert torch.allclose(residual_cosines(padded, valid), residual_cosines(states), atol=1e-6)


@settings(max_examples=25)
@given(seed=st.integers(0, 999), tokens=st.integers(1, 9), width=st.integers(1, 9))
def test_both_gram_sides_have_one_entropy(seed: int, tokens: int, width: int) -> None:
    x = torch.randn(tokens, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    assert torch.allclose(residual_entropy(x), residual_entropy(x.T), atol=1e-6)
    assert torch.allclose(residual_entropy(x), residual_entropy(-3 * x.flip(0)), atol=1e-6)
    assert -1e-12 <= residual_entropy(x) <= math.log(min(tokens, width)) + 1e-9


def test_norms_and_cosines_of_known_vectors() -> None:
    a = torch.tensor([[[3.0, 4.0], [1.0, 0.0]]])
    b = torch.tensor([[[-4.0, 3.0], [2.0, 0.0]]])
    assert token_norms(a).tolist() == [[5.0, 1.0]] and residual_norm(a).item() == 3
    assert token_cosines(a, b).tolist() == [[0.0, 1.0]] and residual_cosine(a, b).item() == 0.5
    assert residual_distance(a, b).item() == pytest.approx((math.sqrt(50) + 1) / 2)
    zero = torch.zeros_like(a)
    assert token_cosines(zero, zero).tolist() == [[1.0, 1.0]] and token_cosines(zero, a).tolist() == [[0.0, 0.0]]
    huge = torch.tensor([[[1e18, 1e18]]])
    assert token_cosines(huge, -huge).item() == pytest.approx(-1)
    assert token_mean(torch.tensor([1.0, math.inf]), torch.tensor([1, 0])).item() == 1


def test_every_pair_is_each_pair() -> None:
    states = torch.randn(4, 3, 5, 6, generator=torch.Generator().manual_seed(0))
    valid = torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1], [1, 0, 0, 0, 0]])
    found = residual_cosines(states, valid)
    each = [[residual_cosine(a, b, valid=valid).mean() for b in states] for a in states]
    assert torch.allclose(found, torch.tensor(each), atol=1e-6)
    assert torch.allclose(found.diagonal(), torch.ones(4), atol=1e-6)


def test_factors_of_a_path_tend_to_the_leading_eigenvalue() -> None:
    map_ = torch.diag(torch.tensor([0.9, 0.3], dtype=torch.float64))
    states = [torch.tensor([[[1.0, 5.0]]], dtype=torch.float64)]
    for _ in range(30):
        states.append(states[-1] @ map_)
    changes = torch.stack([residual_distance(a, b) for a, b in itertools.pairwise(states)])
    factors = step_factors(changes)
    assert factors.shape == (29, 1) and factors[0] < 0.5 and factors[-1].item() == pytest.approx(0.9)
    assert step_factors(torch.zeros(3)).tolist() == [0.0, 0.0]


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


def spiral(steps: int = 20) -> torch.Tensor:
    t = torch.arange(steps).double()
    return torch.stack([3 * torch.exp(-t / 6) * torch.cos(t), torch.exp(-t / 6) * torch.sin(t)], dim=1)


def test_a_flat_path_keeps_its_distances_and_is_explained_whole() -> None:
    torch.manual_seed(0)
    plane = torch.linalg.qr(torch.randn(60, 2).double()).Q
    states = (spiral() @ plane.T + torch.randn(60).double()).reshape(20, 3, 20)
    found = pca_path(states)
    assert found.coordinates.shape == (20, 2) and found.coordinates.dtype == torch.float64
    assert torch.allclose(torch.cdist(found.coordinates, found.coordinates), torch.cdist(spiral(), spiral()))
    assert found.explained.sum().item() == pytest.approx(1.0)
    variance = found.coordinates.square().sum(0)
    assert torch.allclose(variance / variance.sum(), found.explained) and variance[0] > variance[1]


def test_signs_and_units_do_not_depend_on_the_input() -> None:
    torch.manual_seed(0)
    states = torch.randn(9, 5, 4)
    found = pca_path(states, 3)
    assert torch.allclose(found.coordinates, pca_path(states + 7, 3).coordinates, atol=1e-5)
    assert torch.allclose(found.coordinates * 2, pca_path(states * 2, 3).coordinates)
    flat = states.flatten(1).double()
    direction = torch.linalg.lstsq(flat - flat.mean(0), found.coordinates).solution  # minimum norm: the directions themselves
    assert (direction.gather(0, direction.abs().argmax(0, keepdim=True)) > 0).all()


def test_several_paths_share_their_directions() -> None:
    torch.manual_seed(0)
    states = torch.randn(3, 6, 8)
    found = pca_paths(states)
    assert found.coordinates.shape == (3, 6, 2)
    joined = pca_path(states.reshape(18, 8))
    assert torch.equal(found.coordinates.reshape(18, 2), joined.coordinates) and torch.equal(found.explained, joined.explained)


def test_what_is_absent_is_zero() -> None:
    still = pca_path(torch.ones(5, 4))
    assert not still.coordinates.any() and not still.explained.any()
    line = pca_path(torch.arange(4.0)[:, None], 3)
    assert line.coordinates.shape == (4, 3) and not line.coordinates[:, 1:].any() and line.explained.tolist() == [1, 0, 0]


def test_malformed_states_are_refused() -> None:
    with pytest.raises(ValueError, match=r"shape \(1, 5\), k = 2"):
        pca_path(torch.ones(5))
    with pytest.raises(ValueError, match="k = 0; allowed"):
        pca_path(torch.ones(5, 2), 0)
    with pytest.raises(ValueError, match="not all finite"):
        pca_path(torch.tensor([[1.0, 2.0], [float("inf"), 0.0]]))


def test_the_last_token_is_the_last_real_one() -> None:
    x = torch.arange(12.0).view(3, 4, 1)
    valid = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 0], [0, 1, 0, 0]])
    assert last_tokens(x, valid)[:, 0].tolist() == [3, 6, 9]
    assert last_tokens(x)[:, 0].tolist() == [3, 7, 11]
    with pytest.raises(ValueError, match="a row without a real token"):
        last_tokens(x, torch.zeros(3, 4))


def test_a_cycle_is_drawn_whole_and_its_windows_share_the_directions() -> None:
    states = torch.randn(10, 3, 7, generator=torch.Generator().manual_seed(0))
    found = cycle_path(states)
    flat = pca_path(states.view(30, 7))
    assert found.coordinates.shape == (10, 3, 2) and torch.equal(found.coordinates.view(30, 2), flat.coordinates)
    windows = step_windows(found.coordinates, 4)
    assert [(w.first, w.last) for w in windows] == [(0, 4), (4, 8), (8, 10)]
    assert torch.equal(torch.cat([w.coordinates for w in windows]), found.coordinates)
    with pytest.raises(ValueError, match=r"size must be a whole number >= 1 \(got 0\)"):
        step_windows(found.coordinates, 0)


def test_a_fixed_cycle_repeats_itself_in_the_picture() -> None:
    cycle = torch.randn(1, 3, 7, generator=torch.Generator().manual_seed(0))
    found = cycle_path(cycle.expand(5, 3, 7)).coordinates
    assert torch.allclose(found, found[:1].expand(5, 3, 2)) and found[0].std() > 0.1


def test_layers_have_directions_of_their_own() -> None:
    states = torch.randn(6, 3, 7, generator=torch.Generator().manual_seed(0))
    found = layer_paths(states)
    assert found.coordinates.shape == (3, 6, 2) and found.explained.shape == (3, 2)
    assert torch.equal(found.coordinates[1], pca_path(states[:, 1]).coordinates)


def test_padding_is_no_part_of_a_prompt() -> None:
    states = torch.randn(6, 4, 5, generator=torch.Generator().manual_seed(0))
    padded = torch.nn.functional.pad(states, (0, 0, 2, 1), value=torch.nan)
    found = prompt_path(padded, torch.tensor([0, 0, 1, 1, 1, 1, 0]))
    assert torch.allclose(found.coordinates, prompt_path(states).coordinates)
    assert torch.equal(prompt_path(states).coordinates, pca_path(states).coordinates)


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
