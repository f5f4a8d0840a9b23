"""What ASURA's page says of differences, and what it counts as a spike."""

from __future__ import annotations

import math

from experiments.asura.run import BEFORE, SPIKE, spikes
from experiments.asura.tables import WHOLE, judged, seeds_apart
from experiments.seeds import pooled
from tests.experiments.results import TEXTS, result


def test_a_spike_stands_above_the_updates_before_it() -> None:
    calm = [1.0 + 0.1 * (-1) ** i for i in range(BEFORE)]  # mean 1, deviation 0.1
    assert spikes([*calm, 1.0 + 0.1 * (SPIKE + 0.01)]) == 1 and spikes([*calm, 1.0 + 0.1 * (SPIKE - 0.01)]) == 0
    assert spikes([*calm, 0.0]) == 0 and spikes(calm) == 0 and spikes([9.0, *calm[1:]]) == 0  # nothing before it to stand above
    assert spikes([*calm, 2.0, 1.0, 5.0]) == 2  # the first spike widens what the second is read against


def test_a_loss_that_is_no_number_is_no_spike() -> None:
    assert spikes([1.0] * BEFORE + [math.nan]) == 0


def labels(**rows: tuple[float, ...]) -> dict[str, list[dict]]:
    return {label: [result(label, {1: value}, seed) for seed, value in enumerate(values)] for label, values in rows.items()}


def said(found: dict[str, list[dict]], label: str) -> str:
    return judged({text: pooled(found.get(label, []), found[WHOLE], text) for text in TEXTS}, seeds_apart(found))


def test_asuras_loss_is_judged_against_a_row() -> None:
    found = labels(ASURA=(0.0, 0.1), worse=(0.3, 0.39), better=(-0.4, -0.31), mixed=(-0.1, 0.4), far=(0.2,), near=(0.05,))
    assert {text: round(value, 6) for text, value in seeds_apart(found).items()} == {"test": 0.5, "ood": 0.5}
    del found["mixed"]
    assert (said(found, "worse"), said(found, "better")) == ("lower", "higher")
    assert (said(found, "far"), said(found, "near")) == ("lower, one seed", "not resolved, one seed")
    assert said(found, "absent") == "not run"


def test_texts_that_part_are_named() -> None:
    found = labels(ASURA=(0.0, 0.0), row=(0.1, 0.1))
    other = [result("row", {1: -0.1}, seed) for seed in range(2)]
    both = {"test": pooled(found["row"], found[WHOLE], "test"), "ood": pooled(other, found[WHOLE], "ood")}
    assert judged(both, {}) == "lower (test), higher (ood)"


def test_one_seed_resolves_nothing_where_no_row_has_several() -> None:
    assert said(labels(ASURA=(0.0,), row=(0.9,)), "row") == "not resolved, one seed"
