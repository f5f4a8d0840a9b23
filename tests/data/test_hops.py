"""p-hop induction: answers against the definition read word by word, rows of one shape."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.data.hops import Hops
from loopwright.data.table import Table


def find(x: str, i: int) -> int | None:
    """Returns 1 + the last place before i (from 1) that holds the letter at i, or None."""
    places = [j for j in range(1, i) if x[j - 1] == x[i - 1]]
    return max(places) + 1 if places else None


@settings(deadline=None, max_examples=10)
@given(st.integers(0, 2**31), st.integers(3, 6), st.lists(st.integers(1, 4), min_size=1, max_size=3, unique=True))
def test_answers_follow_the_definition(seed: int, symbols: int, hops: list[int]) -> None:
    splits = Hops(hops=hops, harder=[5], length=30, symbols=symbols, train=30, valid=5, test=10, seed=seed).splits()
    for source in (splits.train, splits.valid, *splits.tests.values()):
        assert isinstance(source, Table) and source.ids.shape[1] == 32
        for row in range(len(source)):
            text = source.show(row)
            letters, _, answer = text.rstrip("§").rpartition(">")
            x = letters.rstrip(">")
            p = len(letters) + 1 - len(x)
            assert len(text) == 32 and p == int(source.needs[row]) and all(a != b for a, b in pairwise(x))
            place: int | None = len(x)
            for _ in range(p):
                assert place is not None
                place = find(x, place)
            assert place is not None and x[place - 1] == answer


def test_the_example_of_the_docstring() -> None:
    task = Hops(hops=[2], length=9, train=1, valid=1, test=1)
    x = np.array([task.alphabet.encode("badcbac")])
    assert task.follow(x, 1).tolist() == [4] and task.follow(x, 2).tolist() == [1] and task.follow(x, 3).tolist() == [-1]
    written = task.write(2, x, np.random.PCG64(0), task.extent(2)).table(task.alphabet, "plain")
    assert written.show(0) == "badcbac>>a§" and written.batch([0]).labels[0, -2:].tolist() == task.alphabet.encode("a§")


def test_every_letter_may_come_first_and_be_the_answer() -> None:
    table = Hops(train=400, valid=1, test=1).splits().train
    assert isinstance(table, Table)
    firsts, answers = ({table.show(i)[place] for i in range(400)} for place in (0, -2))
    assert firsts == answers == set("abcd")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"symbols": 2}, "symbols is 2; allowed: a whole number, 3 or more"),
        ({"symbols": 27}, "symbols is 27; allowed: 3 to 26"),
        ({"harder": [2]}, "harder is .*2 is trained on"),
        ({"length": 6}, "length is 6; allowed: a whole number, 7 or more"),
        ({"harder": [20]}, r"20 hops are found in 0.0% of rows with length 32 and 4 symbols; allowed: fewer hops"),
        ({"hops": []}, "hops is empty"),
        ({"train": 0}, "train is 0"),
    ],
)
def test_refusals(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Hops(**options)
