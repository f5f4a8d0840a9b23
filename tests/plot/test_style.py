"""Styles and sizes, and SVG as pages take it."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import matplotlib
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loopwright.plot.style import COLOURS, EARLY, FIRST_LAYER, INK, LAST_LAYER, LATE, SIZES, STYLES, drawn_in, file_svg, page_svg


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


PAGE = '<svg style="x" width="200pt" height="100pt" viewBox="0 0 200 100">\n<path d="M 0 0" style="stroke: currentColor"/>\n</svg>'


@pytest.mark.parametrize("style", STYLES)
def test_a_file_has_its_own_colours_and_size(style: str) -> None:
    look = STYLES[style]
    svg = file_svg(PAGE, look, 1.5)
    root = ET.fromstring(svg)
    assert (root.get("width"), root.get("height"), root.get("viewBox")) == ("300.00pt", "150.00pt", "0 0 200 100")
    assert root[0].get("fill") == look.background and (root[0].get("width"), root[0].get("height")) == ("200", "100")
    assert file_svg(PAGE.replace("<svg ", '<svg data-panels="1" '), look, 1.5) == svg  # what pages alone read is left out
    assert "currentColor" not in svg and re.search(f"stroke: {look.ink}", svg)


def test_few_bytes_say_the_same_lines() -> None:
    bent = '<path d="M 1 2 L 3 4 L 9 4 M 5 5 L 5 9 z" style="fill: none; stroke: red"/>'
    curved = '<path d="M 0 0 C 1 1 2 2 3 3 L 4 4" style="stroke: red"/>'
    unseen = '<path d="M 0 0 L 9 0 L 9 9 z" style="fill: none"/>'
    made = page_svg(f'<?xml version="1.0"?>\n<svg width="9pt">\n{bent}\n{curved}\n{unseen}\n</svg>')
    assert '<path d="M 1 2 3 4 9 4 M 5 5 5 9 z" style="fill:none;stroke:red"/>' in made
    assert '<path d="M 0 0 C 1 1 2 2 3 3 L 4 4" style="stroke:red"/>' in made and "M 0 0 9 0" not in made


def test_groups_that_say_nothing_of_what_is_in_them_are_left_out() -> None:
    inner = '<g data-line="a"><path d="M 0 0 L 1 1" style="stroke: red"/></g><g data-line="b"/>'
    made = page_svg(f'<svg width="9pt"><g><g></g><g transform="scale(2)"><g>{inner}</g></g></g></svg>')
    kept = inner.replace("L ", "").replace(": ", ":")
    assert made.endswith(f' width="9pt"><g transform="scale(2)">{kept}</g></svg>')
