"""Sizes, cosines and entropy of the residual stream; relative steps and contraction factors, on maps whose factors are known."""

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

from loopwright.metrics.states import (
    contraction,
    relative_step,
    residual_cosine,
    residual_cosines,
    residual_distance,
    residual_entropy,
    residual_norm,
    step_factors,
    token_cosines,
    token_mean,
    token_norms,
)
from tests.cases import golden_folders
from tests.metrics.maps import padded_states

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
