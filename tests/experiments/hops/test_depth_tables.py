"""What the page says about depth: pairs by seed, swaps solved at a depth, exits as means over seeds."""

from __future__ import annotations

from typing import Any

import pytest

from experiments.hops.depth_tables import deeper, exit_means, swaps_by_rate
from experiments.hops.figures import draw_all
from experiments.hops.measure import DEPTHS, LENGTHS, RULES
from experiments.hops.plan import HARDNESS
from experiments.hops.reading import at_own_rates, mean_exact, solved_at
from experiments.hops.tables import exit_lines
from tests.experiments.hops.made import made

HOPS = (*range(1, 17), 24, 32)


def exits(*limits: int, exact: float = 0.9) -> dict[str, Any]:
    """Easy rows leave after two steps, others after as many as allowed."""
    groups = {limit: {name: [2 if name == "easy" else limit, exact] for name in HARDNESS} for limit in limits}
    return {str(limit): dict.fromkeys(RULES, each) for limit, each in groups.items()}


def swaps(arm: str, label: str, seed: int = 0, *, reach: float = 1.0) -> dict[str, Any]:
    """A run that answers at depth d as many swaps as `reach` times d, and guesses beyond."""
    depths = DEPTHS["chain"] if arm.startswith("1") else (1,)
    tests = {
        str(length): {"rows": 500, "depth": list(depths), "exact": [1.0 if length <= reach * depth else 0.2 for depth in depths]}
        for length in LENGTHS
    }
    given = {"group": "chain", "label": label, "name": f"chain/{arm}/{label}/{seed}", "tests": tests}
    return made(arm, seed, exact={}, **given, exits=exits(16, 80) if len(depths) > 1 else {})


def test_own_rates_take_each_arm_at_its_best_and_no_other() -> None:
    flat = dict.fromkeys(HOPS, 1.0)
    found = [made("1⊗8", seed, exact=flat) for seed in range(3)] + [made("2⊗4", 0, exact=flat), made("plain 8", 0, exact=flat)]
    own = [("rates", 0, "0.002"), ("own", 1, "0.002"), ("rates", 0, "0.0005")]
    found += [made("2⊗4", seed, exact=flat, group=group, changes=[f"optim.lr={rate}"]) for group, seed, rate in own]
    arms = at_own_rates(found)
    assert [run["seed"] for run in arms["1⊗8"]] == [0, 1, 2] and "plain 8" not in arms
    assert [(run["group"], run["seed"], run["changes"]) for run in arms["2⊗4"]] == [
        ("rates", 0, ["optim.lr=0.002"]), ("own", 1, ["optim.lr=0.002"])
    ]  # fmt: skip


def test_the_figures_of_what_was_run_are_drawn() -> None:
    drawings = draw_all([swaps("1⊗16", "window 2"), swaps("1⊗16", "window 2, depth 8 to 24", 1)])
    assert list(drawings) == ["swaps-window", "test-time"]
    assert "window, 8 to 24 steps" in drawings["test-time"] and "64 swaps" in drawings["swaps-window"]


def test_swaps_solved_are_those_of_the_depth() -> None:
    looped, plain = swaps("1⊗16", "window 2"), swaps("plain 16", "window 2", reach=12)
    assert [solved_at(looped, depth) for depth in (4, 16, 20, 64)] == [4, 16, 16, 64]
    assert 100 * (mean_exact(looped) - mean_exact(plain)) == pytest.approx(20)  # four of sixteen lengths, 80 points each


def test_swaps_are_compared_at_the_rate_that_was_best_on_seed_0() -> None:
    def at(seed: int, rate: str, loss: float, reach: float) -> dict[str, Any]:
        label = "all in sight" if rate == "0.001" else f"all in sight, rate {rate}"
        return swaps("1⊗8", label, seed, reach=reach) | {"changes": [f"optim.lr={rate}"], "valid": [[999, loss]]}

    found = [at(1, "0.001", 0.1, 1.0), at(0, "0.001", 0.2, 1.0), at(0, "0.0005", 0.1, 2.0), at(1, "0.002", 0.01, 2.0)]
    rates = swaps_by_rate(found, "1⊗8")
    assert [*rates] == [0.0005, 0.001] and [run["seed"] for run in rates[0.001]] == [0, 1], "2e-3 was not run with seed 0"
    assert deeper(rates[0.001]) == pytest.approx([40, 40])  # 16 of 16 swaps less 8


def test_exits_stand_beside_full_depth() -> None:
    found = [swaps("1⊗16", "window 2", seed) for seed in range(2)]
    found[1]["exits"] = exits(16, 80, exact=0.7)
    lines = list(exit_lines("1⊗16, window 2", found))
    assert len(lines) == 2 * (1 + len(RULES)) and lines[0][1:4] == ["16", "full depth", "16; 100.0"]
    assert lines[1][2:5] == ["change:0.03", "2.0; 90.0 / 2.0; 70.0", "16.0; 90.0 / 16.0; 70.0"]
    assert exit_means(found, "change:0.03", "easy") == (2.0, pytest.approx(0.8))
