"""Whose orbit it is: the same tokens are counted in every way, by position and by first token."""

from __future__ import annotations

import torch

from experiments.inside.first_token import counted, tables, ways
from loopwright.metrics.limits import FIXED_POINT, LIMITS

ORBIT = LIMITS.index("orbit")


def labels(*moving: int, length: int) -> torch.Tensor:
    found = torch.full((length,), FIXED_POINT)
    found[list(moving)] = ORBIT
    return found


def test_the_first_token_counts_nowhere_and_positions_part_the_rest() -> None:
    questions = [labels(0, 1, 2, length=9), labels(0, length=20), labels(5, 17, length=20)]
    found = counted(questions, [torch.tensor([0.5, 0.5]), torch.tensor([]), torch.tensor([0.25])], [True, True, False])
    assert (found["questions"], found["tokens"], found["turns"]) == (3, 8 + 19 + 19, 0.5)
    assert found["moving"] == 4 / 46 and found["first"] == 2 / 3
    assert found["by_position"] == [[1, 4, 2 / 9], [4, 16, 1 / 29], [16, 64, 1 / 8], [64, None, None]]
    assert found["letter_first"] == [2, 2 / 27] and found["other_first"] == [1, 2 / 19]


def test_ways_change_what_stands_first_and_no_other_token() -> None:
    question = [5, 6, 7]
    made = [way(question) for way in ways({"\n": 1, "The": 2, "E": 3}.__getitem__).values()]
    assert made == [[5, 6, 7], [1, 5, 6, 7], [2, 6, 7], [3, 6, 7]]


def test_the_tables_say_so() -> None:
    row = {"model": "m", "way": "as they are", "depth": 128, **counted([labels(1, length=5)], [torch.tensor([0.5])], [True])}
    said = tables([row])
    assert "| m | as they are | 4 | 25.00 % | 0.0 % | 0.500 |" in said and "| 1 to 3 | 33.3 % |" in said
    assert "| all, of 1 questions that begin with a single capital letter | 25.0 % |" in said and "| 64 to the end | – |" in said
