"""Checks of options: each refusal is one line with the name, the value and what is allowed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from loopwright.data.checks import check_choice, check_count, check_numbers


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
