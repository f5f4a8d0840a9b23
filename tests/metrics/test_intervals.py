"""Intervals: known values, and by simulation how often they miss. The full table: experiments/interval_simulation.py."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from experiments.interval_simulation import DIFFERENCES, LOSSES, NONE, PAIRS, missed, missed_by_bootstrap, missed_pairs
from loopwright.metrics.intervals import (
    by_unit,
    mean_interval,
    paired_interval,
    ratio_mean,
    share_interval,
    share_of_gap_interval,
    subsets,
    t_quantile,
    wilson_interval,
)

MOST = 0.055  # of decisions where nothing differs
NOISE = 0.011  # of a share of 0.05 over 1,500 samples, two standard deviations


def test_student_has_the_known_quantiles() -> None:
    freedom = torch.tensor([1.0, 2.0, 5.0, 9.0, 30.0, 1e9])
    assert t_quantile(freedom).tolist() == pytest.approx([12.706205, 4.302653, 2.570582, 2.262157, 2.042272, 1.959964], abs=4e-5)
    assert t_quantile(torch.tensor(1.5), confidence=0.8).item() == pytest.approx(2.196398, abs=1e-6)


def test_rows_of_one_length_have_the_plain_t_interval() -> None:
    values = torch.randn(3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    low, high = mean_interval(7 * values, torch.full((5,), 7))
    reach = 2.776445 * values.std(1) / math.sqrt(5)
    assert low.tolist() == pytest.approx((values.mean(1) - reach).tolist(), abs=1e-6)
    assert high.tolist() == pytest.approx((values.mean(1) + reach).tolist(), abs=1e-6)


def test_the_error_is_the_jackknifes_and_long_documents_leave_few_degrees() -> None:
    losses, targets = torch.tensor([30.0, 2.0, 9.0, 5.0]), torch.tensor([20, 1, 3, 4])
    without = [(losses.sum() - x) / (targets.sum() - w) for x, w in zip(losses, targets, strict=True)]
    found = ratio_mean(losses, targets)
    whole = losses.sum() / targets.sum()
    assert found.value.item() == pytest.approx(whole.item())
    assert found.error.item() == pytest.approx(math.sqrt(3 / 4 * sum((x - whole) ** 2 for x in without)))
    assert 1 <= found.freedom < 2 and ratio_mean(losses, torch.ones(4)).freedom.item() == pytest.approx(3)


def test_units_are_summed_and_subsets_are_all_or_many() -> None:
    found = by_unit(torch.tensor([[1.0, 2.0, 4.0], [1.0, 1.0, 1.0]]), torch.tensor([7, 3, 7]))
    assert found.tolist() == [[2.0, 5.0], [1.0, 2.0]]
    assert subsets(6).shape == (6, 63) and len(subsets(6).unique(dim=1).T) == 63 and bool(subsets(6).any(0).all())
    assert subsets(30).shape == (30, 2047) and torch.equal(subsets(30), subsets(30))
    losses, targets, units = torch.rand(40), torch.randint(1, 9, (40,)), torch.arange(40) // 4
    assert mean_interval(losses, targets, units) == mean_interval(by_unit(losses, units), by_unit(targets, units))


def test_what_has_no_interval_and_what_is_not_counted() -> None:
    losses = torch.rand(3, 20)
    losses[1, 3] = math.inf
    low, high = mean_interval(losses, torch.ones(20))
    assert low.isnan().tolist() == high.isnan().tolist() == [False, True, False]
    assert mean_interval(torch.tensor([2.0]), torch.tensor([3]))[0].isnan()  # one row says nothing of others
    more = mean_interval(torch.cat([losses, torch.zeros(3, 5)], 1), torch.cat([torch.ones(20), torch.zeros(5)]))
    assert more[0][0] == low[0] and more[1][2] == high[2]
    with pytest.raises(ValueError, match=r"shape \(3, 20\) for 19 rows"):
        mean_interval(losses, torch.ones(19))


# how often they miss


@pytest.mark.parametrize("case", DIFFERENCES)
@pytest.mark.parametrize("rows", [6, 10, 30])
def test_where_nothing_differs_little_is_decided(case: str, rows: int) -> None:
    drawn = DIFFERENCES[case](np.random.default_rng(rows), (1500, rows))
    assert missed(drawn) < MOST + NOISE


def test_the_percentile_bootstrap_decided_too_often() -> None:
    drawn = DIFFERENCES["documents, lengths unequal"](np.random.default_rng(0), (1500, 6))
    assert missed_by_bootstrap(drawn) > 0.12 > 2 * missed(drawn)


def test_documents_are_units_not_their_windows() -> None:
    """Windows that share their document's luck: over windows an interval misses about half of the time."""
    draw = np.random.default_rng(0)
    luck = np.repeat(draw.normal(size=(400, 20)), 16, axis=1) + 0.5 * draw.normal(size=(400, 320))
    whole = torch.from_numpy(luck)
    low, high = mean_interval(whole, torch.ones(320), torch.arange(320) // 16)
    assert ((low > 0) | (high < 0)).double().mean() < 0.08
    low, high = mean_interval(whole, torch.ones(320))
    assert ((low > 0) | (high < 0)).double().mean() > 0.4


@pytest.mark.parametrize(("case", "most"), zip(LOSSES, (0.07, 0.08, 0.09), strict=True))
def test_losses_of_ten_rows(case: str, most: float) -> None:
    drawn = LOSSES[case](np.random.default_rng(1), (1500, 10))
    assert missed(drawn) < most + NOISE < missed_by_bootstrap(drawn) + 2 * NOISE


# shares


def test_wilson_has_the_known_values() -> None:
    assert wilson_interval(8, 10) == pytest.approx((0.49016, 0.94332), abs=1e-5)
    assert wilson_interval(0, 20) == pytest.approx((0.0, 0.16113), abs=1e-5)
    assert wilson_interval(5000, 5000) == pytest.approx((0.99923, 1.0), abs=1e-5)
    with pytest.raises(ValueError, match="3 right of 2"):
        wilson_interval(3, 2)
    with pytest.raises(ValueError, match="0 right of 0"):
        wilson_interval(0, 0)


@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.floats(0.5, 0.999))
def test_wilson_holds_its_share_and_mirrors(case: tuple[int, int], confidence: float) -> None:
    right, total = case
    low, high = wilson_interval(right, total, confidence=confidence)
    assert 0 <= low <= right / total <= high <= 1
    mirrored = wilson_interval(total - right, total, confidence=confidence)
    assert mirrored == pytest.approx((1 - high, 1 - low), abs=1e-12)


