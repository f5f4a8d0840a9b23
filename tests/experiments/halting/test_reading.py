"""What is needed, when a token is settled, and what a rule gives at a mean depth between two limits."""

from __future__ import annotations

import pytest
import torch

from experiments.halting.reading import between, by_need, correlation, limits, measure, mixed
from experiments.halting.tokens import ColumnTokens, first_settled, token_needs
from loopwright.data.tasks.addition import Columns
from tests.cases import noisy


def test_the_need_of_a_row_is_the_largest_of_its_columns() -> None:
    rows = Columns(lengths=[4, 8], train=20, valid=20, test=200, padding="plain").splits().tests["test"]
    needs, labels = token_needs(rows), rows.batch(range(len(rows))).labels[:, 1:]
    row = (labels != -100).nonzero()[:, 0]
    assert [int(needs[row == i].max()) for i in range(len(rows))] == rows.required_depth.tolist()
    assert int(needs.min()) == 1


def test_a_token_is_settled_from_where_it_stays_right() -> None:
    right = torch.tensor([[1, 0, 1, 0], [1, 1, 0, 0], [1, 1, 1, 0]]).bool()
    assert first_settled(right).tolist() == [1, 2, 3, 3]


def test_between_two_limits_the_mean_depth_is_met() -> None:
    means = [1.0, 2.0, 2.0, 5.0]
    assert between(means, 0.5) is None and between(means, 6.0) is None
    for m in (1.0, 1.25, 2.0, 3.5, 5.0):
        at = between(means, m)
        assert at is not None and mixed(at, means) == pytest.approx(m)


def test_steps_by_need_and_their_correlation() -> None:
    steps, needs = torch.tensor([1, 3, 5, 5]), torch.tensor([0, 2, 3, 3])
    assert by_need(steps, needs) == [1.0, None, 3.0, 5.0]
    assert correlation(steps, steps) == pytest.approx(1.0) and correlation(steps, -steps) == pytest.approx(-1.0)
    assert correlation(torch.ones(4), needs) is None


def test_limits_are_allowed_ones_and_reach_from_first_to_last_step() -> None:
    measured = torch.rand(4, 50)
    for family in ("gate", "act", "change", "divergence", "entropy"):
        found = limits(family, measured)
        assert found == sorted(found) and found[0] >= 0 and len(found) > 50
    assert limits("stable", measured) == [1, 2, 3, 4]


@pytest.mark.parametrize(("kind", "learned"), [("exit", "gate"), ("act", "act"), ("halter", "act")])
def test_a_model_is_measured_by_every_rule(kind: str, learned: str) -> None:
    rows = Columns(lengths=[4], train=20, valid=20, test=30, padding="plain").splits().tests["test"]
    found = measure(noisy("ouro-1.4b-tiny", vocab_size=113, halting={"kind": kind}), ColumnTokens(rows), 4, learned)
    assert set(found["rules"]) == {learned, "change", "divergence", "entropy", "stable"} and sum(found["needs"]) == 30 * 5
    assert len(found["fixed"]["loss"]) == 4 and found["grid"][0] == 1 and found["grid"][-1] == 4
    for curve in found["rules"].values():
        assert len(curve["loss"]) == len(found["grid"]) and 1 <= curve["own"][0] <= 4
        if learned == "gate" and curve["loss"][-1] is not None:  # nobody leaves early: full depth
            assert curve["loss"][-1] == pytest.approx(found["fixed"]["loss"][-1])
