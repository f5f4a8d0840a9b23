"""Figures of states: each is drawn from plain numbers alone."""

import copy
import json
import xml.etree.ElementTree as ET

import pytest

from loopwright.analysis import figures_states as states
from tests.analysis.summaries import dense, looped


@pytest.mark.parametrize("name", states.FIGURES)
def test_every_figure_is_svg_from_plain_numbers(name: str, tmp_path):
    needed, draw = states.FIGURES[name]
    metrics = json.loads(json.dumps(looped()))
    assert needed in metrics
    svg = draw(metrics, path=tmp_path / "x.svg")
    ET.fromstring(svg)
    assert (tmp_path / "x.svg").read_text() == svg == draw(metrics)
    assert len(svg) < 300_000


def test_the_orbit_and_its_parts():
    metrics = copy.deepcopy(looped())
    wave = [0.5, 0.9] * 20
    metrics["limits"]["orbit"] = {"series": wave, "trend": [0.7] * 40, "windowed": wave, "spectrum": wave[:20]}
    svg = states.orbit_parts(metrics)
    assert "cycles in the window" in svg and ">trend<" in svg


def test_a_floorplan_of_a_dense_model_is_one_row():
    assert "prelude 5" in states.floorplan(dense())
    assert "step 4, 3" in states.floorplan(looped())


def test_pairs_of_many_depths_are_thinned_and_say_so():
    metrics = {"pairs": {"attention": [[0.1] * 200] * 200, "residual": [[0.5] * 200] * 200}}
    assert "1 of 4" in states.pair_matrices(metrics)
