"""Colours are seen on light and dark pages; sizes scale to what they promise."""

from __future__ import annotations

import matplotlib
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwright.plot.style import COLOURS, EARLY, FIRST_LAYER, INK, LAST_LAYER, LATE, SIZES, STYLES, drawn_in


def luminance(colour: str) -> float:
    """WCAG's relative luminance."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(a: str, b: str) -> float:
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("style", STYLES)
def test_text_and_lines_are_seen_on_their_background(style: str) -> None:
    look = STYLES[style]
    assert contrast(look.ink, look.background) >= 7
    ends = (EARLY, LATE, FIRST_LAYER, LAST_LAYER, *COLOURS[:4])
    assert {colour: contrast(colour, look.background) >= 3 for colour in ends} == dict.fromkeys(ends, True)


def test_ink_is_the_styles_own_and_settings_are_put_back() -> None:
    from matplotlib.colors import to_hex

    before = dict(matplotlib.rcParams)
    for look in STYLES.values():
        with drawn_in(look):
            assert to_hex(INK) == look.ink
    assert dict(matplotlib.rcParams) == before


@given(st.integers(1, 12), st.integers(1, 3), st.floats(1, 6), st.floats(1, 6))
def test_a_figure_fits_its_size_and_no_other_number_of_columns_fills_a_slide_better(count, columns, width, height) -> None:
    def laid(n: int) -> tuple[float, float]:
        return width * n, height * -(-count // n)

    assert SIZES["page"].across(count, columns, width, height) == min(columns, count)
    assert SIZES["column"].across(count, columns, width, height) <= 2
    for name in ("column", "slide"):
        size = SIZES[name]
        across = size.across(count, columns, width, height)
        scale = size.scale(*laid(across))
        assert all(scale * side <= most * 1.0001 for side, most in zip(laid(across), (size.width, size.height), strict=True))
        if name == "slide":
            assert scale >= max(size.scale(*laid(n)) for n in range(1, count + 1))
