"""Draws: the same for good, different rows, apart by key, refused where there are not enough."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loopwright.data.tasks.task import Matrix, below, disjoint_splits, shares, shuffled, stream


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
