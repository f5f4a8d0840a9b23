"""Addition in the form of the STARS study: what stands where, sums that are right, no pair in two splits in either order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.data.batch import BatchSource
from loopwright.data.tasks.addition import ALPHABET, Addition, add_digits
from loopwright.data.tasks.task import Table


def numbers(text: str, reverse: str = "answer") -> tuple[int, int, int]:
    """Returns a, b and the sum as written."""
    left, total = text.strip().rstrip("§").split("=")
    a, b = left.split("+")
    return (*(int(x[::-1] if reverse == "all" else x) for x in (a, b)), int(total if reverse == "none" else total.strip()[::-1]))


def rows(source: BatchSource) -> list[str]:
    assert isinstance(source, Table)
    return [source.show(i) for i in range(len(source))]


def test_the_form_of_the_study() -> None:
    assert ALPHABET.encode("0123456789+= Ʌ§") == list(range(15))
    splits = Addition(train=300, valid=10, test=20).splits()
    assert splits.vocab_size == 15 and splits.eos_id == 14 and splits.pad_id == 13
    table = splits.train
    assert isinstance(table, Table) and table.ids.shape == (300, 17)
    assert {len(text) for text in rows(table)} == {16, 17}
    batch = table.batch(range(300))
    assert (batch.labels[:, :10] == -100).all() and (batch.labels[:, 10] == 12).all()  # from the space after "="
    assert set((batch.labels != -100).sum(1).tolist()) == {6, 7}
    for text in rows(table):
        a, b, total = numbers(text)
        assert text == f"{a}+{b}= {str(a + b)[::-1]}§" and total == a + b and 1000 <= min(a, b) <= max(a, b) <= 9999


def test_the_form_that_the_paper_prints() -> None:
    released = Addition(train=300, valid=10, test=20).splits()
    splits = Addition(train=300, valid=10, test=20, reverse="none", space=False).splits()
    assert isinstance(splits.train, Table) and splits.train.ids.shape == (300, 16)
    for text, other in zip(rows(splits.train), rows(released.train), strict=True):
        a, b, total = numbers(text, "none")
        assert text == f"{a}+{b}={a + b}§" and numbers(other) == (a, b, total)
    batch = splits.train.batch(range(300))
    assert (batch.labels[:, :10] == -100).all() and set((batch.labels != -100).sum(1).tolist()) == {5, 6}
    assert splits.tokenizer.init_kwargs.get("reading") is None and "last digit" in released.tokenizer.init_kwargs["reading"]


@settings(max_examples=25)
@given(
    st.integers(0, 2**31 - 1), st.integers(1, 5), st.sampled_from(["answer", "all", "none"]), st.booleans(), st.integers(0, 3),
    st.booleans(),
)  # fmt: skip
def test_sums_are_right_and_pairs_apart_in_both_orders(
    seed: int, digits: int, reverse: str, wide: bool, offset: int, space: bool
) -> None:
    options: dict[str, Any] = {"width": 7 if wide else None, "offset": offset, "reverse": reverse, "space": space, "longer": [6]}
    splits = Addition(digits=digits, train=40, valid=10, test=10, seed=seed, **options).splits()
    pairs = {}
    for name, source in {"train": splits.train, "valid": splits.valid, "test": splits.tests["test"]}.items():
        found = [numbers(text, reverse) for text in rows(source)]
        assert all(a + b == total and len(str(a)) == len(str(b)) == digits for a, b, total in found)
        pairs[name] = {(a, b) for a, b, _ in found}
        assert len(pairs[name]) == len(found)
    for name, found in pairs.items():
        for other in pairs.keys() - {name}:
            assert not (found | {(b, a) for a, b in found}) & pairs[other]
    assert all(len(str(n)) == 6 for text in rows(splits.tests["digits-6"]) for n in numbers(text, reverse)[:2])


def test_shapes_that_do_not_depend_on_the_numbers() -> None:
    splits = Addition(train_digits=[1, 2, 3], longer=[5], width=5, train=200, valid=10, test=30).splits()
    assert list(splits.tests) == ["test", "digits-1", "digits-2", "digits-3", "digits-5"]
    for source in (splits.train, *splits.tests.values()):
        assert {len(text) for text in rows(source)} == {20} and source.batch([0]).attention_mask is None
    shifted = rows(Addition(digits=2, offset=4, train=200, valid=10, test=30).splits().train)
    assert {len(text) - len(text.lstrip()) for text in shifted} == {0, 1, 2, 3, 4}


@given(st.lists(st.tuples(st.integers(0, 10**6 - 1), st.integers(0, 10**6 - 1)), min_size=1, max_size=20))
def test_add_digits(pairs: list[tuple[int, int]]) -> None:
    a, b = (np.array([[int(d) for d in f"{pair[i]:06d}"[::-1]] for pair in pairs]) for i in (0, 1))
    digits, ripples = add_digits(a, b)
    for (x, y), total, ripple in zip(pairs, digits.tolist(), ripples.tolist(), strict=True):
        assert total == [int(d) for d in f"{x + y:07d}"[::-1]]
        chains, run = [0], 0
        for i in range(6):  # a carry is born where two digits make ten, and passed on by nine
            own = x // 10**i % 10 + y // 10**i % 10
            run = 1 if own > 9 else run + 1 if own == 9 and run else 0
            chains.append(run)
        assert ripple == max(chains)


def test_all_pairs_of_two_digits_fit_as_far_as_they_go() -> None:
    with pytest.raises(ValueError, match=r"digits 2, 8,100 problems in all: 7,100 rows asked for train; there are 6,\d+ diff"):
        Addition(digits=2, train=7_100, valid=100, test=1_000).splits()
    with pytest.raises(ValueError, match=r"8,200 rows asked for train; digits 2 can give it 8,100 of 8,100 different ones"):
        Addition(digits=2, train=8_200).splits()
    assert len(Addition(digits=1, train=60, valid=10, test=10).splits().train) == 60


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"digits": 0}, r"digits must be a whole number >= 1 \(got 0\)"),
        ({"train": -1}, r"train must be .* \(got -1\)"),
        ({"longer": [4]}, r"longer must be .* \(got \[4\]; 4 is trained on\)"),
        ({"width": 3}, r"width must be a whole number >= 4 \(got 3\)"),
        ({"reverse": "operands"}, "reverse is 'operands'; allowed: all, answer, none"),
        ({"padding": "left"}, "padding is 'left'; allowed: masked, plain"),
        ({"seed": -1}, r"seed must be .* \(got -1\)"),
    ],
)
def test_refusals(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Addition(**options)
