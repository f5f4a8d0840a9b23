"""What every algorithmic task owes: rows that read back, splits apart, tests by hardness, the same for a seed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.data.tasks.addition import Addition, Columns
from loopwright.data.tasks.chain import Chain
from loopwright.data.tasks.hops import Hops
from loopwright.data.tasks.task import EOS, Table, Task

COUNTS = {"train": 60, "valid": 20, "test": 30}
TASKS: dict[str, tuple[type[Task], dict[str, Any], str]] = {
    "addition": (Addition, {"digits": 2, "longer": [3]}, "digits-3"),
    "mixed": (Addition, {"train_digits": [1, 2, 3], "longer": [5], "width": 6, "reverse": "all", "offset": 2}, "digits-5"),
    "hops": (Hops, {"hops": [1, 2], "harder": [3], "length": 14}, "hops-3"),
    "chain": (Chain, {"lengths": [2, 3], "longer": [5]}, "length-5"),
    "places": (Chain, {"lengths": [2, 3], "longer": [5], "places": 6, "operations": "affine"}, "length-5"),
    "columns": (Columns, {"lengths": [2, 3], "longer": [5]}, "length-5"),
}
each_task = pytest.mark.parametrize(("kind", "options", "harder"), TASKS.values(), ids=TASKS)


def texts(table: Any) -> list[str]:
    assert isinstance(table, Table)
    return [table.show(i) for i in range(len(table))]


@each_task
def test_rows_read_back_and_end_with_their_answer(kind: type[Task], options: dict[str, Any], harder: str) -> None:
    splits = kind(**options, **COUNTS).splits()
    assert {name: len(table) for name, table in {"train": splits.train, "valid": splits.valid, **splits.tests}.items()}.items() >= (
        COUNTS.items()
    )
    assert harder in splits.tests and splits.exact and splits.notes["rows"] == COUNTS
    for table in (splits.train, *splits.tests.values()):
        assert isinstance(table, Table)
        batch = table.batch(range(len(table)))
        assert int(batch.input_ids.max()) < splits.vocab_size
        for row, text in enumerate(texts(table)):
            ids = batch.input_ids[row][batch.valid[row]]
            assert table.alphabet.encode(text) == ids.tolist() and text.endswith(EOS) and EOS not in text[:-1]
            labelled = batch.labels[row] != -100
            start, end = int(table.starts[row]), int(table.lengths[row])
            assert labelled.nonzero().flatten().tolist() == list(range(start, end)) and start > 0
            if not splits.in_place:
                assert int(batch.labels[row, end - 1]) == splits.eos_id
                assert torch.equal(batch.labels[row][labelled], batch.input_ids[row][labelled])
            assert (batch.input_ids[row][~batch.valid[row]] == splits.pad_id).all()


@each_task
@settings(max_examples=10)
@given(seed=st.integers(0, 2**31 - 1))
def test_splits_are_apart_and_rows_different(kind: type[Task], options: dict[str, Any], harder: str, seed: int) -> None:
    options = {**options, "offset": 0} if "offset" in options else options  # so that a text is a problem
    splits = kind(**options, **COUNTS, seed=seed).splits()
    tables = {"train": texts(splits.train), "valid": texts(splits.valid), **{n: texts(t) for n, t in splits.tests.items()}}
    for rows in tables.values():
        assert len(set(rows)) == len(rows)
    measured = set().union(*(rows for name, rows in tables.items() if name not in ("train", "valid")))
    assert not set(tables["train"]) & set(tables["valid"])
    assert not (set(tables["train"]) | set(tables["valid"])) & measured


@each_task
def test_a_seed_is_a_dataset(kind: type[Task], options: dict[str, Any], harder: str) -> None:
    a, b, c = (kind(**options, **COUNTS, seed=seed).splits() for seed in (3, 3, 4))
    more = kind(**options, **{**COUNTS, "train": 50}, seed=3).splits()
    assert texts(a.train) == texts(b.train) != texts(c.train) and texts(a.valid) == texts(b.valid)
    assert texts(a.tests["test"]) == texts(more.tests["test"]) and texts(a.tests[harder]) == texts(more.tests[harder])


def test_groups_are_mixed_and_short_ones_give_what_they_have() -> None:
    table = Chain(lengths=[1, 2, 8], modulus=2, operations="add", train=120, valid=4, test=3).splits().train
    assert isinstance(table, Table)
    lengths = table.required_depth.numpy()
    assert np.bincount(lengths).tolist() == [0, 2, 4, 0, 0, 0, 0, 0, 114]  # half of 4 and of 8 problems, and the rest
    assert len(set(lengths[:60].tolist())) == 3  # not sorted by group


def test_too_many_rows_are_refused_with_the_numbers() -> None:
    with pytest.raises(ValueError, match=r"data \(chain\): 50 rows asked for train; length 1, length 3 can give it 10 of 20 diff"):
        Chain(lengths=[1, 3], modulus=2, operations="add", train=50, valid=1, test=1).splits()
