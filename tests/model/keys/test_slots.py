"""SlotTable: writes land where they should for one slot or one per row, and growth loses nothing."""

import pytest
import torch

from loopwright.model.keys.cache import SlotTable
from loopwright.model.span import Span, place_tokens


def plain_span(rows: int, length: int, offset: int) -> Span:
    return Span(rows, length, offset, torch.arange(offset, offset + length)[None])


def test_plain_write_and_growth():
    table = SlotTable((2, 3, 4, 5), torch.empty(0))
    first, second = torch.randn(3, 4, 5), torch.randn(3, 2, 5)
    assert torch.equal(table.write(1, first, plain_span(3, 4, 0)), first)
    table.grow(3, 3, 9)
    assert table.data.shape == (3, 3, 9, 5)
    assert torch.equal(table.write(1, second, plain_span(3, 2, 4)), torch.cat([first, second], 1))
    assert table.data[0].abs().sum() == table.data[2].abs().sum() == 0
    assert table.bytes == 4 * 3 * 3 * 9 * 5


def test_one_slot_per_row_equals_one_at_a_time():
    table = SlotTable((4, 3, 6, 2), torch.empty(0))
    table.data.normal_()
    before = table.data.clone()
    new, slots = torch.randn(3, 2, 2), torch.tensor([2, 0, 2])
    got = table.write(slots, new, plain_span(3, 2, 3))
    for row, slot in enumerate(slots.tolist()):
        before[slot, row, 3:5] = new[row]
        assert torch.equal(got[row], before[slot, row, :5])
    assert torch.equal(table.data, before)
    assert torch.equal(table.at(slots, torch.tensor([3, 4, 0])), before[slots, torch.arange(3), torch.tensor([3, 4, 0])])


def test_rows_are_chosen():
    table = SlotTable((2, 2, 3, 1), torch.empty(0))
    was = table.data.normal_().clone()
    table.choose_rows(torch.tensor([1, 1]))
    assert torch.equal(table.data, was[:, [1, 1]])


def test_gradients_pass_plainly_and_are_refused_elsewhere():
    table = SlotTable((1, 2, 4, 3), torch.empty(0))
    table.write(0, torch.ones(2, 1, 3), plain_span(2, 1, 0))
    new = torch.randn(2, 2, 3, requires_grad=True)
    table.write(0, new, plain_span(2, 2, 1)).sum().backward()
    assert torch.equal(new.grad, torch.ones_like(new))
    padded = place_tokens(2, 2, torch.device("cpu"), attention_mask=torch.tensor([[0, 1], [1, 1]]))
    with pytest.raises(ValueError, match=r"under torch.no_grad\(\) only"):
        table.write(0, new, padded)
