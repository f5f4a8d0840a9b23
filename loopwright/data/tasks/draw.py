"""Seeded draws for algorithmic tasks: different rows, split so that nothing measured was trained on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

Matrix = np.ndarray  # small whole numbers below 256, one row per sample
QUIET_ROUNDS = 40  # rounds of draws in which nothing new came, before a task is called exhausted


def stream(*path: int) -> np.random.PCG64:
    """Returns the random bits that belong to a path of numbers: the same on every platform and for every numpy."""
    return np.random.PCG64(np.random.SeedSequence(path))


def below(bits: np.random.PCG64, high: int, *shape: int) -> Matrix:
    """Returns whole numbers from 0 to high − 1. Raw bits, whose stream numpy never changes; the bias is below 1e-16."""
    return (bits.random_raw(shape) % np.uint64(high)).astype(np.int64)


def shuffled(bits: np.random.PCG64, length: int) -> np.ndarray:
    """Returns a permutation of 0 … length − 1."""
    return np.argsort(bits.random_raw(length), kind="stable")


def apart(
    where: str,
    draw: Callable[[np.random.PCG64, int], Matrix],
    counts: Mapping[str, int],
    path: Sequence[int],
    *,
    key: Callable[[Matrix], Matrix] = lambda rows: rows,
    room: Callable[[Matrix | None], int | None] = lambda held: None,
) -> dict[str, Matrix]:
    """Returns `counts[name]` different rows for each name, with no `key` in two of them.

    Names draw from streams of their own, in their order: what is measured comes first, so that it is the same whatever the
    number of rows trained on. `room` says how many rows there are beside those of `held` keys, where it is known.
    """
    result: dict[str, Matrix] = {}
    held: Matrix | None = None
    for place, (name, count) in enumerate(counts.items()):
        beside = f" beside {' and '.join(result)}" if result else ""
        left = room(held)
        if left is not None and count > left:
            raise ValueError(f"{where}: {count:,} rows asked for {name}; there are {left:,} different ones{beside}")
        rows = _distinct(draw, stream(*path, place), count, held, key)
        if len(rows) < count:
            raise ValueError(f"{where}: {count:,} rows asked for {name}; only {len(rows):,} different ones were found{beside}")
        result[name] = rows
        if count:
            held = key(rows) if held is None else np.concatenate([held, key(rows)])
    return result


def _distinct(
    draw: Callable[[np.random.PCG64, int], Matrix], bits: np.random.PCG64, count: int, held: Matrix | None, key: Callable
) -> Matrix:
    values, quiet = draw(bits, 0), 0
    size = max(count + (0 if held is None else len(held)), 256)  # where few rows are left, a round still comes by all of them
    while len(values) < count and quiet < QUIET_ROUNDS:
        rows = draw(bits, size)
        if held is not None:
            rows = rows[~np.isin(_words(key(rows)), _words(held))]
        together = np.concatenate([values, rows])
        first = np.sort(np.unique(_words(together), return_index=True)[1])
        quiet = quiet + 1 if len(first) == len(values) else 0
        values = together[first]
    return values[:count]


def _words(rows: Matrix) -> np.ndarray:
    """One comparable value per row: equal where the rows are (all are of one width, so cut-off zeros tell nothing)."""
    return np.ascontiguousarray(rows, dtype=np.uint8).view(f"S{max(rows.shape[1], 1)}")[:, 0]


def shares(total: int, caps: Sequence[int]) -> list[int]:
    """Returns how `total` rows are divided over groups that can give `caps` at most: evenly, the large ones standing in for
    the small. Where all of them are too small the sum is less than `total`."""
    left, given = total, [0] * len(caps)
    for done, group in enumerate(sorted(range(len(caps)), key=caps.__getitem__)):
        given[group] = min(caps[group], left // (len(caps) - done))
        left -= given[group]
    return given
