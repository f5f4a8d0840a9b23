"""What a result of the multi-hop study says, on results made by hand."""

from __future__ import annotations

import pytest

from experiments.hops import reading
from tests.experiments.hops.made import made


def test_solved_hops_ends_at_the_first_that_is_not() -> None:
    assert reading.solved_hops(made("plain 2", exact={1: 1.0, 2: 0.97, 3: 0.5, 10: 1.0})) == 2
    assert reading.solved_hops(made("plain 1", exact={1: 0.94, 2: 1.0})) == 0


def test_accuracy_is_read_at_the_depth_that_was_trained() -> None:
    result = made("2⊗4", exact={1: 1.0, 16: 0.5})
    assert reading.at_own_depth(result) == {1: 1.0, 16: 0.5} and reading.at_depth(result, 16, 1) == 0.25
    assert reading.best_anywhere(result, 16) == 0.75  # at depth 32


def test_steps_needed_counts_back_from_the_trained_depth() -> None:
    result = made("2⊗4", exact={1: 1.0, 2: 1.0, 3: 0.9})
    result["tests"]["2"]["exact"][:4] = [1.0, 0.2, 0.96, 1.0]
    assert [reading.steps_needed(result, hops) for hops in (1, 2, 3)] == [4, 3, None]


def test_the_mean_is_over_trained_hops_alone() -> None:
    exact = dict.fromkeys(range(1, 17), 0.5) | {24: 1.0}
    assert reading.mean_exact(made("plain 8", exact=exact)) == pytest.approx(0.5)


def test_the_rate_is_the_last_that_was_given() -> None:
    assert reading.rate(made("plain 1", exact={1: 1.0})) == reading.RATE
    assert reading.rate(made("plain 1", exact={1: 1.0}, changes=["optim.lr=0.002"], laid_over=["optim.lr=4e-3"])) == 4e-3


def test_arms_come_in_the_plans_order() -> None:
    found = [made(arm, seed, exact={1: 1.0}) for arm, seed in (("plain 2", 0), ("1⊗8", 1), ("1⊗8", 0))]
    assert {arm: [run["seed"] for run in runs] for arm, runs in reading.by_arm(found).items()} == {"1⊗8": [0, 1], "plain 2": [0]}
