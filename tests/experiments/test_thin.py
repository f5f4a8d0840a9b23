"""Rows as they are written: what is read of them stays, in as many digits as pages need."""

from __future__ import annotations

import pytest

from experiments.thin import LONG, POINTS, thin

LOSS = 1234.56789


def test_numbers_and_short_lists_have_seven_digits_and_long_lists_four() -> None:
    found = thin({"loss": LOSS, "few": [LOSS] * LONG, "many": [LOSS] * (LONG + 1), "nested": {"pairs": [[LOSS, None]] * LONG}})
    assert found["loss"] == 1234.568 and set(found["few"]) == {1234.568} and set(found["many"]) == {1235.0}
    assert found["nested"]["pairs"] == [[1235.0, None]] * LONG


@pytest.mark.parametrize(("name", "kept"), [("losses", 1234.568), ("blocks", 1234.568), ("mean", 1234.6), ("std", 1235.0)])
def test_lists_whose_differences_are_read_have_more_digits(name: str, kept: float) -> None:
    assert thin({name: [[], [LOSS] * (LONG + 1)]})[name] == [[], [kept] * (LONG + 1)]


def test_a_curve_of_the_training_loss_becomes_means_of_neighbours_and_a_validation_curve_does_not() -> None:
    curve = [[50 * place, float(place)] for place in range(POINTS + 1)]
    found = thin({"loss": curve, "valid": curve, "jacobian": curve[:POINTS]})
    assert found["valid"] == curve and found["jacobian"] == curve[:POINTS]
    assert found["loss"][:2] == [[0, 0.5], [100, 2.5]] and found["loss"][-1] == curve[-1] and len(found["loss"]) == POINTS // 2 + 1
    assert thin(found) == found
    long = thin({"loss": [[place, float(place)] for place in range(2 * POINTS + 3)]})["loss"]
    assert long[0] == [0, 1.5] and long[-1] == [2 * POINTS, 2 * POINTS + 1.0]  # every update counts the same
    assert thin({"loss": long}) == {"loss": long}


def test_a_sweep_keeps_what_was_right_and_how_far_states_moved() -> None:
    sweep = {"depth": [1, 2], "exact": [0.5, 1.0], "change_largest": [0.5, 0.1], "rows": 8}
    assert thin({"near": sweep | {"change_mean": [0.4, 0.1], "loss": [1.0, 2.0], "split": "test"}}) == {"near": sweep}
    held = {"depth": [1, 2], "loss": [1.0, 2.0], "rows": 8}  # not a sweep
    assert thin({"held_out": held}) == {"held_out": held}


def test_a_trace_from_before_training_keeps_its_stage_curve() -> None:
    place = {"mean": [0.5], "std": [0.1]}
    trace = {"by_place": {"colsum": place, "mixing": place}, "places": {"steps": 4}}
    found = thin({"start": trace, "near": trace})
    assert found == {"start": {**trace, "by_place": {"colsum": {"mean": [0.5]}}}, "near": trace}
    assert thin({"start": "torch"}) == {"start": "torch"}


def test_an_origin_keeps_what_made_the_numbers() -> None:
    origin = {"commit": "a" * 40, "changed": False, "torch": "2.11.0", "devices": ["cpu"]}
    assert thin({"origin": origin | {"platform": "Linux", "numpy": "2.4.6"}}) == {"origin": origin}


def test_a_recipe_keeps_what_its_run_did() -> None:
    recipe = {"about": "addition", "updates": 10, "toy": {"updates": 2}}
    assert thin({"recipe": recipe, "toy": {"updates": 2}}) == {"recipe": {"updates": 10}, "toy": {"updates": 2}}
