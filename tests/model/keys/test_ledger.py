"""Ledger: made from a plain cache, widened, extended, cropped, rows chosen."""

import torch

from loopwright.model.span import PER_KEY, place_tokens, plain_ledger

CPU = torch.device("cpu")


def test_a_plain_ledger_counts_from_where_the_rows_go_on():
    ledger = plain_ledger([2, 3], 4, None, CPU)
    assert ledger.valid.tolist() == [[True, True, False, False], [True, True, True, False]]
    assert ledger.positions[1].tolist() == [0, 1, 2, 3]
    segment, first, position = ledger.last()
    assert (segment.tolist(), first.tolist(), position.tolist()) == ([0, 0], [0, 0], [1, 2])
    moved = plain_ledger([2, 2], 4, torch.tensor([[2, 6], [5, 8]]), CPU)
    assert moved.last()[2].tolist() == [6, 8]
    assert plain_ledger([0, 1], 4, None, CPU).last()[2].tolist() == [-1, 0]


def test_a_pass_is_added_and_cropped():
    ledger = plain_ledger([0, 0], 2, None, CPU)
    assert ledger.widened(2) is ledger
    ledger = ledger.widened(5)
    assert all(getattr(ledger, name).shape == (2, 5) for name in PER_KEY)
    ledger.extend(place_tokens(2, 3, CPU, attention_mask=torch.tensor([[0, 1, 1], [1, 1, 1]])))
    assert ledger.lengths.tolist() == [3, 3]
    assert ledger.valid.int().tolist() == [[0, 1, 1, 0, 0], [1, 1, 1, 0, 0]]
    assert ledger.last()[2].tolist() == [1, 2]
    ledger.crop([3, 1])
    assert ledger.valid.int().tolist() == [[0, 1, 1, 0, 0], [1, 0, 0, 0, 0]]


def test_rows_are_chosen():
    ledger = plain_ledger([1, 3], 4, None, CPU)
    assert ledger.map_rows(torch.tensor([1, 1])).lengths.tolist() == [3, 3]
