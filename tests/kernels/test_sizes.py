"""Blocks cover all keys, and fit what they are for."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from loopwright.kernels import sizes


@given(st.integers(1, 200_000), st.integers(1, 4096))
def test_every_key_has_one_program(capacity: int, programs: int):
    for size in (sizes.attend_few(capacity), *(sizes.attend_rows(capacity, programs, bytes_each=n) for n in (2, 4))):
        assert size.chunk * (size.splits - 1) < capacity <= size.chunk * size.splits
        assert size.chunk % size.block == 0 and size.splits <= sizes.MOST_SPLITS


@given(st.integers(1, 400), st.integers(1, 100))
def test_a_pass_has_one_token_in_each_row_or_few(rows: int, groups: int):
    length = sizes.longest_pass(rows, groups)
    assert length == 1 or (rows * length <= 128 and groups * length <= 64)
    assert sizes.longest_pass(1, 1) == 32 and sizes.longest_pass(8, 4) == 16


@given(st.sampled_from(list(sizes.ONE_TOKEN)), st.integers(4, 16))
def test_a_program_holds_no_more_of_a_matrix_than_fits(name: str, power: int):
    rows = sizes.one_token(name, 2**power).rows
    assert rows >= 1 and (rows == 1 or rows * 2**power <= sizes.LARGEST_TILE)


@pytest.mark.parametrize(("room", "stages"), [(232448, 4), (166912, 4), (101376, 3)])
def test_stages_fit_the_card(monkeypatch, room: int, stages: int):
    properties = SimpleNamespace(shared_memory_per_block_optin=room)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    tiles = sizes.many_tokens(32, SimpleNamespace(is_cuda=True, device=0, element_size=lambda: 2))
    assert tiles["gate_up"].stages == stages
    for name, tile in tiles.items():
        assert (tile.stages - 1) * (tile.columns * (1 + (name == "gate_up")) + 32) * tile.inner * 2 <= room
    assert sizes.many_tokens(32, torch.zeros(1)) is sizes.MANY_TOKENS[4]
