"""Whether launches cost anything is said for as long as passes are replayed."""

from __future__ import annotations

import pytest

from loopwright.kernels import gate
from loopwright.kernels.gate import free_launches


def test_it_is_said_inside_alone() -> None:
    assert not gate.launches_are_free
    with free_launches():
        assert gate.launches_are_free
        with free_launches():
            pass
        assert gate.launches_are_free
    assert not gate.launches_are_free


def test_an_error_inside_ends_it() -> None:
    with pytest.raises(ValueError, match="inside"), free_launches():
        raise ValueError("inside")
    assert not gate.launches_are_free


def test_two_threads_do_not_leave_it_on() -> None:
    one, two = free_launches(), free_launches()
    one.__enter__(), two.__enter__()
    one.__exit__(None, None, None)
    assert gate.launches_are_free, "the other is still inside"
    two.__exit__(None, None, None)
    assert not gate.launches_are_free
