"""What the page says about depth: pairs by seed, swaps solved at a depth, exits as means over seeds."""

from __future__ import annotations

from typing import Any

from experiments.hops.depth_tables import (
    apart,
    chain_pairs,
    chain_rate_table,
    chain_table,
    exit_table,
    random_pairs,
    random_table,
    swap_models,
)
from experiments.hops.figures import draw_all
from experiments.hops.measure import DEPTHS, LENGTHS, RULES
from experiments.hops.plan import HARDNESS
from experiments.hops.reading import at_own_rates, solved_at
from tests.experiments.hops.made import made

HOPS = (*range(1, 17), 24, 32)


def cells(line: str) -> list[str]:
    return line.strip("| ").split(" | ")


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


def test_random_depth_is_paired_with_the_fixed_one() -> None:
    fixed = [made("1⊗8", seed, exact=dict.fromkeys(HOPS, 0.5 + 0.1 * seed)) for seed in range(3)]
    random = [made("1⊗8", seed, exact=dict.fromkeys(HOPS, 1.0), group="random", label="depth 4 to 12") for seed in (0, 2)]
    lines = [cells(line) for line in random_pairs([*fixed, *random]).splitlines()[2:]]
    assert lines[0][:2] == ["depth 8", "50.00 / 30.00"] and lines[0][-1] == "undecided"
    shown = [cells(line) for line in random_table([*fixed, *random]).splitlines()[2:]]
    assert [line[:3] for line in shown] == [["fixed depth of 8", "0, 1, 2", "0 / 0 / 0"], ["depth 4 to 12", "0, 2", "32 / 32"]]
    assert apart([1.0])[-1] == "one seed" and apart([1.0, 1.1, 1.2])[-1] == "decided"


def test_swaps_solved_are_those_of_the_depth() -> None:
    found = [swaps("1⊗16", "window 2", seed) for seed in range(2)] + [
        swaps("plain 16", "window 2", seed, reach=12) for seed in range(2)
    ]
    assert [solved_at(found[0], depth) for depth in (4, 16, 20, 64)] == [4, 16, 16, 64]
    looped, plain = (cells(line) for line in chain_table(found).splitlines()[2:])
    assert looped[4] == "16 / 16" and looped[6] == "4 / 4" and plain[4] == "12 / 12" and plain[6] == ""
    (pair,) = (cells(line) for line in chain_pairs(found).splitlines()[2:])
    assert pair[:2] == ["1⊗16, window 2 less plain 16, window 2", "20.00 / 20.00"]  # four of sixteen lengths, 80 points each


def test_swaps_are_compared_at_the_rate_that_was_best_on_seed_0() -> None:
    def at(arm: str, seed: int, rate: str, loss: float, reach: float) -> dict[str, Any]:
        label = "all in sight" if rate == "0.001" else f"all in sight, rate {rate}"
        return swaps(arm, label, seed, reach=reach) | {"changes": [f"optim.lr={rate}"], "valid": [[999, loss]]}

    found = [at("1⊗8", 0, "0.001", 0.2, 1.0), at("1⊗8", 1, "0.001", 0.1, 1.0), at("1⊗8", 1, "0.002", 0.01, 2.0)]
    found += [at("plain 8", 0, "0.001", 0.2, 16), at("plain 8", 0, "0.002", 0.1, 12), at("plain 8", 1, "0.002", 0.3, 12)]
    *lines, pair, deep = [cells(line) for line in chain_rate_table(found).splitlines() if line.startswith(("| 1", "| pl"))]
    assert [line[:2] for line in lines] == [["1⊗8", "0.001"], ["plain 8", "0.001"], ["plain 8", "**0.002**"]]
    assert pair[1] == "−20.00 / −20.00"  # 8 of 16 swaps less 12: 80 points each
    assert deep[:2] == ["1⊗8 at depth 16 less itself at depth 8, rate 0.001", "40.00 / 40.00"]  # 16 of 16 swaps less 8


def test_swaps_are_shown_at_the_common_rate_and_at_their_own() -> None:
    rates = {"all in sight": [], "all in sight, rate 0.0005": ["optim.lr=0.0005"], "all in sight, rate 0.002": ["optim.lr=0.002"]}
    found = [swaps("1⊗8", label) | {"changes": changes} for label, changes in rates.items()]
    assert list(swap_models(found)) == ["1⊗8, all in sight", "1⊗8, all in sight, rate 0.0005"]


def test_exits_are_means_over_seeds_beside_full_depth() -> None:
    found = [swaps("1⊗16", "window 2", seed) for seed in range(2)]
    found[1]["exits"] = exits(16, 80, exact=0.7)
    lines = [cells(line) for line in exit_table(found).splitlines()[2:]]
    assert len(lines) == 2 * (1 + len(RULES))
    assert lines[0][1:5] == ["0, 1", "16", "full depth", "16; 100.0"] and lines[1][3:6] == [
        "change:0.03",
        "2.0; 80.0",
        "16.0; 80.0",
    ]


def test_the_figures_of_what_was_run_are_drawn() -> None:
    drawings = draw_all([swaps("1⊗16", "window 2"), swaps("1⊗16", "window 2, depth 8 to 24", 1)])
    assert list(drawings) == ["swaps-window", "test-time"]
    assert "window, 8 to 24 steps" in drawings["test-time"] and "64 swaps" in drawings["swaps-window"]
