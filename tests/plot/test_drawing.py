"""Drawing: panels and matrices are the same bytes each time, a matrix is one bitmap, a line has the points that are seen."""

import base64
import io
import json
import math
import re
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from loopwright.plot.drawing import CELLS, Drawing, Plotted, far_enough, mosaic, panels, shades
from loopwright.plot.style import SEEN, SIZES, STYLES, _apart, _needed


@pytest.mark.long
def test_panels_are_drawn_in_order_with_one_legend():
    draws = [lambda axes, n=n: (axes.plot([0, 1], [0, n], label="line"), axes.set_xlabel(f"panel {n}")) for n in range(3)]
    svg = panels(draws)
    assert svg == panels(draws)
    ET.fromstring(svg)
    assert [svg.index(f"panel {n}") for n in range(3)] == sorted(svg.index(f"panel {n}") for n in range(3))
    assert svg.count(">line<") == 1


@pytest.mark.long
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
        return len(outline[1].split()) // 2  # of "M x y x y"

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


def lines(count: int = 3):
    return panels([lambda axes, n=n: axes.plot([0, 1], [0, n], label="line") and None for n in range(count)])


@pytest.mark.long
@pytest.mark.parametrize(
    ("suffix", "style", "size"),
    [(".svg", "light", "page"), (".svg", "dark", "column"), (".PNG", "dark", "slide"), (".png", "light", "column")],
)
def test_a_figure_is_saved_in_a_style_and_size(suffix: str, style: str, size: str, tmp_path: Path) -> None:
    drawing, look, fit = lines(1), STYLES[style], SIZES[size]
    path = drawing.save(tmp_path / "new" / f"figure{suffix}", style=style, size=size)
    first = path.read_bytes()
    drawing.save(path, style=style, size=size)
    assert path.read_bytes() == first  # the same bytes each time
    if suffix == ".svg":
        root = ET.fromstring(first)
        width, height = (float(root.get(side).removesuffix("pt")) / 72 for side in ("width", "height"))
        assert look.background in first.decode() and look.ink in first.decode() and b"currentColor" not in first
    else:
        picture = Image.open(path)
        width, height = (side / fit.dpi for side in picture.size)
        assert picture.info["dpi"][0] == pytest.approx(fit.dpi, rel=1e-3)
        assert bytes(picture.convert("RGB").getpixel((0, 0))).hex() == look.background[1:]
        assert bytes.fromhex(look.ink[1:]) in {bytes(colour) for _, colour in picture.convert("RGB").getcolors(2**20)}
    if fit.width is not None:
        assert min(abs(width - fit.width), abs(height - fit.height)) < 0.02 and width < fit.width + 0.02


@pytest.mark.parametrize(
    ("name", "asked", "said"),
    [
        ("a.pdf", {}, r"plot: a.pdf must end in .svg or .png \(got '.pdf'\)"),
        ("a", {}, r"must end in .svg or .png \(got 'no ending'\)"),
        ("a.svg", {"style": "drak"}, r"plot: style is 'drak'; .*dark"),
        ("a.png", {"size": "colum"}, r"plot: size is 'colum'; .*column"),
    ],
)
def test_what_there_is_not_is_refused_in_one_line(name: str, asked: dict[str, str], said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=said) as refusal:
        lines(1).save(tmp_path / name, **asked)
    assert "\n" not in str(refusal.value) and not list(tmp_path.iterdir())


def test_a_last_row_that_is_not_full_stands_in_the_middle_as_large_as_the_others() -> None:
    first, second, third = (axes.get_position() for axes in lines(3)._make(SIZES["page"], STYLES["light"]).axes)
    assert third.x0 + third.x1 == pytest.approx(first.x0 + second.x1) and third.width == pytest.approx(first.width)


def test_a_result_is_plotted_and_shown_in_a_notebook(tmp_path: Path) -> None:
    class Result(Plotted):
        def drawing(self) -> Drawing:
            return lines(1)

    shown = Result().plot(tmp_path / "a.svg", style="dark")
    assert shown._repr_svg_() == shown == lines(1) and STYLES["dark"].background in (tmp_path / "a.svg").read_text()
    assert Result().plot() == shown


def test_a_page_can_read_a_line_out(tmp_path: Path) -> None:
    """Where the axes lie and what they say, and which path is which line: the point (2, 30) is found from the drawing alone."""
    drawing = panels([lambda axes: (axes.plot([1, 2, 4], [0, 30, 10], label='<b>"'), axes.set_xlim(1, 4), axes.set_xlabel("step"))])
    root = ET.fromstring(drawing)
    (((left, top, right, bottom), x, y, whole),) = json.loads(root.get("data-axes"))
    assert x == ["linear", 1.0, 4.0, "step"] and whole is True and root.get("data-panels") == "1"
    line = next(element for element in root.iter() if element.get("data-line") == '0:<b>"')
    path = next(element.get("d") for element in line.iter() if element.get("d"))
    at = [tuple(map(float, pair)) for pair in re.findall(r"(-?[\d.]+) (-?[\d.]+)", path)][1]
    assert at[0] == pytest.approx(left + (right - left) / 3, abs=0.05)
    assert y[1] + (bottom - at[1]) / (bottom - top) * (y[2] - y[1]) == pytest.approx(30, abs=0.05)
    assert "data-" not in drawing.save(tmp_path / "a.svg").read_text()
