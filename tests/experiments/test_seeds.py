"""Several seeds as one: differences, what is decided, and shares of a gap, on losses with known answers."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from experiments.seeds import (
    averaged,
    best_depth,
    held,
    mean_loss,
    of_documents,
    over_seeds,
    paired_p,
    pooled,
    share_of_gap,
)
from loopwright.evaluation.paired import compare
from tests.experiments.results import PASSAGES, TEXTS, hard, held_out, result


def seeds(label: str, *above: float) -> list[dict]:
    return [result(label, {1: value}, seed) for seed, value in enumerate(above)]


def noisy(label: str, offset: float, seed: int) -> dict:
    noise = torch.randn(PASSAGES, generator=torch.Generator().manual_seed(seed + 9), dtype=torch.float64)
    return result(label, {1: offset}, seed) | {"texts": {text: held_out(text, {1: hard() + offset + noise}) for text in TEXTS}}


def test_one_seed_is_the_paired_comparison() -> None:
    a, b = noisy("a", 0.1, 0), noisy("b", 0.0, 0) | {"texts": noisy("b", 0.0, 5)["texts"]}
    found, alone = pooled([a], [b], "test"), compare(held(a, "test"), held(b, "test"))
    assert found is not None and found.seeds == (0,)
    assert (found.difference, found.low, found.high) == (alone.difference, alone.difference_low, alone.difference_high)
    assert found.of_seeds == pytest.approx((alone.difference,)) and found.won == (alone.won,)


def test_the_difference_is_the_mean_over_shared_seeds() -> None:
    found = pooled(seeds("a", -0.29, -0.31, 9.0), seeds("b", 0.0, 0.0), "test")
    assert found is not None and found.seeds == (0, 1)
    assert found.difference == pytest.approx(-0.3) and found.of_seeds == pytest.approx((-0.29, -0.31))
    assert found.verdict == "lower" and found.won == (1.0, 1.0)


@pytest.mark.parametrize(
    ("above", "verdict"),
    [
        ((-0.3, -0.2, -0.25), "lower"), ((0.3, 0.2, 0.25), "higher"), ((-0.3, 0.1), "not resolved"), ((0.3, -0.1), "not resolved"),
        ((-0.3, -0.02, -0.05), "not resolved"), ((0.3, 0.1), "not resolved"), ((-0.3,), "lower"), ((math.inf, 0.1), "not resolved"),
    ],
)  # fmt: skip
def test_seeds_that_lie_far_apart_leave_it_open(above: tuple[float, ...], verdict: str) -> None:
    # no passage differs from another: the interval over documents has no width, so seeds alone can leave it open
    found = pooled(seeds("a", *above), seeds("b", *[0.0] * len(above)), "test")
    assert found is not None and found.verdict == verdict
    assert found.low == pytest.approx(found.high, nan_ok=True)


def test_the_interval_over_seeds_is_students() -> None:
    """Mean 2 and deviation 1 of three: 2 ± 4.3027 / √3."""
    found = replace(pooled(seeds("a", 0.0), seeds("b", 0.0), "test"), of_seeds=(1.0, 2.0, 3.0))  # type: ignore[type-var]
    assert found is not None and found.over_seeds == pytest.approx((-0.4841, 4.4841), abs=1e-4)


def test_an_interval_over_0_leaves_it_open() -> None:
    found = pooled([noisy("a", -0.01, 0), noisy("a", -0.01, 1)], seeds("b", 0.0, 0.0), "test")
    assert found is not None and found.low < 0 < found.high and found.verdict == "not resolved"


def test_noise_of_seeds_averages_out_of_the_losses() -> None:
    one = pooled([noisy("a", -0.1, 0)], seeds("b", 0.0), "test")
    many = pooled([noisy("a", -0.1, seed) for seed in range(8)], seeds("b", *[0.0] * 8), "test")
    assert one is not None and many is not None and many.high - many.low < 0.6 * (one.high - one.low)


def test_depths_are_equal_or_each_rows_best() -> None:
    first, second = [result("a", {1: 0.3, 2: 0.0})], [result("b", {1: 0.1, 2: 0.2, 4: 0.4})]
    best, equal = pooled(first, second, "test"), pooled(first, second, "test", 2)
    assert best is not None and best.depths == (2, 1) and best.difference == pytest.approx(-0.1)
    assert equal is not None and equal.depths == (2, 2) and equal.difference == pytest.approx(-0.2)
    assert pooled(first, second, "test", 4) is None and pooled(first, [], "test") is None


def test_a_depth_without_losses_of_passages_is_not_paired() -> None:
    thin, whole = result("a", {1: 0.1, 2: 0.2}), result("b", {1: 0.0, 2: 0.0})
    for text in thin["texts"].values():
        text["losses"] = (text["losses"][0], ())
    assert pooled([thin], [whole], "test", 2) is None and pooled([whole], [thin], "test", 2) is None
    found = pooled([thin], [whole], "test", 1)
    assert found is not None and found.difference == pytest.approx(0.1)


def test_the_best_depth_is_that_of_all_seeds_together() -> None:
    found = [held(result("a", above), "test") for above in ({1: 0.0, 2: 0.1}, {1: 0.5, 2: 0.1})]
    assert best_depth(found[:1]) == 1 and best_depth(found) == 2
    assert averaged(found).depth == (2,) and averaged(found).loss[0] == pytest.approx(mean_loss(found, 2))


def test_some_documents_alone() -> None:
    run = result("a", {1: 0.5, 2: 0.1})
    run["texts"]["test"]["losses"] = ([], run["texts"]["test"]["losses"][1])  # depth 1 keeps the mean alone
    part = held(of_documents(run, "test", {0, 3, 999}), "test")
    assert (part.depth, part.document_of, part.targets_of, part.documents) == ((2,), (0, 0, 3, 3), (1, 2, 3, 4), 2)
    losses = [(hard()[place] + 0.1).item() for place in (0, 1, 6, 7)]
    assert part.losses[0] == pytest.approx([each * targets for each, targets in zip(losses, part.targets_of, strict=True)])
    assert mean_loss([part], 2) == pytest.approx(sum(part.losses[0]) / 10) == part.loss[0]
    assert part.bytes == 0 < held(run, "test").bytes, "a row does not keep which passage has how many"
    with pytest.raises(ValueError, match="passages"):
        compare(part, held(of_documents(run, "test", {1, 2}), "test"))
    with pytest.raises(ValueError, match=r"^main/a/0: 'test' has no document of \[998, 999\]; it has documents from 0 to 39$"):
        of_documents(run, "test", {999, 998})


def test_a_loss_that_is_not_finite_is_never_best() -> None:
    broken = result("a", {1: 0.5, 2: 0.1})
    first, second = broken["texts"]["test"]["losses"]
    broken["texts"]["test"]["losses"] = (first, (None, *second[1:]))
    assert best_depth([held(broken, "test")]) == 1


def test_shares_of_a_gap_by_seed_and_together() -> None:
    worse, better = result("w", {1: 1.0, 4: 0.9}), result("b", {1: 0.0})
    found = share_of_gap([result("a", {1: 9.0, 2: 0.4}), result("a", {1: 9.0, 2: 0.2}, 1)], worse, better, "test")
    assert found is not None and found.of_seeds == pytest.approx((0.6, 0.8)) and found.gap == pytest.approx(1.0)
    assert (found.share, found.low, found.high) == pytest.approx((0.7, 0.7, 0.7))
    past = share_of_gap([result("a", {1: -0.5})], worse, better, "test")
    assert past is not None and past.share == pytest.approx(1.5)  # training can pass the better model
    assert share_of_gap([worse], worse, None, "test") is None and share_of_gap([better], better, worse, "test") is None


def test_an_interval_over_three_seeds_is_students() -> None:
    low, high = over_seeds([1.0, 2.0, 3.0])
    assert (low, high) == pytest.approx((2 - 4.3026527 / math.sqrt(3), 2 + 4.3026527 / math.sqrt(3)))
    assert over_seeds([0.5]) == (0.5, 0.5) and over_seeds([0.0, math.inf]) == (-math.inf, math.inf)


def test_p_is_one_twentieth_where_the_interval_touches_zero() -> None:
    shift = 4.3026527 / math.sqrt(3)  # the 97.5 % quantile of t with two degrees of freedom
    assert paired_p([shift - 1, shift, shift + 1]) == pytest.approx(0.05, abs=1e-6) == paired_p([1 - shift, -shift, -1 - shift])
    assert (paired_p([0.0, 0.0, 0.0]), paired_p([1.0, 1.0, 1.0]), paired_p([-1.0, 0.0, 1.0])) == (1.0, 0.0, 1.0)
    with pytest.raises(ValueError, match="2 seeds; allowed: three"):
        paired_p([1.0, 2.0])
