"""Two models on the same passages: hand-made losses with known differences."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from loopwright.evaluation.paired import compare, recovered
from loopwright.evaluation.text import HeldOut

PASSAGES = 80


def report(losses: torch.Tensor, **changes: object) -> HeldOut:
    """A report of 80 passages, two a document, of 1 to 4 targets each, with these losses by depth."""
    targets = torch.arange(PASSAGES) % 4 + 1
    nothing = (None,) * len(losses)
    made = HeldOut(
        "t", 8, "document", PASSAGES // 2, PASSAGES, int(targets.sum()), 100, "same", True, "", tuple(range(1, len(losses) + 1)),
        nothing, nothing, nothing, nothing, nothing, tuple((torch.arange(PASSAGES) // 2).tolist()), tuple(targets.tolist()),
        tuple(tuple(row) for row in (losses * targets).tolist()),
    )  # fmt: skip
    return replace(made, **changes)


def hard(seed: int = 0) -> torch.Tensor:
    return 3 + torch.randn(PASSAGES, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_what_is_hard_about_a_passage_cancels() -> None:
    found = compare(report(hard()[None]), report(hard()[None] + 0.01))
    assert found.difference == pytest.approx(-0.01) and found.decided
    assert (found.difference_low, found.difference_high) == pytest.approx((-0.01, -0.01))
    assert found.won == found.won_high == 1 > found.won_low > 0.9 and found.passages == PASSAGES and found.likelihood
    assert (found.unit, found.units) == ("document", PASSAGES // 2)
    back = compare(report(hard()[None] + 0.01), report(hard()[None]))
    assert back.difference == pytest.approx(0.01) and back.won == 0


def test_the_difference_weighs_tokens_and_wins_count_passages() -> None:
    better = torch.where(torch.arange(PASSAGES) % 4 == 0, -3.0, 1.0).double()  # wins the passages of one token alone
    found = compare(report((hard() + better)[None]), report(hard()[None]))
    assert found.won == pytest.approx(0.25) and found.difference == pytest.approx((-3 + 2 + 3 + 4) / 10)
    assert found.won_low < 0.25 < found.won_high
    same = compare(report(hard()[None]), report(hard()[None]))
    assert same.difference == 0 and same.won == 0.5 and not same.decided


def test_depths_are_chosen_for_each() -> None:
    both = torch.stack([hard() + 1, hard()])
    assert compare(report(both), report(both)).depths == (2, 2)
    found = compare(report(both), report(both), depths=(1, 2))
    assert found.depths == (1, 2) and found.difference == pytest.approx(1.0)


@pytest.mark.parametrize(("pairs", "most"), [(20, 3), pytest.param(60, 9, marks=pytest.mark.slow)])
def test_noise_is_not_a_win_more_often_than_it_says(pairs: int, most: int) -> None:
    decided = sum(compare(report(hard(2 * s)[None]), report(hard(2 * s + 1)[None])).decided for s in range(pairs))
    assert decided <= most


def test_the_recovered_share_of_a_gap() -> None:
    worse, better = report(hard()[None] + 1), report(hard()[None])
    found = recovered(report(hard()[None] + 0.3), worse=worse, better=better)
    assert found.share == pytest.approx(0.7) and (found.low, found.high) == pytest.approx((0.7, 0.7))
    assert found.gap == pytest.approx(1) and recovered(worse, worse=worse, better=better).share == pytest.approx(0)
    below = recovered(report(hard()[None] + 1.068), worse=worse, better=better)
    assert below.share == pytest.approx(-0.068)
    noisy = recovered(report((hard() + 0.3 + 0.1 * (hard(9) - 3))[None]), worse=worse, better=better)
    assert noisy.low < 0.7 < noisy.high and noisy.high - noisy.low < 0.1
    rows = torch.stack([hard() + 1, hard() + 0.5, hard() + 9])  # at depths 1, 2 and 3
    at_depths = recovered(report(rows), worse=report(rows), better=better, depth=2, worse_depth=1)
    assert (at_depths.share, at_depths.gap) == pytest.approx((0.5, 1.0))
    with pytest.raises(ValueError, match="no gap"):
        recovered(worse, worse=better, better=worse)


def test_what_is_no_likelihood_stays_marked_and_other_passages_are_refused() -> None:
    leaking = report(hard()[None], likelihood=False)
    assert not compare(leaking, report(hard()[None])).likelihood
    assert not recovered(leaking, worse=report(hard()[None] + 1), better=report(hard()[None])).likelihood
    with pytest.raises(ValueError, match="not the same passages"):
        compare(report(hard()[None], fingerprint="other"), report(hard()[None]))
