"""Drawing: panels and matrices are the same bytes each time, a matrix is one bitmap, a line has the points that are seen."""

import base64
import io
import math
import re
import xml.etree.ElementTree as ET
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from loopwright.analysis.figures.drawing import CELLS, SEEN, _apart, _needed, far_enough, mosaic, panels, shades


def test_panels_are_drawn_in_order_with_one_legend():
    draws = [lambda axes, n=n: (axes.plot([0, 1], [0, n], label="line"), axes.set_xlabel(f"panel {n}")) for n in range(3)]
    svg = panels(draws)
    assert svg == panels(draws)
    ET.fromstring(svg)
    assert [svg.index(f"panel {n}") for n in range(3)] == sorted(svg.index(f"panel {n}") for n in range(3))
    assert svg.count(">line<") == 1


def test_names_too_long_for_one_line_stand_in_more():
    def tops(names):
        svg = panels([lambda axes: [axes.plot([0, 1], label=name) for name in names] and None])
        return {re.search(rf'y="([\d.]+)"[^>]*>{name}<', svg)[1] for name in names}

    assert len(tops(["a1", "b2", "c3", "d4"])) == 1
    assert len(tops([letter * 20 for letter in "abcd"])) == 2
    assert len(tops([letter * 40 for letter in "abcd"])) == 4


def test_a_matrix_is_one_bitmap_of_whole_cells():
    values = [[(i * j) % 7 / 7 for j in range(40)] for i in range(40)]
    values[3][5] = float("nan")
    svg = panels([lambda axes: mosaic(axes, values, "viridis") and None])
    images = re.findall(r'xlink:href="data:image/png;base64,([^"]+)"', svg)
    assert len(images) == 1 and len(svg) < 60_000 and "image-rendering" not in svg
    picture = Image.open(io.BytesIO(base64.b64decode(images[0]))).convert("RGBA")
    cell = CELLS // 40
    assert picture.size == (40 * cell, 40 * cell)
    # flipped or not, the clear cell is one whole cell: row 3 from one end, column 5
    clear = [(x // cell, y // cell) for x in range(cell // 2, picture.width, cell) for y in range(cell // 2, picture.height, cell)
             if picture.getpixel((x, y))[3] == 0]  # fmt: skip
    assert clear in ([(5, 3)], [(5, 36)])


def test_a_straight_line_keeps_its_ends_and_a_bent_one_its_corners():
    def points(y):
        svg = panels([lambda axes: axes.plot(range(len(y)), y, color="#123456", linewidth=3) and None])
        outline = re.search(r'd="([^"]+)"[^>]*#123456', svg)
        assert outline is not None
        return outline[1].count("L") + 1

    assert points([0.0] * 50) == 2
    assert points([0.0] * 25 + [1.0] * 25) == 4
    wave = [math.sin(i / 3) for i in range(60)]
    assert points(wave) > 40


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)), min_size=1, max_size=90))
def test_what_is_left_out_is_not_seen(points):
    line = [complex(*point) for point in points]
    kept = _needed(line)
    assert kept[0] == line[0] and kept[-1] == line[-1]
    start = 0
    for a, b in pairwise(kept):
        end = next(i for i in range(start + 1, len(line)) if line[i] == b)
        assert all(_apart(line[i], a, b) <= SEEN + 1e-9 for i in range(start, end))
        start = end


def test_a_path_is_thinned_where_it_stands_still():
    assert far_enough([(0.0, 0.0), (1.0, 0.0), (1.0001, 0.0), (1.0, 0.0001)]) == [0, 1, 3]
    assert far_enough([(0.0, 0.0)]) == [0]


def test_shades_go_from_one_colour_to_the_other():
    assert shades("#000000", "#0000ff", 3) == ["#000000", "#000080", "#0000ff"]
    assert shades("#000000", "#0000ff", 1) == ["#000000"]