def test_shares_of_documents_are_no_surer_than_their_documents() -> None:
    hits, units = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0]), torch.arange(8)
    assert share_interval(hits, units) == pytest.approx(wilson_interval(6, 8))
    copied = share_interval(hits.repeat_interleave(50), units.repeat_interleave(50))  # 50 passages that all agree say no more
    assert copied[0] < wilson_interval(6, 8)[0] + 0.01 and copied[1] > wilson_interval(6, 8)[1] - 0.01
    assert share_interval(torch.ones(400), units.repeat_interleave(50)) == pytest.approx(wilson_interval(8, 8))


@pytest.mark.parametrize("rows", [6, 10, 30])
def test_paired_exact_match_holds_what_it_says_at_every_difference(rows: int) -> None:
    assert max(missed_pairs(rows, PAIRS)) < 0.06 and max(missed_pairs(rows, NONE)) < MOST


def test_paired_exact_match_never_vanishes() -> None:
    low, high = paired_interval(0, 0, 200)
    assert low == -high and 0.01 < high < 0.02
    assert paired_interval(5, 0, 200)[0] < 0 < paired_interval(6, 0, 200)[0]  # five rows one way come by chance
    assert paired_interval(20, 0, 20)[1] == 1 and paired_interval(0, 20, 20)[0] == -1
    with pytest.raises(ValueError, match="2 and 3 of 4 rows"):
        paired_interval(2, 3, 4)


# of several means


def test_means_of_other_documents_are_independent() -> None:
    """Welch: 2 ± 1 over 9 and 1 ± 0.5 over 16 values."""
    first = ratio_mean(2 + torch.linspace(-1, 1, 9).double(), torch.ones(9))
    second = ratio_mean(1 + 0.5 * torch.linspace(-1, 1, 16).double(), torch.ones(16))
    found = first - second
    assert found.error.item() == pytest.approx(math.hypot(first.error, second.error)) and found.value.item() == pytest.approx(1)
    assert 8 < found.freedom < 23
    low, high = found.ends()
    assert low + high == pytest.approx(2) and high > 1


def test_the_share_of_a_gap_has_no_ends_where_the_gap_may_be_none() -> None:
    units, targets = torch.arange(12), torch.ones(12, dtype=torch.float64)
    gap = 1 + 0.3 * torch.linspace(-1, 1, 12).double()
    low, high = share_of_gap_interval(0.6 * gap, gap, targets, units)
    assert (low.item(), high.item()) == pytest.approx((0.6, 0.6))
    low, high = share_of_gap_interval(0.6 * gap + 0.1 * torch.linspace(1, -1, 12) ** 3, gap, targets, units)
    assert 0.4 < low < 0.6 < high < 0.8
    low, high = share_of_gap_interval(gap, gap - 1, targets, units)
    assert (low.item(), high.item()) == (-math.inf, math.inf)
