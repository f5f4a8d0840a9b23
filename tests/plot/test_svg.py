"""A file of its own has the style's colours, a background and the size asked for; the drawing in it is the page's."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from loopwright.plot.style import STYLES, file_svg, page_svg

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
