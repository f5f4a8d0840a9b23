"""What every algorithmic task owes: rows that read back, splits apart, tests by hardness, the same for a seed."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import loopwright as lw
from loopwright.confined import token_ids
from loopwright.data.batch import IGNORED
from loopwright.data.build import build_data
from loopwright.data.tasks.addition import Addition, Columns
from loopwright.data.tasks.chain import Chain
from loopwright.data.tasks.hops import Hops
from loopwright.data.tasks.task import (
    EOS,
    PAD,
    Alphabet,
    Matrix,
    Table,
    Task,
    TaskRows,
    below,
    disjoint_splits,
    shares,
    shuffled,
    stack,
    stream,
)

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


# Draws: the same for good, different rows, apart by key, refused where there are not enough


def letters(high: int, width: int, bits: np.random.PCG64, count: int) -> Matrix:
    return below(bits, high, count, width)


def test_draws_are_known_for_good() -> None:
    assert below(stream(1, 2), 100, 2, 3).tolist() == [[82, 71, 73], [99, 10, 22]]
    assert shuffled(stream(3), 6).tolist() == [0, 4, 1, 5, 3, 2]
    assert not np.array_equal(below(stream(1, 2), 100, 9), below(stream(1, 3), 100, 9))


@settings(max_examples=40)
@given(st.integers(0, 9), st.integers(2, 5), st.integers(1, 4), st.lists(st.integers(0, 40), min_size=3, max_size=3))
def test_rows_are_different_and_keys_apart(seed: int, high: int, width: int, sizes: list[int]) -> None:
    counts = dict(zip(("test", "valid", "train"), sizes, strict=True))
    key = lambda rows: np.sort(rows, axis=1)  # noqa: E731  (the order of a row's letters does not matter)
    try:
        found = disjoint_splits("here", partial(letters, high, width), counts, (seed,), key=key)
    except ValueError:
        assert high**width < 2 * 40 * width**width  # there are not enough
        return
    keys = {name: {tuple(row) for row in key(rows).tolist()} for name, rows in found.items()}
    for name, rows in found.items():
        assert len(rows) == counts[name] == len({tuple(row) for row in rows.tolist()})
        assert all(not keys[name] & keys[other] for other in keys if other != name)


def test_what_is_measured_does_not_depend_on_what_is_trained() -> None:
    few, many = (disjoint_splits("here", partial(letters, 9, 4), {"test": 30, "train": count}, (5,)) for count in (10, 500))
    assert np.array_equal(few["test"], many["test"])


@given(st.integers(0, 30))
def test_the_last_row_is_found(seed: int) -> None:
    found = disjoint_splits("here", partial(letters, 9, 2), {"test": 80, "train": 1}, (seed,))  # 81 rows in all
    assert len(np.unique(np.concatenate(list(found.values())), axis=0)) == 81


def test_refusals_say_how_many_there_are() -> None:
    with pytest.raises(ValueError, match=r"^here: 7 rows asked for train; only 4 different ones were found beside test$"):
        disjoint_splits("here", partial(letters, 3, 2), {"test": 5, "train": 7}, (0,))
    with pytest.raises(ValueError, match=r"^here: 7 rows asked for train; there are 4 different ones beside test$"):
        disjoint_splits(
            "here",
            partial(letters, 3, 2),
            {"test": 5, "train": 7},
            (0,),
            capacity=lambda held: 9 if held is None else 9 - len(held),
        )


@given(st.integers(0, 500), st.lists(st.integers(0, 200), min_size=1, max_size=6))
def test_shares_are_even_as_far_as_they_go(total: int, caps: list[int]) -> None:
    given_ = shares(total, caps)
    assert sum(given_) == min(total, sum(caps))
    assert all(share <= cap for share, cap in zip(given_, caps, strict=True))
    free = [share for share, cap in zip(given_, caps, strict=True) if share < cap]
    assert not free or max(given_) - min(free) <= 1  # nobody gives more than one that could give more still


# Tables: batches are gathers, padding is told or masked and changes nothing, alphabets go both ways


LETTERS = Alphabet(["a", "b", "c", PAD, EOS])


def small(padding: str = "masked") -> Table:
    ids = np.array([LETTERS.encode(f"abc{EOS}"), LETTERS.encode(f"ac{EOS}{PAD}")])
    return TaskRows(ids, np.array([2, 1]), np.array([4, 3]), np.array([1, 2])).table(LETTERS, padding)


def test_a_batch_gathers_rows_and_labels_answers() -> None:
    batch = small().batch([1, 0, 1])
    assert batch.input_ids.tolist() == [[0, 2, 4, 3], [0, 1, 2, 4], [0, 2, 4, 3]] and batch.input_ids.dtype == torch.long
    assert batch.labels.tolist() == [[-100, 2, 4, -100], [-100, -100, 2, 4], [-100, 2, 4, -100]]
    assert batch.attention_mask is not None and batch.attention_mask.tolist() == [[1, 1, 1, 0], [1, 1, 1, 1], [1, 1, 1, 0]]
    assert batch.targets == 6
    assert torch.equal(small().batch(torch.tensor([1, 0, 1])).labels, batch.labels)


def test_plain_padding_has_no_mask_but_the_same_real_tokens() -> None:
    masked, plain = (small(padding).batch([0, 1]) for padding in ("masked", "plain"))
    assert plain.attention_mask is None
    assert torch.equal(plain.valid, masked.valid) and not plain.valid.all()
    assert torch.equal(plain.to("cpu").valid, masked.valid)


def test_without_padding_there_is_no_mask() -> None:
    rows = TaskRows(np.array([[0, 1, 4]]), np.array([1]), np.array([3]), np.array([1]))
    batch = rows.table(LETTERS, "masked").batch([0])
    assert batch.attention_mask is None and batch.lengths is None and batch.valid.all()


@pytest.mark.parametrize("name", ["universal-tiny", "huginn-tiny", "stars-addition-tiny"])
def test_plain_padding_changes_nothing_on_real_tokens(name: str) -> None:
    torch.manual_seed(0)
    model = lw.build(name, vocab_size=15, pad_token_id=13, eos_token_id=14).eval()
    table = Addition(digits=2, train=40, valid=1, test=1).splits().train
    masked, plain = (replace(table, padding=padding).batch(range(16)) for padding in ("masked", "plain"))
    assert masked.attention_mask is not None and not masked.attention_mask.all()
    with torch.no_grad():
        a = model(masked.input_ids, attention_mask=masked.attention_mask, labels=masked.labels)
        b = model(plain.input_ids, attention_mask=plain.attention_mask, labels=plain.labels)
    assert torch.allclose(a.logits[masked.valid], b.logits[plain.valid], atol=1e-5)
    assert torch.allclose(a.loss, b.loss, atol=1e-5)


def test_text_both_ways() -> None:
    words = Alphabet(["+1", "0", PAD, EOS], separator=" ")
    assert words.encode(f"0 +1 {EOS}") == [1, 0, 3] and words.decode([1, 0, 3, 2, 2]) == f"0 +1 {EOS}"
    assert small().show(1) == f"ac{EOS}"
    with pytest.raises(ValueError, match=r"'d' is no symbol of this task; .*allowed: a, b, c"):
        LETTERS.encode("ad")


@pytest.mark.parametrize(
    ("symbols", "words"),
    [(["a", EOS], f"without {PAD!r}"), (["a", PAD], f"without {EOS!r}"), (["a", "a", PAD, EOS], "4, of which 3 differ")],
)
def test_symbols_that_are_no_alphabet_are_refused(symbols: list[str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Alphabet(symbols)


def test_stack_mixes_rows_and_keeps_what_belongs_together() -> None:
    rows = [TaskRows(np.array([[i, 4]]), np.array([i]), np.array([i + 1]), np.array([i])) for i in range(3)]
    mixed = stack(rows, np.array([2, 0, 1]))
    assert mixed.ids[:, 0].tolist() == mixed.starts.tolist() == mixed.required_depth.tolist() == [2, 0, 1]
    assert mixed.lengths.tolist() == [3, 1, 2]


def test_answers_in_place_are_labels_beside_the_ids() -> None:
    ids, answers = np.array([[0, 1, 4], [1, 4, 3]]), np.array([[3, 2, 0], [3, 1, 3]])
    rows = TaskRows(ids, np.array([1, 1]), np.array([3, 2]), np.array([1, 1]), answers)
    table = stack([rows, rows], np.array([1, 2, 0, 3])).table(LETTERS, "masked")
    batch = table.batch([0, 1])
    assert batch.input_ids.tolist() == [[1, 4, 3], [0, 1, 4]] and batch.labels.tolist() == [[-100, 1, -100], [-100, 2, 0]]
    moved = table.to("meta").answers
    assert moved is not None and moved.device.type == "meta"


def test_a_table_moves_whole() -> None:
    moved = small().to("meta")
    assert {x.device.type for x in (moved.ids, moved.starts, moved.lengths, moved.required_depth)} == {"meta"}
    assert IGNORED == -100


@pytest.mark.parametrize("kind", ["addition", "hops", "chain", "columns"])
def test_a_task_has_a_tokenizer_with_its_ids(tmp_path: Path, kind: str) -> None:
    """The text of every row has the row's ids, saved and read again too; what is no symbol is refused, not taken for another."""
    splits = build_data({"kind": kind, "train": 50, "valid": 5, "test": 5})
    table = splits.train
    assert isinstance(table, Table)
    splits.tokenizer.save_pretrained(tmp_path)
    for words in (splits.tokenizer, lw.tokenizer(tmp_path)):
        for row in range(50):
            ids = table.ids[row, : table.lengths[row]].tolist()
            assert words(table.show(row)).input_ids == ids and words.decode(ids) == table.show(row)
        assert (words.eos_token_id, words.pad_token_id, len(words)) == (splits.eos_id, splits.pad_id, splits.vocab_size)
        with pytest.raises(ValueError, match=r"prompt: '1 \?' has no tokens in this tokenizer .*; allowed: '"):
            token_ids(words, "1 ?")


def test_a_tokenizer_says_how_answers_are_written(tmp_path: Path) -> None:
    for options, said in (({}, "the sum is written from its last"), ({"reverse": "all"}, "every number is written from its last")):
        splits = Addition(train=20, valid=5, test=5, digits=2, **options).splits()
        splits.tokenizer.save_pretrained(tmp_path)
        assert lw.tokenizer(tmp_path).init_kwargs["reading"].startswith(said)
    assert "reading" not in Alphabet(["a", PAD, EOS]).tokenizer().init_kwargs
