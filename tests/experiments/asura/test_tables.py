"""What ASURA's page says of differences, and what it counts as a spike."""

from __future__ import annotations

import math

from experiments.asura.pairing import FIVE
from experiments.asura.plan import ALL_COMPARED, ALL_RATES, WHOLE
from experiments.asura.tables import (
    all_text_sentence,
    all_text_table,
    best_of_rates,
    claim_table,
    judged,
    loss_table,
    seeds_apart,
    seeds_by_files,
)
from experiments.seeds import pooled
from loopwright.training.report import BEFORE, DEVIATIONS, spikes
from tests.experiments.results import TEXTS, result


def test_a_spike_stands_above_the_updates_before_it() -> None:
    calm = [1.0 + 0.1 * (-1) ** i for i in range(BEFORE)]  # mean 1, deviation 0.1
    assert spikes([*calm, 1.0 + 0.1 * (DEVIATIONS + 0.01)]) == [BEFORE] and spikes([*calm, 1.0 + 0.1 * (DEVIATIONS - 0.01)]) == []
    assert spikes([*calm, 0.0]) == spikes(calm) == spikes([9.0, *calm[1:]]) == []  # nothing before it to stand above
    assert len(spikes([*calm, 2.0, 1.0, 5.0])) == 2  # the first spike widens what the second is read against


def test_a_loss_that_is_no_number_is_no_spike() -> None:
    assert spikes([1.0] * BEFORE + [math.nan]) == []


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


def test_all_of_the_text_is_told_at_the_better_rate_of_each() -> None:
    def run(arm: str, rate: float, valid: float, more: float, seed: int = 0) -> dict:
        label = f"{arm}, rate {rate:g}"
        costs = {"parameters": 5, "flops": 1e6, "tokens": 9, "losses": [4.0], "valid": valid}
        return result(label, {1: more}, seed) | {"label": label} | costs

    asura, plain = ALL_COMPARED
    low, high = ALL_RATES
    rows = [run(asura, low, 4.0, 0.0), run(asura, high, 3.9, 0.1), run(plain, low, 3.8, 0.4), run(plain, high, 3.9, 0.0)]
    found = {row["label"]: [row] for row in rows}
    assert [runs[0]["label"] for runs in best_of_rates(found).values()] == [f"{asura}, rate {high:g}", f"{plain}, rate {low:g}"]
    told = all_text_sentence(found)
    assert "test +0.3000" in told and f"{plain}, rate {low:g} less {asura}, rate {high:g}" in told
    assert f"At {low:g} both: test +0.4000" in told and f"At {high:g} both: test −0.1000" in told
    assert told.endswith("Of 1 seed: the intervals are over documents alone.")
    arms = [(arm, rate) for arm in ALL_COMPARED for rate in ALL_RATES]
    two = {f"{arm}, rate {rate:g}": [run(arm, rate, 4.0, 0.0, seed) for seed in range(2)] for arm, rate in arms}
    assert all_text_sentence(two).endswith("Of 2 seeds.")
    assert all_text_table(found).count("\n") == 1 + len(rows)
    del found[f"{plain}, rate {high:g}"]
    assert list(best_of_rates(found)) == [asura], "of two rates one was run: neither is the better one"
    assert all_text_sentence(found) == "Not all rates were run."


def test_seeds_that_read_other_files_are_told_apart() -> None:
    runs = [{"seed": seed, "origin": {"commit": f"{commit}0"}} for seed, commit in enumerate((FIVE[0], "new", FIVE[1], "new"))]
    assert seeds_by_files(runs) == "5 files: 0, 2; 12 files: 1, 3"


def test_a_page_compares_each_row_with_the_asura_row_that_read_as_many_files() -> None:
    def run(label: str, more: float, files: int) -> dict:
        return result(label, {1: more}) | {"files": files, "spikes": 0, "label": label}

    found = {WHOLE: [run(WHOLE, 0.0, 5)], "plain, equal FLOPs": [run("plain, equal FLOPs", 0.1, 5)]}
    found["without adapters"] = [run("without adapters", 0.25, 12)]
    assert "+0.1000" in loss_table(found) and "+0.2500" not in loss_table(found), "no ASURA row read the batches of the last one"
    assert "| without adapters | not run |" in claim_table({"small": found})
    found["ASURA, twelve files"] = [run("ASURA, twelve files", 0.2, 12)]
    told = loss_table(found)
    assert "+0.0500" in told and "+0.1000" in told and "+0.2500" not in told
    assert "| without adapters | not resolved, one seed | 0.0 / 0.0 |" in claim_table({"small": found})
