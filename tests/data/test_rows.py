"""Data of the user's own."""

from __future__ import annotations

import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from loopwright.data.batch import IGNORED, TokenRows, splits
from loopwright.data.tasks.task import EOS, PAD, Alphabet

ROWS = st.lists(st.lists(st.integers(0, 30), min_size=2, max_size=7), min_size=1, max_size=6)


@given(rows=ROWS, draw=st.data())
def test_a_batch_holds_its_rows_and_masks_the_rest(rows: list[list[int]], draw: st.DataObject) -> None:
    source = TokenRows(rows)
    chosen = draw.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=5))
    batch = source.batch(chosen)
    for place, index in enumerate(chosen):
        real = batch.valid[place]
        assert batch.input_ids[place][real].tolist() == batch.labels[place][real].tolist() == rows[index]
        assert (batch.labels[place][~real] == IGNORED).all()
    assert (batch.attention_mask is None) == (len({len(rows[i]) for i in chosen}) == 1)
    assert source.vocab_size == 1 + max(max(row) for row in rows)


def test_labels_say_what_is_predicted() -> None:
    source = TokenRows([[1, 2, 3], [4, 5]], labels=[[IGNORED, IGNORED, 3], [IGNORED, 5]])
    assert source.batch([0, 1]).labels.tolist() == [[IGNORED, IGNORED, 3], [IGNORED, 5, IGNORED]]
    assert source.batch([0, 1]).targets == 2


@pytest.mark.parametrize(
    ("rows", "labels", "words"),
    [
        ([], None, "rows: there are none"),
        ([[1]], None, "row 0 has 1 tokens"),
        ([[1, 2], []], None, "row 1 is empty; give at least two token ids"),
        ([[1, 2], [0.5, 1]], None, "row 1 must be one list of whole numbers"),
        ([[1, "a"]], None, "row 0 holds no token ids"),
        ([[1, -2]], None, r"ids must be >= 0 \(got -2\)"),
        ([[1, 2]], [[1]], "must have the length of its row"),
        ([[1, 2]], [[1, -5]], r"labels: must be ids >= 0, or -100 where nothing is predicted \(got -5\)"),
        (torch.zeros(2, 3, 4, dtype=torch.long), None, "row 0 must be one list of whole numbers"),
    ],
)
def test_mistakes_are_one_line(rows: list, labels: list | None, words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words) as error:
        TokenRows(rows, labels)
    assert "\n" not in str(error.value)


def test_labels_that_were_shifted_already_are_noticed() -> None:
    with pytest.warns(UserWarning, match="labels: each is the token after its place.*; give the ids themselves"):
        TokenRows([[1, 2, 3], [4, 5]], [[2, 3, IGNORED], [5, IGNORED]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for labels in ([[7, 7, 7], [5, 5]], [[IGNORED, 2, 3], [IGNORED, 5]], [[2, 3, IGNORED], [IGNORED, 5]]):
            TokenRows([[1, 2, 3], [4, 5]], labels)


def test_splits_take_rows_tensors_and_sources() -> None:
    found = splits(torch.randint(0, 9, (4, 5)), TokenRows([[1, 2]]), tests={"far": [[3, 12]]}, exact=True, eos_id=2)
    assert found.vocab_size == 13 and found.exact and found.eos_id == 2 and list(found.tests) == ["far"] and len(found.train) == 4


@pytest.mark.parametrize("name", ["train", "valid"])
def test_a_test_cannot_take_the_name_of_another_split(name: str) -> None:
    with pytest.raises(ValueError, match=f"tests: '{name}' is the name of another split"):
        splits([[1, 2]], [[1, 2]], tests={name: [[3, 4]]})


def test_tests_without_names_and_what_is_no_tokenizer_are_refused_at_once() -> None:
    with pytest.raises(TypeError, match="tests must be named rows"):
        splits([[1, 2]], [[1, 2]], tests=[[1, 2]])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"Alphabet\(symbols\).tokenizer\(\) \(got Alphabet\)"):
        splits([[1, 2]], [[1, 2]], tokenizer=Alphabet(["a", PAD, EOS]))
