"""A line over steps that goes back and forth is two lines, one that turns otherwise a band, and any other itself."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from loopwright.plot.drawing import panels
from loopwright.plot.figures import ENVELOPE, LINEAR_STEPS, _turns, _windows, over_steps, step_axis

pytestmark = pytest.mark.usefixtures("unlaid")
STEPS = range(1, 129)


def drawn(values: list[float | None]) -> str:
    return panels([lambda axes: over_steps(axes, STEPS, values, color="#0072B2", label="layer 0")])


def test_a_period_of_two_is_its_even_and_its_odd_steps() -> None:
    back_and_forth = drawn([(-1) ** t * (1 + 0.001 * t) for t in STEPS])
    assert re.findall(r'data-line="0:([^"]+)"', back_and_forth) == ["layer 0, even steps", "layer 0, odd steps"]
    assert ">even steps<" in back_and_forth and ">odd steps<" in back_and_forth
    strokes = [len(d.split()) // 2 for d in re.findall(r'<path d="([^"]+)" clip-path', back_and_forth)]
    assert max(strokes) <= len(STEPS) // 2  # none goes through every step: one that does has a point for each


def test_another_orbit_is_a_band_and_its_mean() -> None:
    turning = drawn([(0.0, 1.0, 0.3)[t % 3] for t in STEPS])
    assert re.findall(r'data-line="0:([^"]+)"', turning) == [f"layer 0, mean of {ENVELOPE} steps"]


def test_a_line_that_comes_to_rest_is_one_line_of_its_name() -> None:
    assert re.findall(r'data-line="0:([^"]+)"', drawn([0.9**t for t in STEPS])) == ["layer 0"]
    few = [None if t > 10 else (-1.0) ** t for t in STEPS]
    assert re.findall(r'data-line="0:([^"]+)"', drawn(few)) == ["layer 0"]  # ten strokes can be seen


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=60))
def test_windows_hold_their_place_and_rising_lines_never_turn(values: list[float]) -> None:
    assert all(value in window for value, window in zip(values, _windows(values, ENVELOPE), strict=True))
    assert not _turns(sorted(values))


@pytest.mark.parametrize("steps", [1, 2, 4, 7, LINEAR_STEPS, LINEAR_STEPS + 1])
def test_steps_are_labelled_at_whole_numbers(steps: int) -> None:
    axes = Figure(figsize=(3, 2)).subplots()
    axes.plot(range(1, steps + 1), range(steps))
    step_axis(axes, steps)
    low, high = axes.get_xlim()
    ticks = [tick for tick in axes.get_xticks() if low <= tick <= high]
    assert ticks and all(float(tick).is_integer() for tick in ticks)
