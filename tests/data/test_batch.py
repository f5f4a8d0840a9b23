"""Batches: which tokens are real, how many are predicted, moving whole."""

from __future__ import annotations

import warnings
from dataclasses import fields

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from loopwright.data.batch import IGNORED, Batch, Order, TokenRows, splits
from loopwright.data.tasks.task import EOS, PAD, Alphabet


def test_real_tokens_by_mask_by_length_or_all() -> None:
    ids = torch.zeros(2, 3, dtype=torch.long)
    wanted = torch.tensor([[True, True, False], [True, True, True]])
    assert Batch(ids, ids).valid.all()
    assert torch.equal(Batch(ids, ids, attention_mask=wanted.long()).valid, wanted)
    assert torch.equal(Batch(ids, ids, lengths=torch.tensor([2, 3])).valid, wanted)


def test_the_first_token_is_no_target() -> None:
    labels = torch.tensor([[5, 6, -100], [-100, -100, 7]])
    assert Batch(labels, labels).targets == 2 and len(Batch(labels, labels)) == 2


def test_every_tensor_moves() -> None:
    x = torch.ones(1, 2, dtype=torch.long)
    names = [f.name for f in fields(Batch)]
    moved = Batch(**dict.fromkeys(names, x)).to("meta")
    assert {getattr(moved, name).device.type for name in names} == {"meta"}
    assert Batch(x, x).to("meta").rows is None


def test_what_is_asked_is_found_once() -> None:
    labels = torch.tensor([[5, 6, -100, 8], [-100, -100, 7, -100]])
    batch = Batch(labels, labels).ready()
    assert batch.asked is not None and batch.asked.tolist() == [1, 3, 6, 0]  # 3 targets, filled up to a multiple of 2 rows
    assert labels[0, 0] == 5 and len(batch.asked) - batch.targets == 1


def test_documents_of_nearly_all_tokens_have_one_shape_where_that_is_wanted() -> None:
    """Each first token of a document is not asked for: a number that differs from batch to batch."""
    draws, shapes = torch.Generator().manual_seed(0), set()
    for _ in range(8):
        begins = torch.rand(4, 32, generator=draws) < 0.1
        labels = torch.where(begins, -100, 7)
        batch = Batch(labels.abs(), labels, segment_ids=begins.long().cumsum(1))
        fine, coarse = batch.ready().asked, batch.ready(coarse=True).asked
        assert fine is not None and coarse is not None
        shapes.add(len(coarse))
        assert coarse[coarse > 0].tolist() == fine[fine > 0].tolist() and len(fine) % 4 == 0
    assert shapes == {4 * 32}
    few = Batch(labels.abs(), torch.where(torch.arange(32) < 5, labels, -100), segment_ids=begins.long().cumsum(1))
    assert len(few.ready(coarse=True).asked) == 16 and len(Batch(labels.abs(), labels).ready(coarse=True).asked) < 4 * 32


def test_documents_are_checked_before_they_go_to_a_device() -> None:
    ids = torch.ones(1, 3, dtype=torch.long)
    with pytest.raises(ValueError, match="segment_ids: negative entries"):
        Batch(ids, ids, segment_ids=torch.tensor([[0, 0, -1]])).ready()


def test_padding_is_told_by_a_mask_or_by_lengths() -> None:
    x = torch.ones(1, 2, dtype=torch.long)
    assert not Batch(x, x).padded and Batch(x, x, attention_mask=x).padded and Batch(x, x, lengths=torch.tensor([2])).padded


# Data of the user's own


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


# R6: each sample once an epoch, whatever the batch and the number of processes; resumed = uninterrupted


lengths, seeds = st.integers(1, 60), st.integers(0, 2**40)


@given(lengths, seeds, st.integers(1, 4), st.integers(1, 12), st.booleans())
def test_each_sample_once_an_epoch_over_all_processes(length: int, seed: int, world: int, own: int, shuffled: bool) -> None:
    count, epochs = world * own, 3
    orders = [Order(length, seed, shuffled) for _ in range(world)]  # one in each process
    taken: list[tuple[int, int]] = []
    for start in range(0, epochs * length, count):
        for rank, order in enumerate(orders):
            indices, rows = order.share(start, count, rank, world)
            taken += zip(rows.tolist(), indices.tolist(), strict=True)
    assert [row for row, _ in taken] == list(range(len(taken)))  # every place once, in order of process
    for epoch in range(epochs):
        samples = [index for row, index in taken if row // length == epoch]
        assert sorted(samples) == list(range(length))


@given(lengths, seeds, st.integers(0, 200), st.lists(st.integers(0, 30), max_size=6))
def test_resumed_is_uninterrupted(length: int, seed: int, start: int, counts: list[int]) -> None:
    whole = Order(length, seed).indices(0, start + sum(counts))
    place = start
    for count in counts:  # a fresh order for each: nothing is remembered
        assert torch.equal(Order(length, seed).indices(place, count), whole[place : place + count])
        place += count


def test_epochs_and_seeds_differ_and_the_order_is_known() -> None:
    first, second = Order(50, 7).indices(0, 100).split(50)
    assert not torch.equal(first, second) and not torch.equal(first, Order(50, 8).indices(0, 50))
    assert Order(8, 3).indices(0, 16).tolist() == [0, 4, 7, 1, 5, 6, 3, 2, 0, 6, 2, 1, 3, 7, 4, 5]  # on every platform, for good
    assert Order(3, shuffled=False).indices(1, 5).tolist() == [1, 2, 0, 1, 2]


def test_the_permutation_of_an_epoch_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    draw = torch.from_numpy
    monkeypatch.setattr(torch, "from_numpy", lambda x: made.append(1) or draw(x))
    order = Order(10, 0)
    for start in range(0, 30, 4):
        order.indices(start, 4)
    assert len(made) == 4 and len(order._held) == 2  # places 0 to 31 lie in four epochs


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Order(0), r"samples must be a whole number >= 1 \(got 0\)"),
        (lambda: Order(3, -1), r"seed must be a whole number >= 0 \(got -1\)"),
        (lambda: Order(3).indices(-1, 2), "2 samples from place -1"),
        (lambda: Order(3).share(0, 5, 0, 2), "a batch of 5 samples over 2 processes; allowed: a multiple of 2"),
        (lambda: Order(3).share(0, 4, 2, 2), "process 2 of 2; allowed: 0 to 1"),
    ],
)
def test_refusals(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_repeated_batches_come_in_a_row_and_can_be_resumed_anywhere() -> None:
    plain, repeated = Order(10, seed=3), Order(10, seed=3, repeat=3, batch=4)
    batches = [plain.indices(4 * number, 4).tolist() for number in range(5)]
    assert [repeated.indices(4 * number, 4).tolist() for number in range(15)] == [b for batch in batches for b in [batch] * 3]
    whole = repeated.indices(0, 60)
    assert all(repeated.indices(start, 7).tolist() == whole[start : start + 7].tolist() for start in range(50))
    assert Order(10, shuffled=False, repeat=2, batch=3).indices(0, 12).tolist() == [0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5]
    with pytest.raises(ValueError, match="repeated 0 times"):
        Order(10, repeat=0)
