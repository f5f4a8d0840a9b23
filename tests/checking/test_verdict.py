"""Comparisons: what counts as close, as the same, and how a failure is said."""

from __future__ import annotations

import pytest
import torch

from loopwright.checking.probes import RELATIVE_TOLERANCES, Tally, largest_difference, same_bits


def test_close_is_relative_to_the_largest_logit() -> None:
    want = torch.zeros(1, 2, 3)
    want[0, 0, 0] = 100.0
    allowed = 100 * RELATIVE_TOLERANCES[torch.float32]
    for share, passed in ((0.9, True), (1.2, False)):
        tally = Tally(torch.float32)
        tally.close("here", want + allowed * share, want)
        assert tally.verdict().passed is passed


def test_a_failure_says_where_and_how_much() -> None:
    want = torch.ones(2, 5, 3)
    got = want.clone()
    got[1, 4, 2] += 0.5
    tally = Tally(torch.float32)
    tally.close("cached", got, want)
    verdict = tally.verdict()
    assert verdict.passed is False
    assert verdict.detail == "cached: difference 5.0e-01 above tolerance 3.0e-05 (row 1, position 4)"


def test_many_failures_are_cut_short() -> None:
    tally = Tally(torch.float32)
    for n in range(5):
        tally.hold(f"number {n}", False)
    assert tally.verdict().detail == "number 0; number 1; and 3 more"


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_not_finite_is_never_close(bad: float) -> None:
    want = torch.ones(1, 2, 3)
    for pair in ((want * bad, want), (want, want * bad), (want * bad, want * bad)):
        tally = Tally(torch.float32)
        tally.close("here", *pair)
        assert tally.verdict().passed is False


def test_same_and_differ_look_at_bits() -> None:
    one = torch.ones(1, 2, 3)
    near = one + 2**-23
    for tell, passed in ((Tally.same, False), (Tally.differ, True)):
        tally = Tally(torch.float32)
        tell(tally, "here", near, one)
        assert tally.verdict().passed is passed
    assert same_bits(one, one.clone()) and not same_bits(one, one[:, :1])


def test_other_shapes_are_infinitely_far() -> None:
    assert largest_difference(torch.ones(1, 2, 3), torch.ones(1, 3, 3))[0] == float("inf")
    assert largest_difference(torch.ones(1, 0, 3), torch.ones(1, 0, 3)) == (0.0, "")


def test_coarse_dtypes_are_allowed_more() -> None:
    assert sorted(RELATIVE_TOLERANCES, key=RELATIVE_TOLERANCES.__getitem__) == [
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
    ]
    assert Tally(torch.float8_e4m3fn).relative == RELATIVE_TOLERANCES[torch.bfloat16]


def test_rounding_may_add_up_over_many_layers() -> None:
    assert Tally(torch.bfloat16, 96).relative == 2 * Tally(torch.bfloat16, 24).relative == 2 * Tally(torch.bfloat16, 3).relative


def test_a_failure_by_differences_alone_may_be_rounding() -> None:
    want = torch.ones(1, 2, 3)
    near = Tally(torch.float32)
    near.close("here", want + 1e-2, want)
    assert near.verdict().by_rounding
    near.same("there", want + 1, want)
    assert not near.verdict().by_rounding
    lost = Tally(torch.float32)
    lost.close("here", want * torch.nan, want)
    assert not lost.verdict().by_rounding and not Tally(torch.float32).verdict().by_rounding
