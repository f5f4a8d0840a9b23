"""Limiting behaviour: golden labels and numbers, linear maps whose limits are known, counts that add up."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from loopwright.metrics.limits import FIXED_POINT, LIMITS, ORBIT, SLIDER, UNKNOWN, classify_limit, limit_counts, limit_curves
from loopwright.metrics.states import token_cosines
from tests.cases import golden_folders

CASES = [
    (folder, entry)
    for folder in golden_folders("limiting-behaviour")
    for entry in json.loads((folder / "case.json").read_text())["series"]
]


@pytest.mark.parametrize(("folder", "entry"), CASES)
def test_golden(folder: Path, entry: dict) -> None:
    prefix = f"series{entry['index']:02d}."
    values = load_file(folder / "golden.safetensors")
    series, numbers, counts = values[prefix + "values"], values[prefix + "numbers"], values[prefix + "counts"]
    found = classify_limit(series, tau=0.05, p=0.9, kind=entry["mode"])
    assert found.label.item() == values[prefix + "label"].item()
    assert LIMITS[found.label] == entry["label"].lower().replace("_", " ")
    assert torch.allclose(torch.stack([found.slope, found.intercept, found.amplitude]), numbers[:3], atol=1e-10, rtol=0)
    assert found.near.item() == counts[1].item()
    if entry["peak_to_second_bin_ratio"] > 1.0001 and entry["amplitude"] > 1e-12:  # else the peak is rounding noise
        assert found.cycles.item() == counts[3].item() and found.frequency.item() == pytest.approx(numbers[3].item())


def test_a_batch_is_each_series_alone() -> None:
    folder = golden_folders("limiting-behaviour")[0]
    values = load_file(folder / "golden.safetensors")
    series = torch.stack([values[f"series{i:02d}.values"] for i in range(12)])
    found = classify_limit(series.view(3, 4, -1))
    assert found.label.flatten().tolist() == [values[f"series{i:02d}.label"].item() for i in range(12)]
    assert set(found.label.flatten().tolist()) == {FIXED_POINT, ORBIT, SLIDER, UNKNOWN}
    assert found.amplitude.shape == (3, 4)


def series_of(turn: float, shrink: float, steps: int = 128) -> torch.Tensor:
    """Returns cos(s_t, s_N) under s ← shrink · R(turn) s beside a fixed direction: eigenvalues shrink · e^{± i turn} and 1."""
    t = torch.arange(steps, dtype=torch.float64)
    spiral = shrink**t
    states = torch.stack([spiral * torch.cos(turn * t), spiral * torch.sin(turn * t), torch.ones_like(t)], dim=-1)
    return token_cosines(states, states[-1:])[:-1]


@pytest.mark.parametrize("cycles", [2, 5, 16, 40])
def test_a_rotation_is_an_orbit_of_its_frequency(cycles: int) -> None:
    found = classify_limit(series_of(2 * math.pi * cycles / 127, 1.0))
    assert LIMITS[found.label] == "orbit"
    assert found.frequency.item() == pytest.approx(cycles / 127)
    # cos(s_t, s_N) = (1 + cos) / 2; a tone on a bin is read to a percent
    assert found.amplitude.item() == pytest.approx(0.5, rel=0.02)


def test_a_contraction_is_a_fixed_point_and_a_slow_one_slides() -> None:
    assert LIMITS[classify_limit(series_of(0.3, 0.5)).label] == "fixed point"
    assert LIMITS[classify_limit(series_of(0.0, 0.97)).label] == "slider"


def test_curves_are_what_the_numbers_come_from() -> None:
    series = torch.rand(3, 31, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    curves, found = limit_curves(series), classify_limit(series)
    assert torch.allclose(curves.trend + curves.rest, series)
    assert torch.allclose(curves.rest.sum(-1), torch.zeros(3, dtype=torch.float64), atol=1e-12)
    assert curves.spectrum.shape == (3, 15)
    assert torch.allclose(4 * curves.spectrum.amax(-1) / 31, found.amplitude)
    assert curves.windowed[:, 0].abs().max() == 0  # the window is symmetric: both ends are zero
    assert curves.windowed[:, -1].abs().max() < 1e-15


@pytest.mark.parametrize(("n", "p", "enough"), [(10, 0.9, 9), (100, 0.55, 55), (127, 0.9, 115), (8, 1.0, 8)])
def test_the_share_that_must_be_near_is_reached_not_passed(n: int, p: float, enough: int) -> None:
    series = torch.zeros(2, n)
    series[0, -enough:], series[1, -enough + 1 :] = 1, 1
    found = classify_limit(series, p=p)
    assert found.near.tolist() == [enough, enough - 1]
    assert (found.label == FIXED_POINT).tolist() == [True, False]


def test_what_is_not_finite_is_unknown_and_bad_input_is_refused() -> None:
    series = torch.ones(2, 20)
    series[1, -1] = torch.nan
    assert classify_limit(series).label.tolist() == [FIXED_POINT, UNKNOWN]
    with pytest.raises(ValueError, match="a series of 3 steps; allowed: at least 4"):
        classify_limit(torch.ones(3))
    with pytest.raises(ValueError, match="'cosine'; allowed: similarity, norm"):
        classify_limit(torch.ones(8), kind="cosine")
    with pytest.raises(ValueError, match=r"tau 1\.5"):
        classify_limit(torch.ones(8), tau=1.5)


def test_counts() -> None:
    labels = torch.tensor([[[0, 1, 0], [0, 0, 3]], [[0, 0, 2], [0, 0, 0]]])  # two layers, two rows, three tokens
    valid = torch.tensor([[1, 1, 1], [1, 1, 0]])
    counts = limit_counts(labels, valid)
    assert counts.tokens.tolist() == [4, 0, 1, 0] and counts.all_tokens == 5
    assert counts.examples.tolist() == [2, 0, 1, 0] and counts.all_examples == 2 and counts.moving_examples == 1
    assert counts.token_rates().tolist() == [0.8, 0, 0.2, 0] and counts.example_rates().tolist() == [1, 0, 0.5, 0]
    share = counts.co_occurrence()
    assert share[0].tolist() == [1, 0.2, 0.2, 0]  # of five tokens with a fixed point, one also orbits and one also slides
    assert share[1].tolist() == [1, 1, 0, 0] and share[3].isnan().all()
    with pytest.raises(ValueError, match="allowed: \\[layers, rows, tokens\\]"):
        limit_counts(labels[0])


@settings(max_examples=20)
@given(seed=st.integers(0, 999), rows=st.integers(2, 5), cut=st.integers(1, 4), pad=st.integers(0, 3))
def test_counts_add_up_over_batches_and_leave_padding_out(seed: int, rows: int, cut: int, pad: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(4, (3, rows, 6), generator=generator)
    whole = limit_counts(labels)
    cut = min(cut, rows - 1)
    padded = torch.nn.functional.pad(labels, (pad, 0), value=1)
    valid = torch.nn.functional.pad(torch.ones(rows, 6), (pad, 0), value=0)
    parts = limit_counts(padded[:, :cut], valid[:cut]) + limit_counts(padded[:, cut:], valid[cut:])
    assert torch.equal(whole.tokens, parts.tokens) and torch.equal(whole.examples, parts.examples)
    assert torch.equal(whole.pairs, parts.pairs) and whole.all_tokens == parts.all_tokens == rows * 6
    assert whole.all_examples == parts.all_examples and whole.moving_examples == parts.moving_examples
