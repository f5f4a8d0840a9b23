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
        (check_count, (2, 3), "here: x is 2; allowed: a whole number, 3 or more"),
        (check_count, (True,), "here: x is True; allowed: a whole number, 0 or more"),
        (check_count, ("2",), "here: x is '2'; allowed: a whole number, 0 or more"),
        (check_numbers, ([0],), r"here: x is \[0\]; allowed: a list of whole numbers, each 1 or more"),
        (check_numbers, ("12",), "here: x is '12'; allowed: a list of whole numbers"),
        (check_numbers, (4,), "here: x is 4; allowed: a list of whole numbers"),
        (check_numbers, ([],), "here: x is empty; allowed: at least one number"),
        (check_numbers, ([2, 3], (3, 4)), r"here: x is \[2, 3\], but 3 is trained on; allowed: other numbers"),
        (check_choice, ("plian", ("plain", "masked")), "here: x is 'plian'; did you mean 'plain'\\? allowed: masked, plain"),
    ],
)
def test_refusals(check: Callable[..., Any], arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check("here", "x", *arguments)


def test_counts_and_lengths_have_a_bound():
    for value in (2**31, 10**400):
        with pytest.raises(ValueError, match=r"^here: rows is .*; allowed: at most 2,147,483,647$"):
            check_count("here", "rows", value)
    with pytest.raises(ValueError, match=r"^here: digits is .*; allowed: whole numbers of at most 4,096$"):
        check_numbers("here", "digits", [1, 10**9])
