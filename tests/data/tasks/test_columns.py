"""Addition in columns: answers are those of whole numbers, look back only, and never stand among the inputs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import loopwright as lw
from loopwright.data.batch import IGNORED
from loopwright.data.tasks.addition import COLUMNS_ALPHABET, Columns, add_columns
from loopwright.data.tasks.task import Table, stream

SMALL = {"train": 40, "valid": 5, "test": 20}
COUNTS = st.integers(0, 2**31 - 1)


def steps_of_a_narrow_window(sums: list[int]) -> int:
    """Returns after how many steps every digit is known where a column learns the carry of the one before it, one a step."""
    known = [True, *(total != 9 for total in sums)]  # whose carry is known: that of the start is
    for step in range(1, len(known)):
        if all(known[:-1]):  # the last column hands on nothing
            return step
        known = [here or (place > 0 and known[place - 1]) for place, here in enumerate(known)]
    raise AssertionError


@pytest.mark.long
@settings(max_examples=25)
@given(seed=COUNTS)
def test_answers_are_the_digits_of_the_sum(seed: int) -> None:
    splits = Columns(lengths=[1, 4, 7], longer=[30], seed=seed, **SMALL).splits()
    assert splits.in_place and list(splits.tests) == ["test", "length-1", "length-4", "length-7", "length-30"]
    for source in (splits.train, splits.valid, *splits.tests.values()):
        assert isinstance(source, Table)
        batch = source.batch(range(len(source)))
        for row in range(len(source)):
            start, *columns, last, end = source.show(row).split(" ")
            assert (start, last, end) == ("^", "0+0", "§")
            a, b = (int("".join(column[place] for column in reversed(columns))) for place in (0, 2))
            wanted = [int(digit) for digit in reversed(f"{a + b:0{len(columns) + 1}d}")]
            asked = batch.labels[row] != IGNORED
            assert [int(COLUMNS_ALPHABET.decode([i])) for i in batch.labels[row][asked]] == wanted
            # the model shifts labels once: what stands at place j + 1 is asked at the column in place j
            assert asked.nonzero().flatten().tolist() == list(range(2, len(columns) + 3))
            sums = [int(column[0]) + int(column[2]) for column in columns]
            assert int(source.required_depth[row]) == steps_of_a_narrow_window([*sums, 0])


@settings(max_examples=50)
@given(seed=COUNTS, length=st.integers(1, 12), data=st.data())
def test_an_answer_follows_from_its_column_and_those_before(seed: int, length: int, data: st.DataObject) -> None:
    task, same = Columns(), data.draw(st.integers(0, length))
    one, other = (task.draw(length, stream(seed, place), 8) for place in (0, 1))
    other[:, : 2 * same] = one[:, : 2 * same]
    labels = [
        task.write(length, rows, stream(0), length + 3).table(COLUMNS_ALPHABET, "masked").batch(range(8)).labels
        for rows in (one, other)
    ]
    assert torch.equal(labels[0][:, : same + 2], labels[1][:, : same + 2])


@settings(max_examples=10)
@given(seed=COUNTS)
def test_no_split_has_a_row_of_another_with_digits_exchanged(seed: int) -> None:
    splits = Columns(lengths=[1, 2], train=900, valid=100, test=100, seed=seed).splits()
    tables = (splits.train, splits.valid, splits.tests["test"])
    kept = [{" ".join("+".join(sorted(c.split("+"))) for c in t.show(i).split(" ")) for i in range(len(t))} for t in tables]
    assert not kept[0] & kept[1] and not kept[0] & kept[2] and not kept[1] & kept[2]


def test_room_counts_what_is_left_beside_held_rows() -> None:
    task = Columns()
    assert task.capacity(3, None) == 100**3
    held = task.key(np.array([[1, 2, 3, 3], [2, 1, 3, 3], [4, 5, 6, 7]]))  # one column that can be exchanged, then two
    assert held.tolist() == [[1, 2, 3, 3], [1, 2, 3, 3], [4, 5, 6, 7]] and task.capacity(2, held) == 100**2 - 2 - 4


def test_carries_travel_farther_in_longer_rows() -> None:
    tables = {n: Columns(lengths=[n], train=1, valid=1, test=500).splits().tests["test"] for n in (8, 64)}
    depths = {n: table.required_depth.double() for n, table in tables.items()}
    assert all(0.5 * n < depths[n].mean() < 0.8 * n and n - 2 <= depths[n].max() <= n + 1 for n in depths)


def test_digits_by_hand() -> None:
    digits, depths = add_columns(np.array([[12, 9, 0], [9, 9, 0], [3, 15, 0], [10, 18, 9]]))
    assert digits.tolist() == [[2, 0, 1], [9, 9, 0], [3, 5, 1], [0, 9, 0]] and depths.tolist() == [2, 3, 1, 1]


def test_the_model_is_asked_at_the_column() -> None:
    torch.manual_seed(0)
    splits = Columns(lengths=[3, 5], **SMALL).splits()
    model = lw.build("stars-addition-tiny", vocab_size=splits.vocab_size, positions="rotary", sliding_window=2).eval()
    batch = splits.train.batch(range(8))
    with torch.no_grad():
        out = model(batch.input_ids, attention_mask=batch.attention_mask, labels=batch.labels, depth=2)
    logp = out.logits.log_softmax(-1)
    losses = [
        -float(logp[row, place, batch.labels[row, place + 1]])
        for row in range(8)
        for place in range(batch.labels.shape[1] - 1)
        if batch.labels[row, place + 1] != IGNORED
    ]
    assert len(losses) == batch.targets and float(out.loss) == pytest.approx(sum(losses) / len(losses), rel=1e-5)
    assert not set(batch.input_ids.flatten().tolist()) & set(batch.labels[batch.labels != IGNORED].tolist())


def test_padding_can_be_told_without_a_mask() -> None:
    table = Columns(lengths=[2, 4], **SMALL).splits().train
    assert isinstance(table, Table)
    masked, plain = table.batch([0, 1, 2]), replace(table, padding="plain").batch([0, 1, 2])
    assert masked.attention_mask is not None and plain.attention_mask is None and torch.equal(masked.labels, plain.labels)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lengths": [0]}, "must be a list of whole numbers >= 1"),
        ({"longer": [8]}, "8 is trained on"),
        ({"padding": "none"}, "padding is 'none'; .*allowed: masked, plain"),
        ({"train": 0}, r"train must be .* \(got 0\)"),
    ],
)
def test_refusals(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=rf"data \(columns\): .*{message}"):
        Columns(**options)
