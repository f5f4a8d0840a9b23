"""Figures of training, evaluation and inference."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable

import pytest

from loopwright.plot.drawing import line_style
from loopwright.plot.figures import (
    Curve,
    Radius,
    TradeOff,
    accuracy_by_depth,
    exit_trade_off,
    length_by_depth_heatmap,
    loss_by_depth,
    loss_curves,
    radius_bars,
    radius_by_depth,
    state_paths,
    throughput_by_batch,
)
from loopwright.plot.style import COLOURS

DEPTHS = [1, 2, 3, 4, 8, 16]
CURVES = {
    "plain": Curve(DEPTHS, [0.1, 0.5, 0.9, 1.0, 0.2, None], [0.05, 0.4, 0.8, 0.99, 0.1, None], [0.2, 0.6, 0.95, 1.0, 0.3, None]),
    "stable": Curve(DEPTHS, [0.2, 0.8, 1.0, 1.0, 1.0, 1.0]),
}
PATHS = [[[0.0, 1.0], [0.5, 0.4], [0.6, 0.3]], [[1.0, 1.0], [0.5, 0.6], [0.55, 0.5]]]
GRID = {"rows": ["2 digits", "3 digits"], "columns": [1, 2, 4]}

FIGURES: dict[str, Callable[[], str]] = {
    "accuracy": lambda: accuracy_by_depth(CURVES, trained=(1, 4, 8)),
    "loss": lambda: loss_curves({"plain": Curve(range(60), [2.0 / (i + 1) for i in range(59)] + [None])}),
    "loss by depth": lambda: loss_by_depth(CURVES, trained=(1, 4, 8)),
    "radius by depth": lambda: radius_by_depth(CURVES, trained=(4, 4, 4)),
    "radius": lambda: radius_bars({"plain": Radius(1.3, 1.2, 1.4), "stable": Radius(0.3, 0.2, 0.4)}),
    "paths": lambda: state_paths(PATHS, explained=[0.75, 0.2], title="stable"),
    "heat map": lambda: length_by_depth_heatmap([[0.0, 0.5, 1.0], [0.0, 0.997, None]], **GRID, trained_rows=["2 digits"]),
}


@pytest.fixture(scope="module")
def drawn() -> dict[str, str]:
    return {name: draw() for name, draw in FIGURES.items()}


def words(svg: str) -> list[str]:
    return [(element.text or "").strip() for element in ET.fromstring(svg).iter() if element.tag.endswith("}text")]


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_a_self_contained_drawing(name: str, drawn: dict[str, str]) -> None:
    svg = drawn[name]
    assert svg.startswith("<svg ") and ET.fromstring(svg).get("viewBox")
    # links to the drawing itself alone; the name spaces are names, not addresses
    assert all(target.startswith("#") for target in re.findall(r'href="([^"]*)"', svg))
    assert not re.search(r"<script|<image|<style|@import|<metadata", svg)
    names, used = re.findall(r' id="([^"]+)"', svg), set(re.findall(r"""(?:href="|url\()#([\w.-]+)""", svg))
    assert len(names) == len(set(names)) and used == set(names)
    assert "currentColor" in svg and "#1b1f24" not in svg
    assert float(ET.fromstring(svg).get("width").removesuffix("pt")) <= 380  # at phone width text stays above 9 pixels
    assert min(float(size) for size in re.findall(r"font-size:([\d.]+)px", svg)) >= (8 if name == "heat map" else 9)


@pytest.mark.parametrize("name", ["accuracy", "heat map"])
def test_bytes_are_the_same_each_time(name: str, drawn: dict[str, str]) -> None:
    assert FIGURES[name]() == drawn[name]


def test_bytes_do_not_depend_on_the_readers_settings(drawn: dict[str, str]) -> None:
    import matplotlib

    with matplotlib.rc_context({"font.size": 30, "axes.facecolor": "red", "axes.labelpad": 20, "xtick.direction": "in"}):
        assert FIGURES["radius"]() == drawn["radius"]
        assert matplotlib.rcParams["font.size"] == 30  # nor are they changed


def test_two_figures_on_a_page_share_no_name(drawn: dict[str, str]) -> None:
    names = [name for svg in drawn.values() for name in re.findall(r' id="([^"]+)"', svg)]
    assert len(names) == len(set(names))


