"""Cells are given out once, taken back whole, and never read beyond what their owner wrote."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import loopwright as lw
from loopwright.model import room
from loopwright.model.keys.pool import Cells, KeyPool, Row


@settings(max_examples=60)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 9)), max_size=60))
def test_cells_are_owned_once_and_merge_again(moves: list[tuple[bool, int]]) -> None:
    cells, held = Cells(40), []
    for taking, number in moves:
        if taking:
            start = cells.take(number)
            if start is not None:
                held.append((start, number))
        elif held:
            cells.give(*held.pop(number % len(held)))
        owned = [cell for start, count in held for cell in range(start, start + count)]
        free = [cell for start, count in cells.free for cell in range(start, start + count)]
        assert sorted(owned + free) == list(range(40))
        assert all(sum(a) < b[0] for a, b in zip(cells.free, cells.free[1:], strict=False))  # in order, no two touch
    for start, count in held:
        cells.give(start, count)
    assert cells.free == [(0, 40)]


def pool_of(name: str = "huginn-tiny", tokens: int = 20, **changes: object) -> KeyPool:
    return KeyPool(lw.preset(name, **changes), tokens, torch.zeros(1))


def test_depth_costs_what_it_needs() -> None:
    pool = pool_of(tokens=20)  # depth 4: 80 core cells
    rows = [pool.admit(10, depth, (depth,)) for depth in (6, 2)]
    assert all(isinstance(row, Row) for row in rows)
    assert pool.cells["core"].free == [] and pool.cells["prelude"].free == []
    assert pool.admit(1, 1, (1,)) is None
    assert pool.cells["core"].free == []  # what could not be had whole was given back
    for row in rows:
        pool.free(row)  # type: ignore[arg-type]
    assert pool.cells["core"].free == [(0, 80)] and pool.cells["coda"].free == [(0, 20)]


def test_what_can_never_fit_is_refused_with_the_numbers() -> None:
    pool = pool_of(tokens=20)
    pool.check_fits(20, 4)
    with pytest.raises(ValueError, match="request: 17 tokens at depth 5 take 85 core cells and the pool has 80"):
        pool.check_fits(17, 5)
    with pytest.raises(ValueError, match="request: 21 tokens at depth 1 take 21 prelude cells and the pool has 20"):
        pool.check_fits(21, 1)
    with pytest.raises(ValueError, match="8 tokens at depth 3 with 3 readings take 24 coda cells and the pool has 20"):
        pool.check_fits(8, 3, 3)


def test_a_pool_larger_than_the_memory_is_refused() -> None:
    with pytest.raises(ValueError, match="pool: 10,000,000,000,000 tokens"):
        pool_of(tokens=10**13)
    with pytest.raises(ValueError, match="tokens must be at least 1"):
        pool_of(tokens=0)


def test_states_larger_than_the_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = pool_of()
    monkeypatch.setattr(room, "SMALL", 0)
    monkeypatch.setattr(room, "free_bytes", lambda device: 2**10)
    with pytest.raises(ValueError, match=r"states that exits and drafts keep take .* smaller max_tokens"):
        _ = pool.states


def test_a_group_counts_its_tokens() -> None:
    row = pool_of().admit(6, 3, (3,))
    assert row is not None
    row.place("core", 0, 0, 4)
    with pytest.raises(ValueError, match="cache: step 1 holds 0 of 4 earlier tokens"):
        row.place("core", 1, 4, 1)
    with pytest.raises(ValueError, match="the coda read 0 of 2 earlier tokens at depth 3"):
        row.place("coda", 0, 2, 1)
    with pytest.raises(ValueError, match="7 tokens of core group 0 do not fit; the row has room for 6"):
        row.place("core", 0, 4, 3)
    with pytest.raises(ValueError, match="core group 3 do not fit"):
        row.place("core", 3, 0, 1)
    row.crop(2)
    assert row.held("core", 0) == 2 and row.held("core", 1) == 0


def test_stacks_without_layers_take_no_cells() -> None:
    pool = pool_of("ouro-1.4b-tiny", tokens=5)
    assert pool.need(5, 4, 4) == {"prelude": 0, "core": 20, "coda": 0}
    assert pool.storage_bytes == sum(2 * x.numel() * 4 for x in pool.keys.values())
