"""The arms of the study: what is called equal is nearly so, and no row is planned twice."""

from __future__ import annotations

import pytest

from experiments.asura.run import SETTINGS
from experiments.repeats.plan import (
    COMPARED_RATES,
    DEPTH_RATES,
    DEPTHS,
    FRESH,
    LONGER,
    ONCE,
    RATES,
    STOPPED,
    TEXTS,
    TUNED,
    WHOLE,
    Row,
    calm,
    compared,
    depths,
    longer,
    rates,
    whole_text,
)
from loopwright.model.config import LoopedConfig
from loopwright.model.cost import parameters, pass_flops
from loopwright.model.presets import preset
from loopwright.recipes import recipe


def config(label: str) -> LoopedConfig:
    chosen = recipe("asura-every-step", [*SETTINGS, *Row(label, 4, 1e-3).changes])
    return preset("asura", **chosen.model["changes"])


def test_the_looped_model_has_the_flops_of_one_plain_model_and_the_parameters_of_the_other() -> None:
    huginn, deep, small = (config(label) for label in ("Huginn-like", "plain, equal FLOPs", "plain, equal parameters"))
    flops = [pass_flops(each, batch=1, length=256)["total"] for each in (huginn, deep)]
    assert flops[1] / flops[0] == pytest.approx(1, abs=0.1)
    counts = [parameters(each)["total"].unique for each in (huginn, small)]
    assert counts[1] / counts[0] == pytest.approx(1, abs=0.1)


def test_every_arm_is_tuned_or_takes_the_rate_of_the_one_it_repeats() -> None:
    assert [row.name for row in rates() if row.times == 4] == [f"{label}/4 times/{rate:g}/0" for rate in RATES for label in TUNED]
    chosen = {(label, times): 2e-3 for label in TUNED for times in COMPARED_RATES}
    rows = [*compared(chosen), *longer(chosen)]
    assert len({row.name for row in rows}) == len(rows) == 3 * (3 * (len(TUNED) + 1) + 1)
    assert {row.rate for row in rows} == {2e-3} and {row.label for row in rows if "updates=1920" in row.changes} == {LONGER, FRESH}
    assert not [row for row in compared({("ASURA", 4): 1e-3}) if row.label != "ASURA"]  # nothing is run at a rate nobody chose
    assert not list(longer({("ASURA", 4): 1e-3}))
    assert {row.times for row in compared({("ASURA", 4): 1e-3})} == {1, 4}, "sixteen readings have a rate of their own"


def test_every_depth_has_two_rates_and_then_seeds_at_its_own() -> None:
    first = [*depths({("ASURA", 4): 1e-3})]
    assert len(first) == 2 * len(DEPTHS) and {row.seed for row in first} == {0}, "nothing is run at a rate nobody chose"
    rows = [*depths({("ASURA, depth 8", 1): 2e-3, ("ASURA", 4): 4e-3})][len(first) :]
    assert [(row.label, row.rate, row.seed) for row in rows] == [("ASURA, depth 8", 2e-3, seed) for seed in (1, 2)]


def test_the_smaller_rate_has_the_other_seeds_at_every_depth() -> None:
    rows = [*calm()]
    assert {row.rate for row in rows} == {min(DEPTH_RATES)} and {row.times for row in rows} == {1}
    assert {(row.label, row.seed) for row in rows} == {(label, seed) for label in ("ASURA", *DEPTHS) for seed in (1, 2)}


def test_three_times_the_text_is_another_limit_and_as_many_updates() -> None:
    again, fresh = (Row(label, 1, 1e-3) for label in (LONGER, FRESH))
    assert f"data.limit={TEXTS[1]}" in again.changes and fresh.documents > 3 * TEXTS[1]
    assert {*again.changes} ^ {*fresh.changes} == {f"data.limit={TEXTS[1]}", f"data.limit={fresh.documents}"}


def test_only_text_that_is_read_most_often_is_validated_on_the_way() -> None:
    def saves(times: int) -> bool:
        chosen = recipe("asura-every-step", [*SETTINGS, *Row("ASURA", times, 1e-3).changes])
        return chosen.save.best and 0 < chosen.validate.every < chosen.updates

    assert [times for times in TEXTS if saves(times)] == [STOPPED] == [max(TEXTS)]


def test_all_of_the_text_is_read_four_times_at_the_rate_of_four_readings() -> None:
    rows = [*whole_text({("ASURA", 4): 4e-3, ("ASURA, depth 1", 1): 2e-3, ("plain, equal FLOPs", 16): 1e-3})]
    names = ["ASURA, all of the text", "ASURA, depth 1, all of the text"]
    assert [(row.label, row.rate, row.seed) for row in rows] == [(name, 4e-3, seed) for seed in range(3) for name in names]
    chosen = recipe("asura-every-step", [*SETTINGS, *rows[0].changes])
    assert chosen.data["limit"] is None and rows[0].documents is None and set(WHOLE.values()) == {*TUNED, ONCE}
    tokens = chosen.updates * chosen.batch * chosen.data["length"] / 4
    assert 39_785_770 - chosen.batch * chosen.data["length"] < tokens <= 39_785_770


def test_a_looped_arm_on_all_of_the_text_is_tested_at_depths_that_it_has() -> None:
    rows = {WHOLE[row.label]: row for row in whole_text({(label, 4): 1e-3 for label in TUNED})}
    assert {arm for arm, row in rows.items() if row.tested} == {"ASURA", "Huginn-like"} and not Row("ASURA", 4, 1e-3).tested
    for row in rows.values():
        model = preset("asura", **recipe("asura-every-step", [*SETTINGS, *row.changes]).model["changes"])
        assert not row.tested or (model.depth in row.tested and max(row.tested) <= (model.max_steps or max(row.tested)))
