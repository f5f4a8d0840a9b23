"""What a cache keeps: slots land where they should, rows fall behind where a pass leaves them out, the ledger follows its rows."""

import pytest
import torch

from loopwright.model.keys.cache import Filled, SlotTable, by_row, refusal
from loopwright.model.passes import Expected
from loopwright.model.span import PER_KEY, Span, place_tokens, plain_ledger


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


CORE, CODA = ("core", 1), ("coda", 2)


def after(*passes: tuple[list[int], dict]) -> Filled:
    """Returns the books after passes of one token over rows of these lengths, each at groups with their rows (None: all)."""
    filled = Filled()
    for lengths, groups in passes:
        filled.begin()
        for group, rows in groups.items():
            assert filled.short(group, rows, lengths) is None
            filled.ran(group, rows, lengths)
        filled.advance(lengths)
    return filled


def test_a_group_that_every_pass_runs_misses_nothing():
    filled = after(([0, 0], {CORE: None}), ([1, 1], {CORE: None}))
    assert filled.missing == {CORE: {}}
    assert filled.short(CORE, None, [2, 2]) is None


def test_a_group_never_run_is_short_where_a_row_holds_tokens():
    filled = Filled()
    assert filled.short(CORE, None, [0, 0]) is None
    assert filled.short(CORE, None, [0, 3]) == (1, 0)
    assert filled.short(CORE, [0], [0, 3]) is None


def test_only_the_rows_left_out_fall_behind():
    filled = after(([0, 0], {CORE: None}), ([1, 1], {CORE: [1]}))
    assert filled.short(CORE, None, [2, 2]) == (0, 1)
    assert filled.short(CORE, [1], [2, 2]) is None
    assert filled.short(CORE, [0], [2, 2]) == (0, 1)
    later = after(([0, 0], {CORE: [0]}), ([1, 1], {CODA: []}))
    assert later.missing == {CORE: {0: 1, 1: 0}, CODA: {0: 0, 1: 0}}


def test_a_pass_that_was_not_finished_counts_nothing():
    filled = after(([0], {CORE: None, CODA: None}))
    filled.begin()
    filled.ran(CORE, None, [1])
    filled.ran(CODA, None, [1])  # and here the pass failed
    filled.begin()
    filled.ran(CORE, None, [1])
    filled.advance([1])
    assert filled.short(CORE, None, [2]) is None
    assert filled.short(CODA, None, [2]) == (0, 1)


def test_crop_brings_back_what_holds_as_many():
    filled = after(([0, 0], {CORE: None}), ([1, 1], {CORE: [1]}), ([2, 2], {}))
    assert filled.missing[CORE] == {0: 1, 1: 2}
    filled.crop([2, 2])
    assert filled.missing[CORE] == {0: 1}
    filled.crop([1, 2])
    assert filled.missing[CORE] == {}


def test_rows_are_chosen_with_what_they_miss():
    filled = after(([0, 0], {CORE: None}), ([1, 1], {CORE: [1]}))
    filled.choose_rows([1, 0, 0])
    assert filled.missing[CORE] == {1: 1, 2: 1}


def test_a_refusal_says_what_is_missing_and_what_to_do():
    for stack, at, words in (
        ("core", 3, "step 3 holds 1 of 4 earlier tokens, so they were run less deep; keep one depth"),
        ("coda", 2, "the coda read 1 of 4 earlier tokens at depth 2; run them at depth=2 too"),
        ("coda", Expected(2), "at the expected state of depth 2; run them with select='expected'"),
    ):
        said = refusal(stack, at, "1 of 4 earlier tokens")
        assert said.startswith("cache: ") and words in said and "\n" not in said and said.endswith("or use policy 'last'")


def test_one_per_row_is_grouped_and_one_for_all_is_not():
    assert by_row(2, 3) == [(2, None)]
    assert by_row(Expected(2), 3) == [(Expected(2), None)]
    assert by_row(torch.tensor([1, 0, 1]), 3) == [(1, [0, 2]), (0, [1])]
    with pytest.raises(ValueError, match="one per row"):
        by_row(torch.tensor([1, 0]), 3)


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


def test_rows_of_a_ledger_are_chosen():
    ledger = plain_ledger([1, 3], 4, None, CPU)
    assert ledger.map_rows(torch.tensor([1, 1])).lengths.tolist() == [3, 3]
