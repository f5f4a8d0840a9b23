"""Chains of operations: answers computed again from the text, fillers that change nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.data.batch import IGNORED
from loopwright.data.tasks.chain import OPERATIONS, Chain
from loopwright.data.tasks.task import Table


def apply(word: str, value: int, m: int) -> int:
    if word == ".":
        return value
    if "/" in word:
        i, j = map(int, word.split("/"))
        return j if value == i else i if value == j else value
    return (value + int(word[1:]) if word[0] == "+" else value * int(word[1:])) % m


@settings(max_examples=25)
@given(st.integers(0, 2**31 - 1), st.sampled_from([("add", 2), ("add", 7), ("affine", 7), ("swap", 5)]), st.sampled_from([None, 9]))
def test_answers_follow_from_the_text(seed: int, kind: tuple[str, int], places: int | None) -> None:
    operations, m = kind
    task = Chain(lengths=[4, 6], longer=[9], operations=operations, modulus=m, places=places, train=40, valid=5, test=5, seed=seed)
    splits = task.splits()
    assert list(splits.tests) == ["test", "length-4", "length-6", "length-9"]
    for source in (splits.train, splits.valid, *splits.tests.values()):
        assert isinstance(source, Table)
        for row in range(len(source)):
            start, *words, equals, answer, end = source.show(row).split(" ")
            assert (equals, end) == ("=", "§") and len([w for w in words if w != "."]) == int(source.required_depth[row])
            assert places is None or len(words) == places
            value = int(start)
            for word in words:
                value = apply(word, value, m)
            assert value == int(answer)
        assert (source.batch([0]).attention_mask is None) == (places is not None or len(set(source.required_depth.tolist())) == 1)


@settings(max_examples=15)
@given(st.integers(0, 2**31 - 1), st.sampled_from([("affine", 7), ("swap", 5)]), st.sampled_from([None, 9]))
def test_with_an_answer_after_every_operation_each_is_that_of_the_chain_so_far(
    seed: int, kind: tuple[str, int], places: int | None
) -> None:
    operations, m = kind
    task = Chain(
        lengths=[4, 6], longer=[9], operations=operations, modulus=m, places=places, answers="every", train=20, valid=5, test=5,
        seed=seed,
    )  # fmt: skip
    splits = task.splits()
    assert splits.in_place
    for source in (splits.train, splits.valid, *splits.tests.values()):
        assert isinstance(source, Table)
        labels = source.batch(range(len(source))).labels
        for row in range(len(source)):
            start, *words, end = source.show(row).split(" ")
            assert end == "§" and len([w for w in words if w != "."]) == int(source.required_depth[row])
            values = [int(start)]
            for word in words:
                values.append(apply(word, values[-1], m))
            assert labels[row, 0] == IGNORED and (labels[row, len(values) + 1 :] == IGNORED).all()
            assert labels[row, 1 : len(values) + 1].tolist() == values  # ids of values are the values; one place on


def test_the_example_of_the_docstring_with_every_answer() -> None:
    task = Chain(lengths=[2], answers="every", train=1, valid=1, test=1)
    start, *words = task.alphabet.encode("2 0/2 1/3")
    problem = np.array([[start, *(word - task.modulus for word in words)]])
    table = task.write(2, problem, np.random.PCG64(0), task.extent(2)).table(task.alphabet, "plain")
    assert table.show(0) == "2 0/2 1/3 §" and table.batch([0]).labels[0].tolist() == [IGNORED, 2, 0, 0]


def test_every_operation_moves_values_without_losing_one() -> None:
    for name, m in (("add", 6), ("affine", 7), ("swap", 5)):
        table = OPERATIONS[name](m)
        assert all(sorted(values) == list(range(m)) for values in table.values())
    assert {name: len(make(5)) for name, make in OPERATIONS.items()} == {"add": 5, "affine": 7, "swap": 10}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"operations": "subtract"}, "operations is 'subtract'; .*allowed: add, affine, swap"),
        ({"operations": "affine", "modulus": 6}, "modulus is 6 with 'affine'; allowed: a prime from 3 to 61"),
        ({"operations": "swap", "modulus": 30}, "modulus is 30 with 'swap'; allowed: 2 to 18"),
        ({"modulus": 1}, r"modulus must be a whole number >= 2 \(got 1\)"),
        ({"places": 7}, r"places must be a whole number >= 8 \(got 7\)"),
        ({"answers": "each"}, "answers is 'each'"),
        ({"longer": [8]}, "8 is trained on"),
        ({"lengths": [0]}, "must be a list of whole numbers >= 1"),
        ({"test": 0}, r"test must be .* \(got 0\)"),
    ],
)
def test_refusals(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Chain(**options)


@pytest.mark.parametrize(("operations", "largest"), [("add", 99), ("affine", 61), ("swap", 18)])
def test_the_largest_modulus_fits(operations: str, largest: int) -> None:
    Chain(operations=operations, modulus=largest)
