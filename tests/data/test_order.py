"""R6: each sample once an epoch, whatever the batch and the number of processes; resumed = uninterrupted."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from loopwright.data.batch import Order

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
