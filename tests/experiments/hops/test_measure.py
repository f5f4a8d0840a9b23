"""What exit rules make of answers: steps and accuracy by group, never more steps than the limit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import loopwright as lw
from experiments.hops.measure import Answers, chain_answers, exits_of
from loopwright.data.tasks.chain import Chain
from loopwright.data.tasks.task import Table
from loopwright.generation.exit_rules import build_exit


@pytest.fixture(scope="module")
def model() -> Any:
    """A model with random weights."""
    torch.manual_seed(0)
    return lw.build("stars-addition-tiny", vocab_size=32, depth=4).eval()


def test_an_answer_is_that_of_the_step_at_which_its_rule_lets_it_leave(model: Any) -> None:
    right = torch.tensor([[True, False], [False, True], [True, False]])
    change = torch.tensor([[0.2, 0.2], [0.2, 0.01], [0.01, 0.2]])
    answers = {2: Answers(right, {"change": change}), 12: Answers(~right, {"change": change})}
    rules = {"change:0.05": build_exit({"kind": "change", "threshold": 0.05}, model)}
    found = exits_of(model, answers, rules, 3)["change:0.05"]
    assert found == {"easy": [2.5, 1.0], "hard": [2.5, 0.0]}
    assert exits_of(model, answers, rules, 1)["change:0.05"] == {"easy": [1.0, 0.5], "hard": [1.0, 0.5]}


def test_answers_after_so_many_swaps_are_those_of_that_place(model: Any) -> None:
    splits = Chain(lengths=[2], longer=[6], answers="every", train=1, valid=1, test=9).splits()
    source = splits.tests["length-6"]
    assert isinstance(source, Table) and source.answers is not None
    said = model(source.batch(range(9)).input_ids, depth=3).logits.argmax(-1)
    source.answers[:, 1:] = 31  # which is not said anywhere
    assert not (said == 31).any()
    source.answers[:, 4] = said[:, 3]  # one place on: the answer after three swaps
    answers = dict(chain_answers(model, splits, {"entropy": build_exit("entropy", model)}, 3))
    assert list(answers) == [1, 2, 3, 4, 5, 6] and answers[3].right.shape == (3, 9) == answers[3].measured["entropy"].shape
    assert answers[3].right[-1].all() and not any(answers[swaps].right.any() for swaps in (1, 2, 4, 5, 6))
    logs = model(source.batch(range(9)).input_ids, depth=3).logits[:, 3].log_softmax(-1)
    torch.testing.assert_close(answers[3].measured["entropy"][-1], -(logs.exp() * logs).sum(-1))
