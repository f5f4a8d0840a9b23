"""Figures of states: each is drawn from plain numbers alone."""

import copy
import json
import xml.etree.ElementTree as ET

import pytest

from loopwright.analysis import figures as states
from tests.analysis.summaries import dense, looped
from tests.cases import some

pytestmark = pytest.mark.usefixtures("unlaid")


@pytest.mark.long
@pytest.mark.parametrize("name", some(states.STATE_FIGURES, {"pairs", "answers", "spectrum"}))
def test_every_figure_is_svg_from_plain_numbers(name: str):
    needed, draw = states.STATE_FIGURES[name]
    metrics = json.loads(json.dumps(looped()))
    assert needed in metrics
    svg = draw(metrics)
    ET.fromstring(svg)
    assert svg == draw(metrics)
    assert len(svg) < 300_000


def test_the_orbit_and_its_parts():
    metrics = copy.deepcopy(looped())
    wave = [0.5, 0.9] * 20
    metrics["limits"]["orbit"] = {"series": wave, "trend": [0.7] * 40, "windowed": wave, "spectrum": wave[:20]}
    svg = states.orbit_parts(metrics)
    assert "cycles in the window" in svg and ">trend<" in svg


@pytest.mark.long
def test_a_floorplan_has_a_row_of_maps_per_step_and_frames_around_what_runs_once():
    svg = states.floorplan(looped())
    assert [f">step {n}<" in svg for n in (1, 4, 5)] == [True, True, False] and ">prelude<" in svg and ">coda<" in svg
    assert svg.count(states.PRELUDE.lower()) == looped()["places"]["prelude"] and svg.count(states.CODA.lower()) == 1
    assert ">layers<" in states.floorplan(dense())
    maps = looped()["floorplan"]["maps"]
    beside = states.floorplan({"floorplan": {"places": {"prelude": 0, "core": 1, "coda": 0, "steps": 4}, "maps": maps[:4]}})
    assert ">steps 1–4<" in beside and ">step 1<" not in beside  # one layer: its steps stand side by side


@pytest.mark.long
def test_a_floorplan_of_heads_changes_with_any_head():
    metrics = json.loads(json.dumps(looped()))
    svg = states.floorplan_heads(metrics)
    assert ">step 1<" in svg and ">prelude<" in svg
    heads = len(metrics["floorplan_heads"]["heads"])
    assert svg.count(states.PRELUDE.lower()) == heads * metrics["places"]["prelude"]
    metrics["floorplan_heads"]["maps"][2][-1][1][0] += 0.3
    assert states.floorplan_heads(metrics) != svg and states.floorplan(metrics) == states.floorplan(looped())


def test_pairs_of_many_depths_are_all_drawn():
    metrics = {"pairs": {"attention": [[0.1] * 200] * 200, "residual": [[0.5] * 200] * 200}}
    svg = states.pair_matrices(metrics)
    assert svg.count("<image") == 2 and len(svg) < 40_000


def test_factors_end_where_rounding_begins():
    metrics = json.loads(json.dumps(looped()))
    shrunk = [None] + [10.0 ** (-t) for t in range(1, 12)]
    metrics["by_step"] |= {"state_step_norm": {"mean": shrunk}, "state_norm": {"mean": [1.0] * 12}}
    flat = states.spectrum(metrics)
    for t in range(6, 12):  # below ROUNDING: what stands there changes nothing
        shrunk[t] = 3e-7 * t
    assert states.spectrum(metrics) == flat
    shrunk[3] *= 2
    assert states.spectrum(metrics) != flat


def test_a_spectrum_is_drawn_as_it_is() -> None:
    """What turns often in a spectrum is no orbit of its own: no running mean, no even and odd steps."""
    flat = [0.0] * 64
    orbit = {"series": flat, "trend": flat, "windowed": flat, "spectrum": [float(i % 2) for i in range(64)]}
    drawn = str(states.orbit_parts({"limits": {"orbit": orbit}}))
    assert "mean of" not in drawn and "even" not in drawn
