"""Figures of an analysis from a saved summary: stages and states."""

from __future__ import annotations

import copy
import json
import re
import xml.etree.ElementTree as ET
from functools import cache

import pytest
from matplotlib.figure import Figure

from loopwright.analysis import figures as stages
from loopwright.analysis import figures as states
from loopwright.analysis.summary import STAGES
from tests.analysis.summaries import dense, looped, summary_of
from tests.cases import noisy, some

pytestmark = pytest.mark.usefixtures("unlaid")


@cache
def drawn(name: str) -> str:
    """A figure of the looped model, drawn once for all tests."""
    return stages.STAGE_FIGURES[name](looped())


@pytest.mark.long
@pytest.mark.parametrize("name", some(stages.STAGE_FIGURES, {"stages-by-step", "fixed-points"}))
def test_every_figure_is_svg_from_plain_numbers(name: str):
    metrics = json.loads(json.dumps(looped()))
    svg = stages.STAGE_FIGURES[name](metrics)
    ET.fromstring(svg)
    assert svg == drawn(name)
    changed = copy.deepcopy(metrics)
    for numbers in changed["by_place"].values():
        numbers["mean"] = [None if v is None else 0.5 * v * (i % 3) for i, v in enumerate(numbers["mean"])]
    assert stages.STAGE_FIGURES[name](changed) != svg


@pytest.mark.long
def test_groupings_have_their_colours_and_words():
    by_step, by_layer = drawn("stages-by-step"), drawn("stages-by-layer")
    assert all(colour.lower() in by_step for colour in stages.STEP_ENDS) and all(
        colour.lower() in by_layer for colour in stages.LAYER_ENDS
    )
    assert "step 12" in by_step and "layer 3" in by_layer and "ColSum concentration" in drawn("stages-realised")


@pytest.mark.slow
def test_a_dense_model_is_laid_over_and_drawn_alone():
    alone, over = drawn("stages-by-step"), stages.by_step(looped(), dense=dense())
    assert "dense model" in over and "dense model" not in alone
    assert "this model" in stages.by_step(dense())
    assert "dense model" in stages.halves(looped(), dense=dense())
    assert "predict, dense" in stages.neurons(looped(), dense=dense())


def test_numbers_that_are_not_there_are_said():
    with pytest.raises(ValueError, match="holds none of nothing"):
        stages.by_step(looped(), ("nothing",))


def test_fixed_points_have_the_farthest_layers_beside_them_and_older_summaries_are_drawn_without():
    metrics = copy.deepcopy(looped())
    draw, panel = stages.STAGE_FIGURES["fixed-points"], f">{stages.LABELS['far_attention']}<"
    assert panel in drawn("fixed-points")
    del metrics["by_place"]["far_attention"]
    older = draw(metrics)
    assert panel not in older and f">{stages.LABELS['far_cosine']}<" in older


def test_a_summary_without_spreads_is_drawn_without_bands():
    metrics = copy.deepcopy(looped())
    assert "opacity:0.12" in stages.by_layer(metrics, ("colsum",))
    del metrics["by_place"]["colsum"]["std"]
    assert "opacity:0.12" not in stages.by_layer(metrics, ("colsum",))


@pytest.mark.slow
def test_the_prompt_of_the_largest_orbit_is_drawn_from_its_own_numbers():
    metrics = copy.deepcopy(looped())
    flat = {name: {"mean": list(metrics["by_place"][name]["mean"])} for name in STAGES}
    metrics["limits"]["orbit"] = {"by_place": flat}
    late, whole = stages.orbit_by_step(metrics), stages.orbit_realised(metrics)
    assert ">step 7<" in late and ">step 12<" in late and ">step 1<" not in late
    flat["colsum"]["mean"][1] = 5.0  # the first step of the core: not among the later half
    assert stages.orbit_by_step(metrics) == late and stages.orbit_realised(metrics) != whole


def test_no_band_of_a_share_leaves_what_a_share_can_be():
    metrics = copy.deepcopy(looped())
    metrics["by_place"]["sink_rate"] = {
        name: [value] * metrics["places"]["steps"] * 6 for name, value in (("mean", 0.05), ("std", 0.9))
    }
    assert not re.search(r">[-−]0\.[1-9]", stages.by_layer(metrics, ("sink_rate",)))


def test_halves_are_drawn_for_every_step():
    svg = stages.halves(looped())
    assert ">first half, step 1<" in svg and ">second half, step 12<" in svg


@pytest.mark.long
def test_shares_that_are_zero_everywhere_lie_at_the_foot_of_their_axis():
    metrics = copy.deepcopy(looped())
    numbers = metrics["by_place"]["sink_rate"]
    numbers["mean"] = [0.0 for _ in numbers["mean"]]
    for draw in (stages.by_step, stages.realised, stages.halves):
        svg = draw(metrics, ("sink_rate",))
        assert ">1.0<" in svg and not re.search(r">[-−]0\.0", svg)
    numbers["mean"][0] = 0.01
    assert ">1.0<" not in stages.by_step(metrics, ("sink_rate",))


def test_axes_of_layers_and_steps_are_labelled_at_whole_numbers():
    pairs, by_step = [[0.0, 1.0], [1.0, 0.0]], [[{"core": 1, "steps": 3}, 3], [{"core": 3, "steps": 1}, 3]]
    for places, count in by_step:
        by_place = {"norm": {"mean": [1.0] * count, "std": [0.1] * count}}
        metrics = {"places": {"prelude": 0, "coda": 0, **places}, "by_place": by_place, "examples": 2}
        draws = [
            lambda axes, m=metrics: stages._realised(m, "norm", 8, axes),
            lambda axes, m=metrics: stages._by_layer(m, "norm", True, axes),
            lambda axes: states._matrix(axes, pairs, "", "viridis"),
        ]
        for draw in draws:
            axes = Figure().subplots()
            draw(axes)
            assert all(float(tick).is_integer() for tick in axes.get_xticks()), (places, axes.get_xlabel())


def test_gate_and_diagonals_are_drawn_where_a_model_has_them():
    metrics = summary_of("gated", noisy("ouroboros-qwen2.5-3b-tiny", std=0.3), depth=3, batch=2)
    assert stages.has_parts(metrics) and not stages.has_parts(looped())
    assert len(metrics["by_step"]["state_gate"]["mean"]) == 3 and max(metrics["by_step"]["state_gate"]["std"]) > 0
    svg = stages.parts(metrics)
    assert all(word in svg for word in ("how far the gate is open", "size of the diagonals"))
    metrics["by_step"]["state_gate"]["mean"][0] += 0.5
    assert stages.parts(metrics) != svg
    del metrics["by_step"]["state_gate"]
    assert "how far the gate" not in stages.parts(metrics)


@pytest.mark.long
@pytest.mark.parametrize("name", some(states.STATE_FIGURES, {"pairs", "answers", "spectrum"}))
def test_every_figure_of_states_is_svg_from_plain_numbers(name: str):
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
