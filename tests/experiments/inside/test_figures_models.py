"""Figures of several models: drawn from plain numbers, a panel for each, on one scale."""

import copy
import json
import re
import xml.etree.ElementTree as ET

import pytest

from experiments.inside.figures_models import TITLE, side_by_side, stages_of_models
from loopwright.analysis.figures import STEP_ENDS
from loopwright.plot.drawing import Curve
from tests.analysis.summaries import dense, looped

X = range(1, 9)


def curves(scale: float = 1.0) -> dict[str, dict[str, Curve]]:
    y = [scale * 0.5**t for t in X]
    spread = Curve(X, y, [0.9 * v for v in y], [1.1 * v for v in y])
    return {"with": {"4 layers": spread, "12 layers": Curve(X, [v / 2 for v in y])}, "without": {"4 layers": Curve(X, [0.3] * 8)}}


def titles(svg: str) -> list[str]:
    return [text for text in re.findall(r">([^<>]+)</text>", svg) if text.strip()]


def test_a_panel_for_each_group_and_one_legend():
    svg = side_by_side(curves(), y_label="cosine")
    ET.fromstring(svg)
    assert svg == side_by_side(curves(), y_label="cosine")
    words = titles(svg)
    assert [words.count(word) for word in ("with", "without", "4 layers", "12 layers", "cosine")] == [1, 1, 1, 1, 2]
    assert side_by_side(curves(0.5), y_label="cosine") != svg


def test_all_panels_share_their_scale():
    small = {"a": {"x": Curve(X, [0.0] * 8)}, "b": {"x": Curve(X, [100.0] * 8)}}
    numbers = [word for word in titles(side_by_side(small, y_label="y")) if word == "100"]
    assert len(numbers) == 2


def test_the_interval_is_drawn_and_styles_are_taken():
    plain = {"a": {"x": Curve(X, [1.0] * 8)}}
    wide = {"a": {"x": Curve(X, [1.0] * 8, [0.5] * 8, [1.5] * 8)}}
    assert "opacity:0.18" in side_by_side(wide, y_label="y") and "opacity:0.18" not in side_by_side(plain, y_label="y")
    assert "#123456" in side_by_side(plain, y_label="y", styles={"x": {"color": "#123456"}})


def test_zeros_and_missing_numbers_are_left_out():
    holes = {"a": {"x": Curve(X, [1.0, None, float("nan"), 1e-3, 1e-4, 1e-5, 1e-6, 0.0], [0.0] * 8, [None, *[2.0] * 7])}}
    for log in (True, False):
        svg = side_by_side(holes, y_label="y", log=log)
        assert "nan" not in svg.lower()
    nothing = {"a": {"x": Curve(X, [0.0] * 8, [0.0] * 8, [0.0] * 8)}}
    ET.fromstring(side_by_side(nothing, y_label="y", log=True))


@pytest.mark.parametrize(("columns", "letters", "whole"), [(3, 25, True), (3, 26, False), (2, 37, True), (2, 38, False)])
def test_titles_that_would_be_cut_off_are_smaller(columns: int, letters: int, whole: bool):
    groups = {name * letters: {"x": Curve(X, [1.0] * 8)} for name in "abc"}
    svg = side_by_side(groups, y_label="y", columns=columns)
    sizes = [float(size) for size in re.findall(rf"font-size:([\d.]+)px[^>]*>[abc]{{{letters}}}<", svg)]
    assert len(sizes) == 3 and len({*sizes}) == 1 and (sizes[0] == TITLE) == whole


def test_groups_without_a_curve_are_refused():
    for groups in ({}, {"a": {}}):
        with pytest.raises(ValueError, match="a curve or more in each"):
            side_by_side(groups, y_label="y")


def test_stages_of_several_models_with_a_dense_one():
    metrics = json.loads(json.dumps(looped()))
    models = {"(1, 4 ⊗ 12, 1)": metrics, "control": dense()}
    svg = stages_of_models(models, dense=dense())
    ET.fromstring(svg)
    assert svg == stages_of_models(models, dense=dense())
    assert all(title in titles(svg) for title in models) and titles(svg).count("dense model") == 1
    assert all(colour.lower() in svg for colour in STEP_ENDS)
    assert "dense model" not in stages_of_models(models)
    changed = copy.deepcopy(models)
    changed["(1, 4 ⊗ 12, 1)"]["by_place"]["colsum"]["mean"][2] += 0.2
    assert stages_of_models(changed, dense=dense()) != svg


def test_a_number_that_a_summary_lacks_is_said():
    with pytest.raises(ValueError, match="'nothing' is in no summary of a"):
        stages_of_models({"a": looped()}, "nothing")
    with pytest.raises(ValueError, match="allowed: models that have it"):
        stages_of_models({})
