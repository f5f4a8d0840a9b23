"""What ASURA's page says of differences, and what it counts as a spike."""

from __future__ import annotations

import math

from experiments.asura.plan import ALL_COMPARED, ALL_RATES, WHOLE
from experiments.asura.tables import against_whole, best_of_rates
from experiments.tables import pair_table
from loopwright.training.report import BEFORE, DEVIATIONS, spikes
from tests.experiments.results import TEXTS, result


def test_a_spike_stands_above_the_updates_before_it() -> None:
    calm = [1.0 + 0.1 * (-1) ** i for i in range(BEFORE)]  # mean 1, deviation 0.1
    assert spikes([*calm, 1.0 + 0.1 * (DEVIATIONS + 0.01)]) == [BEFORE] and spikes([*calm, 1.0 + 0.1 * (DEVIATIONS - 0.01)]) == []
    assert spikes([*calm, 0.0]) == spikes(calm) == spikes([9.0, *calm[1:]]) == []  # nothing before it to stand above
    assert len(spikes([*calm, 2.0, 1.0, 5.0])) == 2  # the first spike widens what the second is read against


def test_a_loss_that_is_no_number_is_no_spike() -> None:
    assert spikes([1.0] * BEFORE + [math.nan]) == []


def test_all_of_the_text_is_told_at_the_better_rate_of_each() -> None:
    asura, plain = ALL_COMPARED
    low, high = ALL_RATES
    losses = {(asura, low): 4.0, (asura, high): 3.9, (plain, low): 3.8, (plain, high): 3.9}
    found = {f"{arm}, rate {rate:g}": [{"label": f"{arm}, rate {rate:g}", "valid": each}] for (arm, rate), each in losses.items()}
    assert [runs[0]["label"] for runs in best_of_rates(found).values()] == [f"{asura}, rate {high:g}", f"{plain}, rate {low:g}"]
    del found[f"{plain}, rate {high:g}"]
    assert list(best_of_rates(found)) == [asura], "of two rates one was run: neither is the better one"


def test_a_page_compares_each_row_with_the_asura_row_that_read_as_many_files() -> None:
    def run(label: str, more: float, files: int) -> dict:
        return result(label, {1: more}) | {"files": files, "label": label}

    found = {WHOLE: [run(WHOLE, 0.0, 5)], "plain, equal FLOPs": [run("plain, equal FLOPs", 0.1, 5)]}
    found["without adapters"] = [run("without adapters", 0.25, 12)]
    told = pair_table(against_whole(found), TEXTS)
    assert "+0.1000" in told and "+0.2500" not in told, "no ASURA row read the batches of the last one"
    found["ASURA, twelve files"] = [run("ASURA, twelve files", 0.2, 12)]
    told = pair_table(against_whole(found), TEXTS)
    assert "+0.0500" in told and "+0.1000" in told and "+0.2500" not in told and "| ASURA | ASURA |" not in told