def test_axes_and_lines_are_named(drawn: dict[str, str]) -> None:
    assert {"exact match (%)", "depth (steps)", "plain", "stable", "trained: 1–8, median 4", "1", "16"} <= set(
        words(drawn["accuracy"])
    )
    assert {"loss", "update", "plain"} <= set(words(drawn["loss"]))
    assert {"loss", "depth (steps)", "trained: 1–8, median 4", "0.2", "0.5"} <= set(words(drawn["loss by depth"]))
    assert {"spectral radius ρ", "trained: 4", "depth (steps)"} <= set(words(drawn["radius by depth"]))
    assert {"plain: 1.30 (1.20–1.40)", "stable: 0.30 (0.20–0.40)", "spectral radius ρ"} <= set(words(drawn["radius"]))
    wanted = {"first direction (75 % of variance)", "second direction (20 % of variance)", "start", "after 2 steps", "stable"}
    assert wanted <= set(words(drawn["paths"]))
    assert {"2 digits", "3 digits", "depth", "exact match (%)", "50", "100", "99.7", "–"} <= set(words(drawn["heat map"]))


def test_the_numbers_are_where_they_belong() -> None:
    svg = accuracy_by_depth({"a": Curve([1, 2, 4], [0.0, 0.8, 1.0])})
    blue = re.findall(r'<path d="M ([^"]+)"[^>]*style="fill:none;stroke:#0072b2', svg)
    line = next(path for path in blue if len(path.split()) == 6)
    (x1, y1), (x2, y2), (x3, y3) = [tuple(map(float, pair)) for pair in re.findall(r"([\d.]+) ([\d.]+)", line)]
    # two decimals are kept
    assert x2 - x1 == pytest.approx(x3 - x2, abs=0.03) and y1 - y2 == pytest.approx(4 * (y2 - y3), abs=0.06) and y1 > y2 > y3


def test_no_two_lines_look_alike() -> None:
    for marker in (True, False):
        looks = [tuple(map(str, line_style(place, marker=marker).values())) for place in range(40)]
        assert len(set(looks)) == len(looks)


def test_only_safe_colours_are_used(drawn: dict[str, str]) -> None:
    allowed = {colour.lower() for colour in COLOURS} | {"#ffffff", "#000000"}
    for name in ("accuracy", "loss", "loss by depth", "radius", "radius by depth"):
        assert {colour.lower() for colour in re.findall(r"#[0-9a-fA-F]{6}(?![\w-])", drawn[name])} - allowed == set(), name


def test_names_are_drawn_as_they_are() -> None:
    assert "<b> & $x_1$" in words(accuracy_by_depth({"<b> & $x_1$": Curve([1, 2], [0.0, 1.0])}))


@pytest.mark.slow
def test_curves_of_any_length_are_drawn() -> None:
    for draw in (accuracy_by_depth, loss_curves, loss_by_depth, radius_by_depth):
        draw({"one": Curve([4], [0.5], [0.4], [0.6])})
        draw({"none": Curve([4, 8], [None, None], [None, None], [None, None])})
    long = loss_curves({"a": Curve(range(20_000), [1.0] * 20_000)})
    assert len(long) < 60_000
    many = accuracy_by_depth({"a": Curve(range(1, 1001), [1.0] * 1000)})
    assert 1 <= many.count("<use") < 60
    state_paths([[[0.0, 0.0]]])


FIXED = Curve([1, 2, 3], [3.0, 2.0, 1.9])


def test_the_trade_off_names_its_lines() -> None:
    rules = {"change": Curve([1.2, 2.4], [2.5, 1.95]), "gate": Curve([1.5], [None])}
    steps = TradeOff(rules, FIXED, oracle=Curve([1.5], [1.5]), random=Curve([1.2], [2.8]))
    drawn = exit_trade_off([steps])
    assert all(f">{word}<" in drawn for word in ("change", "gate", "fixed depth", "oracle", "random depth", "mean steps a token"))
    assert drawn == exit_trade_off([steps])
    both = exit_trade_off([steps, TradeOff(rules, FIXED, cost="time / full depth, batch 1")])
    assert both.count(">time / full depth, batch 1<") == 1 == both.count(">mean steps a token<") == both.count(">change<")


def test_throughput_has_a_line_and_a_bound_per_depth() -> None:
    drawn = throughput_by_batch({"depth 1": Curve([1, 4], [10.0, 30.0])}, {"depth 1": Curve([1, 4], [100.0, 400.0])})
    assert all(word in drawn for word in (">depth 1<", "batch (rows)", "bandwidth bound"))
