"""Attention by blocks beside attention under the dense mask."""

from __future__ import annotations

import pytest
import torch

from loopwright.model.layers import attend
from loopwright.model.span import place_tokens


def documents(rows: int, length: int, seed: int = 0) -> torch.Tensor:
    return (torch.rand(rows, length, generator=torch.Generator().manual_seed(seed)) < 1 / 20).long().cumsum(1)


def test_a_block_mask_sees_what_the_dense_mask_sees() -> None:
    from loopwright.model.block_mask import block_mask

    span = place_tokens(3, 150, torch.device("cpu"), segment_ids=documents(3, 150))
    dense, _ = span.mask(None)
    made = block_mask(span)
    assert dense is not None
    b, q, k = torch.meshgrid(torch.arange(3), torch.arange(150), torch.arange(150), indexing="ij")
    assert torch.equal(made.mask_mod(b, torch.zeros_like(b), q, k), dense[:, 0])


def test_padding_is_not_for_blocks() -> None:
    mask = torch.ones(2, 8, dtype=torch.long)
    mask[0, :3] = 0
    assert place_tokens(2, 8, torch.device("cpu"), attention_mask=mask).padded
    assert not place_tokens(2, 8, torch.device("cpu"), segment_ids=documents(2, 8)).padded


@pytest.mark.gpu
@pytest.mark.parametrize("heads", [4, 2])
def test_attention_is_that_of_the_dense_mask(heads: int) -> None:
    from loopwright.model.block_mask import attend_blocks, block_mask

    span = place_tokens(3, 300, torch.device("cuda"), segment_ids=documents(3, 300).cuda())
    dense, _ = span.mask(None)
    assert dense is not None
    draws = torch.Generator("cuda").manual_seed(0)
    q, k, v = (torch.randn(3, 300, n, 16, generator=draws, device="cuda", requires_grad=True) for n in (4, heads, heads))
    added = torch.zeros_like(dense, dtype=torch.float32).masked_fill(~dense, float("-inf"))
    plain, fast = attend(q, k, v, mask=added, causal=False), attend_blocks(q, k, v, block_mask(span))
    torch.testing.assert_close(fast, plain, rtol=1e-4, atol=1e-5)
    found = [torch.autograd.grad(y.square().sum(), (q, k, v)) for y in (fast, plain)]
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)
