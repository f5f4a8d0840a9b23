"""p-hop induction: answers against the definition read word by word, rows of one shape."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.data.tasks.hops import Hops
from loopwright.data.tasks.task import Table


def find(x: str, i: int) -> int | None:
    """Returns 1 + the last place before i (from 1) that holds the letter at i, or None."""
    places = [j for j in range(1, i) if x[j - 1] == x[i - 1]]
    return max(places) + 1 if places else None


@settings(max_examples=10)
@given(st.integers(0, 2**31 - 1), st.integers(3, 6), st.lists(st.integers(1, 4), min_size=1, max_size=3, unique=True))
def test_answers_follow_the_definition(seed: int, symbols: int, hops: list[int]) -> None:
    splits = Hops(hops=hops, harder=[5], length=30, symbols=symbols, train=30, valid=5, test=10, seed=seed).splits()
    for source in (splits.train, splits.valid, *splits.tests.values()):
        assert isinstance(source, Table) and source.ids.shape[1] == 32
        for row in range(len(source)):
            text = source.show(row)
            letters, _, answer = text.rstrip("§").rpartition(">")
            x = letters.rstrip(">")
            p = len(letters) + 1 - len(x)
            assert len(text) == 32 and p == int(source.required_depth[row]) and all(a != b for a, b in pairwise(x))
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


@settings(max_examples=10)
@given(st.integers(0, 2**31 - 1), st.integers(3, 6), st.integers(1, 5))
def test_answers_at_every_letter_follow_the_definition(seed: int, symbols: int, p: int) -> None:
    splits = Hops(hops=[p], length=30, symbols=symbols, answers="every", train=10, valid=5, test=10, seed=seed).splits()
    assert splits.in_place
    for source in (splits.train, splits.valid, *splits.tests.values()):
        assert isinstance(source, Table) and source.ids.shape[1] == 32
        batch = source.batch(range(len(source)))
        for row in range(len(source)):
            text = source.show(row)
            x = text.strip("^>§")
            assert text == "^" + ">" * p + x + "§" and p == int(source.required_depth[row])
            expected = ""
            for i in range(1, len(x) + 1):
                place: int | None = i
                for _ in range(p):
                    place = find(x, place) if place is not None else None
                expected += "-" if place is None else x[place - 1]
            labels = batch.labels[row].tolist()
            assert labels[: p + 2] == [-100] * (p + 2) and source.alphabet.decode(labels[p + 2 :]) == expected
            assert expected[-1] != "-"  # every row has the trail that makes it a row of p hops


def test_the_example_of_the_docstring_with_an_answer_at_every_letter() -> None:
    task = Hops(hops=[2], length=9, answers="every", train=1, valid=1, test=1)
    x = np.array([task.alphabet.encode("badcbac")])
    written = task.write(2, x, np.random.PCG64(0), task.extent(2)).table(task.alphabet, "plain")
    assert written.show(0) == "^>>badcbac§" and task.alphabet.decode(written.batch([0]).labels[0, 4:]) == "------a"


@pytest.mark.parametrize(("answers", "row"), [("last", "badcbac2a§"), ("every", "2badcbac§")])
def test_one_symbol_asks_for_the_hops(answers: str, row: str) -> None:
    task = Hops(hops=[2, 3], length=8, answers=answers, count="symbol", train=1, valid=1, test=1)
    x = np.array([task.alphabet.encode("badcbac")])
    written = task.write(2, x, np.random.PCG64(0), task.extent(2)).table(task.alphabet, "plain")
    assert written.show(0) == row and written.ids.shape[1] == task.extent(2) == len(row)
    assert task.alphabet.decode(written.batch([0]).labels[0, -7:][-1:]) == ("§" if answers == "last" else "a")
    splits = Hops(hops=[1, 2], length=20, answers=answers, count="symbol", train=20, valid=4, test=4).splits()
    assert isinstance(splits.train, Table) and {splits.train.show(i).strip("abcd§-")[-1] for i in range(20)} == {"1", "2"}


def test_rising_brings_harder_rows_later() -> None:
    options: dict[str, Any] = {"hops": [1, 2, 3, 4], "length": 24, "train": 4000, "valid": 1, "test": 1}
    train, mixed = (Hops(**options, rising=rising).splits().train for rising in (0.8, 0.0))
    assert isinstance(train, Table) and isinstance(mixed, Table)
    firsts = [int((train.required_depth == p).nonzero()[0]) for p in (1, 2, 3, 4)]
    assert firsts == sorted(firsts) and firsts[3] > 1000 and train.required_depth[-400:].unique().tolist() == [1, 2, 3, 4]
    assert sorted(train.required_depth.tolist()) == sorted(mixed.required_depth.tolist()) and mixed.required_depth[
        :100
    ].unique().tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"symbols": 2}, r"symbols must be a whole number >= 3 \(got 2\)"),
        ({"symbols": 27}, "symbols is 27; allowed: 3 to 26"),
        ({"harder": [2]}, "harder must be .*2 is trained on"),
        ({"length": 6}, r"length must be a whole number >= 7 \(got 6\)"),
        ({"harder": [20]}, r"20 hops are found in 0.0% of rows with length 32 and 4 symbols; allowed: fewer hops"),
        ({"hops": []}, "hops is empty"),
        ({"train": 0}, r"train must be .* \(got 0\)"),
        ({"answers": "each"}, "answers is 'each'"),
        ({"count": "number"}, "count is 'number'"),
        ({"count": "symbol", "harder": [5]}, r"harder must be empty with count 'symbol' \(got .5.\)"),
        ({"rising": 1.0}, r"rising must be >= 0 and < 1 \(got 1.0\)"),
    ],
)
def test_refusals(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Hops(**options)
