"""How large the blocks of the fused kernels are, by the rows of a pass and the bytes of a number. Measured on an H200."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

FEW_KEYS = 64  # that one program of `attend_one` reads at a time
MOST_SPLITS = 32  # of one head, whose parts the last program adds up
BUSY = 512  # programs that keep every processor of a large card at work
LONGEST = 32  # new tokens of a row in a fused pass; longer ones were not measured
MOST_IN_PASS = 128  # new tokens of all rows, where a row has several: there it takes 0.7 of the plain time, with more of them more
UNSEEN = -1e30  # the score of a key that a query does not see
MOST_QUERIES = 64  # of a program of `attend_many`: more would not fit its registers


@dataclass(frozen=True)
class Gemv:
    """One token: rows of the matrix a program has, and its warps."""

    rows: int
    warps: int


@dataclass(frozen=True)
class Gemm:
    """Many tokens: rows of the matrix a program has, columns it reads at a time, programs that share a row, warps, stages."""

    columns: int
    inner: int
    splits: int
    warps: int
    stages: int


@dataclass(frozen=True)
class Attend:
    """Keys of a program, keys that it reads at a time, programs of a head, warps and stages."""

    chunk: int
    block: int
    splits: int
    warps: int
    stages: int


LARGEST_TILE = 2**14  # numbers of a matrix that one program holds at a time: more would not fit its registers
INNER = 2048  # columns that `gemv` reads at a time
ONE_TOKEN = {"qkv": Gemv(8, 8), "o": Gemv(4, 4), "gate_up": Gemv(4, 4), "down": Gemv(2, 4)}
MANY_TOKENS = {
    2: {
        "qkv": Gemm(64, 128, 2, 4, 4), "o": Gemm(64, 64, 4, 4, 6), "gate_up": Gemm(64, 128, 1, 4, 4),
        "down": Gemm(64, 128, 4, 4, 5),
    },
    4: dict.fromkeys(("qkv", "o", "gate_up", "down"), Gemm(32, 32, 1, 4, 2)),
}  # fmt: skip
AHEAD = 256  # columns that a program asks for before it waits for the kernel before it; a power of two, or 0
MOST_TOKENS = 32  # of a program of `gemm_rows`; others take the weights from the cache of the card


def one_token(name: str, padded: int) -> Gemv:
    """Returns the block of a product of one token whose rows have `padded` columns at a time."""
    size = ONE_TOKEN[name]
    return Gemv(max(1, min(size.rows, LARGEST_TILE // padded)), size.warps)


def many_tokens(tokens: int, weight: Tensor) -> dict[str, Gemm]:
    """Returns the blocks of the products of many tokens, with as many stages as the card has shared memory for."""
    tiles, size = MANY_TOKENS[weight.element_size()], weight.element_size()
    if not weight.is_cuda:
        return tiles
    room = torch.cuda.get_device_properties(weight.device).shared_memory_per_block_optin  # type: ignore[attr-defined]
    stage = {name: (tile.columns * (1 + (name == "gate_up")) + tokens) * tile.inner * size for name, tile in tiles.items()}
    return {name: replace(tile, stages=max(1, min(tile.stages, 1 + room // stage[name]))) for name, tile in tiles.items()}


def longest_pass(rows: int, groups: int) -> int:
    """Returns how many new tokens each row of a fused pass may have, where so many queries of a token share a key head."""
    return max(1, min(LONGEST, MOST_IN_PASS // rows, MOST_QUERIES // groups))


def attend_few(capacity: int) -> Attend:
    """Returns the blocks of `attend_one`."""
    chunk = -(-max(FEW_KEYS, -(-capacity // MOST_SPLITS)) // FEW_KEYS) * FEW_KEYS
    return Attend(chunk, FEW_KEYS, -(-capacity // chunk), 4, 2)


def attend_rows(capacity: int, programs: int, *, bytes_each: int = 2) -> Attend:
    """Returns the blocks of `attend_many` for so many rows times key heads: few of them share the keys of a head."""
    block = 128 // bytes_each
    splits = min(-(-BUSY // programs), -(-capacity // (2 * block)), MOST_SPLITS) if programs < BUSY else 1
    chunk = -(-capacity // (splits * block)) * block
    return Attend(chunk, block, -(-capacity // chunk), 4, 2)
