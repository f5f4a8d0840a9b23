"""Checks of options: each refusal is one line with the name, the value and what is allowed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from loopwright.schema import (
    MOST_NUMBER,
    check_choice,
    check_count,
    check_number,
    check_numbers,
    check_whole,
    is_number,
    is_whole,
    suggest,
)


def test_what_fits_comes_back() -> None:
    assert check_count("here", "rows", 3, least=3) == 3
    assert check_numbers("here", "lengths", [3, 1, 3]) == (1, 3)
    assert check_numbers("here", "longer", (), apart_from=(1,)) == ()
    assert check_choice("here", "mode", "a", ("a", "b")) == "a"


@pytest.mark.parametrize(
    ("check", "arguments", "message"),
    [
        (check_count, (2, 3), r"here: x must be a whole number >= 3 \(got 2\)"),
        (check_count, (True,), r"here: x must be a whole number >= 0 \(got True\)"),
        (check_count, ("2",), r"here: x must be a whole number >= 0 \(got '2'\)"),
        (check_numbers, ([0],), r"here: x must be a list of whole numbers >= 1 \(got \[0\]\)"),
        (check_numbers, ("12",), r"here: x must be a list of whole numbers >= 1 \(got '12'\)"),
        (check_numbers, (4,), r"here: x must be a list of whole numbers >= 1 \(got 4\)"),
        (check_numbers, ([],), "here: x is empty; give at least one number"),
        (check_numbers, ([2, 3], (3, 4)), r"here: x must be numbers that are not trained on \(got \[2, 3\]; 3 is trained on\)"),
        (check_choice, ("plian", ("plain", "masked")), "here: x is 'plian'; did you mean 'plain'\\? allowed: masked, plain"),
    ],
)
def test_refusals(check: Callable[..., Any], arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check("here", "x", *arguments)


def test_counts_and_lengths_have_a_bound():
    for value in (2**31, 10**400):
        with pytest.raises(ValueError, match=r"^here: rows must be at most 2,147,483,647 \(got .*\)$"):
            check_count("here", "rows", value)
    with pytest.raises(ValueError, match=r"^here: digits must be whole numbers of at most 4,096 \(got .*\)$"):
        check_numbers("here", "digits", [1, 10**9])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: check_whole("x", 0, 1), r"^x must be a whole number >= 1 \(got 0\)$"),
        (lambda: check_whole("x", 1.0), r"^x must be a whole number \(got 1.0\)$"),
        (lambda: check_whole("x", True, 0), r"^x must be a whole number >= 0 \(got True\)$"),
        (lambda: check_number("x", -1, least=0), r"^x must be >= 0 \(got -1\)$"),
        (lambda: check_number("x", 0, above=0, most=1), r"^x must be > 0 and <= 1 \(got 0\)$"),
        (lambda: check_number("x", 1, least=0, below=1), r"^x must be >= 0 and < 1 \(got 1\)$"),
        (lambda: check_number("x", math.nan, least=0), r"^x must be >= 0 \(got nan\)$"),
        (lambda: check_number("x", "1", above=0), r"^x must be > 0 \(got '1'\)$"),
    ],
)
def test_each_bound_is_named(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@given(st.one_of(st.integers(), st.floats(), st.booleans(), st.none(), st.text(max_size=3)), st.integers(-3, 3), st.integers(-3, 3))
def test_a_value_comes_back_or_is_refused(value: Any, low: int, high: int) -> None:
    inside = type(value) in (int, float) and low <= value <= high
    for fits, check in (
        (inside and type(value) is int, lambda: check_whole("x", value, low, high)),
        (inside, lambda: check_number("x", value, least=low, most=high)),
        (inside and low < value < high, lambda: check_number("x", value, above=low, below=high)),
    ):
        if fits:
            assert check() is value
        else:
            with pytest.raises(ValueError, match=r"^x must be "):
                check()


def test_numbers_of_float32() -> None:
    assert torch.finfo(torch.float32).max == MOST_NUMBER
    assert is_whole(3, 1, 3) and not is_whole(4, 1, 3) and not is_whole(True, 0, 3) and not is_whole(1.0, 0, 3)
    assert is_number(1) and is_number(-1.5) and is_number(MOST_NUMBER)
    assert not any(map(is_number, (True, "1", None, math.nan, math.inf, -math.inf, 1e300, 10**400)))


def test_the_nearest_name_comes_first() -> None:
    assert suggest("plian", ["plain", "masked"]) == "did you mean 'plain'? allowed: masked, plain"
    assert suggest("x" * 10**5, []) == "allowed: nothing"
