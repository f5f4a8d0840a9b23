"""The spectrum of maps whose eigenvalues are known: complex pairs, rotations, non-normal matrices, block triangles, models."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.metrics.limits import LIMITS, classify_limit
from loopwright.metrics.spectrum import (
    causal_radius,
    diagonal_blocks,
    frobenius_reading,
    leading_eigenvalues,
    path_eigenvalues,
    random_directions,
    spectral_radius,
    turn_frequency,
)
from loopwright.metrics.states import token_cosines
from loopwright.training.validation import state_map
from tests.cases import noisy


def linear_map(*matrices: torch.Tensor):
    """Returns the map s ↦ A s of flattened rows, one matrix per row."""
    a = torch.stack(matrices).double()
    return lambda s: torch.einsum("bij,bj->bi", a, s.flatten(1)).view_as(s)


def zeros(rows: int, length: int, width: int) -> torch.Tensor:
    return torch.zeros(rows, length, width, dtype=torch.float64)


def with_eigenvalues(*values: complex, seed: int = 0, skew: float = 0.3) -> torch.Tensor:
    """Returns a real matrix with these eigenvalues (complex ones come as pairs), in a basis that is not orthogonal."""
    pairs = [[[v.real, v.imag], [-v.imag, v.real]] if complex(v).imag else [[float(v)]] for v in values]
    d = torch.block_diag(*[torch.tensor(pair, dtype=torch.float64) for pair in pairs])
    basis = torch.eye(len(d)).double() + skew * torch.randn(d.shape, dtype=d.dtype, generator=torch.Generator().manual_seed(seed))
    return basis @ d @ torch.linalg.inv(basis)


@pytest.mark.parametrize("products", ["dual", "jvp", "difference"])
def test_a_complex_leading_pair(products):
    a = with_eigenvalues(0.6 + 0.9j, 1.05, -1.0, 0.5 + 0.1j, *[0.1 * i for i in range(8)])
    found = spectral_radius(linear_map(a), zeros(1, 7, 2), products=products)
    assert found.item() == pytest.approx(abs(0.6 + 0.9j), rel=1e-6)
    values = leading_eigenvalues(linear_map(a), zeros(1, 7, 2), 4, products=products)[0]
    assert values.abs().tolist() == pytest.approx([abs(0.6 + 0.9j)] * 2 + [1.05, 1.0], rel=1e-6)


def test_a_rotation_times_a_scale_has_that_scale_as_its_radius():
    """Power growth along one vector is right here, but no real vector is an eigenvector."""
    turn = torch.linalg.qr(torch.randn(12, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(0)))[0]
    for scale in (0.5, 0.97, 1.3):
        assert spectral_radius(linear_map(scale * turn), zeros(1, 3, 4)).item() == pytest.approx(scale, rel=1e-9)


@pytest.mark.long
@settings(max_examples=8)
@given(seed=st.integers(0, 1000), size=st.sampled_from([12, 64]))
def test_random_matrices(seed, size):
    """Dense spectra on a disc are the hard case: many eigenvalues near the edge. One per cent is what the rounds give."""
    a = torch.randn(size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)) / size**0.5
    found = spectral_radius(linear_map(a), zeros(1, size // 4, 4), krylov=24, restarts=3)
    assert found.item() == pytest.approx(torch.linalg.eigvals(a).abs().max().item(), rel=1e-9 if size <= 24 else 0.02)


@pytest.mark.long
def test_a_reading_is_not_a_radius():
    """Non-normal maps read far above their radius, others far below: 0.75 on a map whose radius is 2.09."""
    jordan = torch.diag(torch.full((12,), 0.3).double()) + torch.diag(torch.full((11,), 3.0), 1)
    spike = 0.6 * torch.eye(12, dtype=torch.float64)
    spike[0, 0] = 2.09
    f, s = linear_map(jordan, spike), zeros(2, 6, 2)
    radius, reading = spectral_radius(f, s), frobenius_reading(f, s, draws=400)
    assert radius[0].item() == pytest.approx(0.3, abs=0.05)  # an eigenvalue twelve-fold: the twelfth root of rounding
    assert reading[0] > 5
    assert radius[1].item() == pytest.approx(2.09, rel=1e-9)
    assert reading[1].item() == pytest.approx((11 * 0.36 + 2.09**2) / 12, rel=0.1)
    assert reading[1].sqrt() < 0.5 * radius[1]


def test_rows_are_measured_each_for_itself():
    maps = [with_eigenvalues(v, 0.2, 0.1, -0.3) for v in (0.5, 1.5, -0.9)]
    assert spectral_radius(linear_map(*maps), zeros(3, 2, 2)).tolist() == pytest.approx([0.5, 1.5, 0.9], rel=1e-8)
    nothing = spectral_radius(linear_map(*[torch.zeros(4, 4)] * 2), zeros(2, 2, 2))
    assert nothing.tolist() == [0, 0]


def test_blocks_of_a_triangular_map():
    width, length = 3, 5
    a = torch.randn(length * width, length * width, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    keep = torch.ones(length, length).tril().repeat_interleave(width, 0).repeat_interleave(width, 1)
    a = a * keep.double()
    f, s = linear_map(a, 2 * a), zeros(2, length, width)
    blocks = diagonal_blocks(f, s, chunk=2)
    assert torch.allclose(blocks[0, 3], a[9:12, 9:12])
    true = torch.linalg.eigvals(a).abs().max().item()
    assert causal_radius(f, s).tolist() == pytest.approx([true, 2 * true], rel=1e-9)
    assert spectral_radius(f, s).tolist() == pytest.approx([true, 2 * true], rel=1e-6)
    last = causal_radius(f, s, positions=torch.tensor([4]))
    assert last[0].item() == pytest.approx(torch.linalg.eigvals(a[12:, 12:]).abs().max().item(), rel=1e-9)


def test_padding_is_left_out():
    loud = torch.block_diag(0.5 * torch.eye(4), 9 * torch.eye(2)).double()
    loud[:4, 4:] = loud[4:, :4] = 7.0
    mask = torch.tensor([[True, True, False]])
    f, s = linear_map(loud), zeros(1, 3, 2)
    assert spectral_radius(f, s, mask=mask).item() == pytest.approx(0.5, rel=1e-9)
    assert causal_radius(f, s, mask=mask).item() == pytest.approx(0.5, rel=1e-9)
    assert frobenius_reading(f, s, mask=mask).item() == pytest.approx(0.25, rel=1e-9)


@pytest.mark.long
@pytest.mark.parametrize("name", ["stars-addition", pytest.param("ouroboros-qwen2.5-3b", marks=pytest.mark.slow)])
def test_arnoldi_and_blocks_agree_on_models(name):
    model = noisy(f"{name}-tiny", std=0.5, core_layers=1, hidden_size=16).double()
    ids = torch.randint(0, 15, (2, 4), generator=torch.Generator().manual_seed(0))
    mask = torch.tensor([[1] * 4, [0, 1, 1, 1]])
    with torch.no_grad():
        e, p = model.embed(ids, attention_mask=mask)
        *_, s = model.unroll(e, 3, p)
    f = state_map(model, e, p, 2)
    exact = causal_radius(f, s, mask=mask)
    whole = torch.autograd.functional.jacobian(lambda x: f(x[None].expand(2, -1, -1))[0], s[0]).reshape(64, 64)
    assert exact[0].item() == pytest.approx(torch.linalg.eigvals(whole).abs().max().item(), rel=1e-8)
    assert spectral_radius(f, s, mask=mask, krylov=32).tolist() == pytest.approx(exact.tolist(), rel=1e-2)
    assert spectral_radius(f, s, mask=mask, krylov=64, restarts=0).tolist() == pytest.approx(exact.tolist(), rel=1e-6)
    ends = [frobenius_reading(f, s, mask=mask, products=kind) for kind in ("dual", "jvp", "difference")]
    assert torch.allclose(ends[0], ends[1], rtol=1e-10)
    assert torch.allclose(ends[0], ends[2], rtol=1e-6)


def test_directions_leave_the_common_generator_alone():
    state = torch.get_rng_state()
    v = random_directions(zeros(3, 2, 4), None, seed=1)
    assert torch.equal(torch.get_rng_state(), state)
    assert v.flatten(1).norm(dim=1).tolist() == pytest.approx([1, 1, 1])
    assert not torch.equal(v, random_directions(zeros(3, 2, 4), None, seed=2))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"k": 0}, "k is 0"),
        ({"k": 9, "krylov": 8}, "k is 9"),
        ({"restarts": -1}, r"restarts must be a whole number >= 0"),
        ({"products": "x"}, "products 'x'"),
    ],
)
def test_wrong_options_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        leading_eigenvalues(linear_map(torch.eye(4)), zeros(1, 2, 2), **options)


def test_draws_are_counted():
    with pytest.raises(ValueError, match=r"draws must be a whole number >= 1 \(got 0\)"):
        frobenius_reading(linear_map(torch.eye(4)), zeros(1, 2, 2), draws=0)


@pytest.mark.parametrize("cycles", [3, 10, 33])
def test_a_turning_pair_is_the_orbit_that_the_states_show(cycles):
    """ρ = 1, the frequency of the leading pair, and that of the orbit in the similarities to the last state are one number."""
    turn = complex(math.cos(2 * math.pi * cycles / 127), math.sin(2 * math.pi * cycles / 127))
    f = linear_map(with_eigenvalues(turn, 0.5, -0.3, skew=0))
    states = [torch.ones(1, 1, 4, dtype=torch.float64)]
    for _ in range(127 + 60):
        states.append(f(states[-1]))
    path = torch.stack(states[-128:])  # what decays has decayed
    values = path_eigenvalues([f] * 3, path[:3], 2)
    assert values.shape == (3, 1, 2)
    assert torch.allclose(values.abs(), torch.ones(3, 1, 2, dtype=torch.float64))
    assert torch.allclose(turn_frequency(values), torch.full((3, 1, 2), cycles / 127, dtype=torch.float64))
    similarity = token_cosines(path[:-1], path[-1:])[:, 0, 0]
    found = classify_limit(similarity)
    assert LIMITS[found.label] == "orbit"
    assert found.frequency.item() == pytest.approx(cycles / 127) and found.amplitude.item() == pytest.approx(1, rel=0.02)


def test_eigenvalues_along_a_path_are_those_at_each_state():
    """The derivative of s ↦ s³ is 3 s² on the diagonal."""
    states = torch.tensor([[[[1.0, 2.0]]], [[[0.5, 0.1]]]], dtype=torch.float64)
    found = path_eigenvalues([lambda s: s * s * s] * 2, states, 2)
    assert torch.allclose(found.real, torch.tensor([[[12.0, 3.0]], [[0.75, 0.03]]], dtype=torch.float64))
    assert turn_frequency(torch.tensor([1.0, -1.0, 1j, -1j])).tolist() == [0, 0.5, 0.25, 0.25]
    with pytest.raises(ValueError, match="1 maps for 2 states"):
        path_eigenvalues([lambda s: s], states, 2)


def test_a_row_whose_derivative_is_not_finite_has_no_eigenvalues_and_the_others_keep_theirs():
    scale = torch.tensor([0.5, torch.inf, torch.nan, 0.25])[:, None, None]
    states = torch.ones(4, 2, 3)
    found = leading_eigenvalues(lambda s: s * scale, states, 1)[:, 0]
    assert found[1:3].isnan().all()
    assert torch.allclose(found[[0, 3]].real, torch.tensor([0.5, 0.25]))
