"""Filled: rows fall behind where a pass leaves them out, and come back by crop alone."""

import pytest
import torch

from loopwright.model.keys.cache import Filled, by_row, refusal
from loopwright.model.passes import Expected

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
