"""What exit rules make of answers: steps and accuracy by group, never more steps than the limit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import loopwright as lw
from experiments.hops.measure import Answers, chain_answers, exits_of, read
from loopwright.data.batch import Batch
from loopwright.data.tasks.chain import Chain
from loopwright.generate.exit_rules import build_exit


@pytest.fixture(scope="module")
def model() -> Any:
    torch.manual_seed(0)
    return lw.build("stars-addition-tiny", vocab_size=32, depth=4)


def test_an_answer_is_that_of_the_step_at_which_its_rule_lets_it_leave(model: Any) -> None:
    right = torch.tensor([[True, False], [False, True], [True, False]])
    change = torch.tensor([[0.2, 0.2], [0.2, 0.01], [0.01, 0.2]])
    answers = {2: Answers(right, {"change": change}), 12: Answers(~right, {"change": change})}
    rules = {"change:0.05": build_exit({"kind": "change", "threshold": 0.05}, model)}
    found = exits_of(model, answers, rules, 3)["change:0.05"]
    assert found == {"easy": [2.5, 1.0], "hard": [2.5, 0.0]}
    assert exits_of(model, answers, rules, 1)["change:0.05"] == {"easy": [1.0, 0.5], "hard": [1.0, 0.5]}


def test_answers_after_so_many_swaps_are_those_of_shorter_rows(model: Any) -> None:
    splits = Chain(lengths=[2], longer=[6], answers="every", train=1, valid=1, test=9).splits()
    source = splits.tests["length-6"]
    answers = dict(chain_answers(model, splits, {}, 3))
    assert list(answers) == [1, 2, 3, 4, 5, 6] and answers[3].right.shape == (3, 9)
    batch = source.batch(range(9))
    short = Batch(batch.input_ids[:, :5], torch.where(torch.arange(5) == 4, batch.labels[:, :5], -100))

    class Short:
        def __len__(self) -> int:
            return 9

        def batch(self, indices: Any) -> Batch:
            return short

    assert torch.equal(read(model, Short(), {}, 3).right, answers[3].right)  # the model does not see what comes later
