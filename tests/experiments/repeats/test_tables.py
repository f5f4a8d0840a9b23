"""What reading again costs is paired by seed, and the page is that of the rows."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from experiments.pages import results
from experiments.repeats.plan import DEPTH_RATES, rates
from experiments.repeats.run import counts
from experiments.repeats.tables import BY_DEPTH, at_rate, chosen, page, prices, slope_table, slopes, whole_against, whole_table
from tests.experiments.results import result

ROWS = Path(__file__).parents[3] / "experiments/results/repeats/runs.jsonl"


def test_the_price_of_reading_again_is_paired_by_seed() -> None:
    def run(seed: int, test: float) -> dict[str, object]:
        return {"seed": seed, "loss": {"test": test}}

    kept = {("ASURA", 1): [run(0, 4.0), run(1, 5.0)], ("ASURA", 16): [run(1, 5.5), run(2, 9.0)]}
    assert prices(kept, "ASURA", 16) == {1: pytest.approx(0.5)} and prices(kept, "ASURA", 4) == {}


def test_the_committed_page_is_that_of_the_committed_rows() -> None:
    found = results([str(ROWS)], rates(), counts)
    assert page(found) == ROWS.with_name("table.md").read_text()
    assert {run["rate"] for runs in chosen(found).values() for run in runs} <= {run["rate"] for run in found}


def test_at_one_rate_every_arm_has_its_seeds_in_order() -> None:
    def run(label: str, seed: int, rate: float = 2e-3, times: int = 1) -> dict[str, object]:
        return {"label": label, "times": times, "rate": rate, "seed": seed}

    found = [run("ASURA", 1), run("ASURA", 0), run("ASURA", 0, rate=4e-3), run("plain, equal FLOPs", 0, times=4)]
    assert at_rate(found, 2e-3) == {("ASURA", 1): [run("ASURA", 0), run("ASURA", 1)]}


def test_the_slope_is_that_of_a_straight_line_in_the_logarithm_of_the_depth() -> None:
    def runs(depth: int, seeds: tuple[int, ...]) -> list[dict[str, object]]:
        return [{"seed": seed, "loss": {"test": 5.0 - seed * math.log2(depth)}} for seed in seeds]

    kept = {(label, 1): runs(depth, (0, 1, 2)) for depth, label in BY_DEPTH.items()}
    assert slopes(kept) == {0: pytest.approx(0), 1: pytest.approx(-1), 2: pytest.approx(-2)}
    assert list(slopes(kept | {(BY_DEPTH[8], 1): runs(8, (0, 2))})) == [0, 2]
    assert slopes({key: runs for key, runs in kept.items() if key[0] != BY_DEPTH[8]}) == {}
    assert slope_table({"own": kept}).splitlines()[2].startswith("| own | −1.0000 | −3.48") and "No row" in slope_table({"own": {}})


def test_a_depth_without_a_rate_of_its_own_stands_at_that_of_depth_3() -> None:
    def run(rate: float, valid: float) -> dict[str, object]:
        return {"label": "ASURA, depth 8", "times": 1, "rate": rate, "seed": 0, "loss": {"valid": valid}}

    first, second = DEPTH_RATES
    alone, better = run(first, 4.6), run(second, 4.5)
    assert chosen([alone]) == {("ASURA, depth 8", 1): [alone]} and chosen([alone, better]) == {("ASURA, depth 8", 1): [better]}


def test_all_of_the_text_has_tables_of_its_own() -> None:
    def run(label: str, more: float) -> dict[str, object]:
        made = result(label, {1: more}, 0)
        loss = {text: made["texts"][text]["loss"][0] for text in made["texts"]} | {"valid": 4.0}
        return made | {
            "label": label,
            "rate": 2e-3,
            "parameters": 5e6,
            "flops": 1e7,
            "tokens": 1.6e8,
            "losses": [3.0],
            "loss": loss,
        }

    kept = {(f"{arm}, all of the text", 4): [run(arm, more)] for arm, more in (("ASURA", 0.0), ("plain, equal FLOPs", 0.25))}
    assert whole_table(kept).splitlines()[2].startswith("| ASURA | 5.00 M | 10.0 M | 160 M | 0.002 | 0 | 3.000 | 4.000 |")
    assert whole_against(kept).splitlines()[2].startswith("| ASURA | plain, equal FLOPs | −0.2500")
    assert "No row" in whole_table({}) and "No row" in whole_against({})
