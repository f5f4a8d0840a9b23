"""Drawing: panels and matrices are the same bytes each time, and a matrix is a path per shade, not one per cell."""

import re
import xml.etree.ElementTree as ET

from loopwright.analysis.drawing import SHADES, mosaic, panels, shades


def test_panels_are_drawn_in_order_with_one_legend():
    draws = [lambda axes, n=n: (axes.plot([0, 1], [0, n], label="line"), axes.set_xlabel(f"panel {n}")) for n in range(3)]
    svg = panels(draws)
    assert svg == panels(draws)
    ET.fromstring(svg)
    assert [svg.index(f"panel {n}") for n in range(3)] == sorted(svg.index(f"panel {n}") for n in range(3))
    assert svg.count(">line<") == 1


def test_a_matrix_is_a_path_per_shade():
    values = [[(i * j) % 7 / 7 for j in range(40)] for i in range(40)]
    values[3][3] = float("nan")
    svg = panels([lambda axes: mosaic(axes, values, "viridis") and None])
    assert len(re.findall("<path", svg)) < SHADES + 40 < 40 * 40
    assert len(svg) < 150_000


def test_shades_go_from_one_colour_to_the_other():
    assert shades("#000000", "#0000ff", 3) == ["#000000", "#000080", "#0000ff"]
    assert shades("#000000", "#0000ff", 1) == ["#000000"]
