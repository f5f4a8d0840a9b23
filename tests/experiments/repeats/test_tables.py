"""Which runs of an arm the page tells of, and how ASURA's loss changes with its depth."""

from __future__ import annotations

import math

import pytest

from experiments.repeats.plan import DEPTH_RATES
from experiments.repeats.tables import BY_DEPTH, PAGE, at_rate, chosen, planned, slopes


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


def test_a_depth_without_a_rate_of_its_own_stands_at_that_of_depth_3() -> None:
    def run(rate: float, valid: float) -> dict[str, object]:
        return {"label": "ASURA, depth 8", "times": 1, "rate": rate, "seed": 0, "loss": {"valid": valid}}

    first, second = DEPTH_RATES
    alone, better = run(first, 4.6), run(second, 4.5)
    assert chosen([alone]) == {("ASURA, depth 8", 1): [alone]} and chosen([alone, better]) == {("ASURA, depth 8", 1): [better]}


def test_what_is_chosen_was_run_and_the_plan_has_each_row_once() -> None:
    found = PAGE.read()
    assert {run["rate"] for runs in chosen(found).values() for run in runs} <= {run["rate"] for run in found}
    names = [row.name for row in planned(found)]
    assert len({*names}) == len(names)
