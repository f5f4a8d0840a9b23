"""Attention under a mask by blocks of 128 × 128 tokens: where documents share a row, most pairs of blocks see nothing of each
other and are skipped. For compiled training on a GPU; elsewhere a dense mask is added to the scores."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from loopwright.model.span import Span

# as it is written it would form every score; inside a compiled step this is part of that step's graph
_attend = torch.compile(flex_attention, dynamic=False)
_create = torch.compile(create_block_mask, dynamic=False)


def block_mask(span: Span) -> BlockMask:
    """Returns the mask of documents, in the sense of `Span.mask` without padding and window: with the test of padding beside it
    the kernel of the forward pass takes 18 times as long."""
    assert span.first is not None and span.offset == 0 and not span.padded
    first = span.first

    def visible(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (key >= first[b, query])

    # as it is written, hundreds of small operations, for which a GPU would wait at the start of every update
    create = _create if first.is_cuda else create_block_mask
    return create(visible, span.rows, None, span.length, span.length, device=str(first.device))


def attend_blocks(q: Tensor, k: Tensor, v: Tensor, mask: BlockMask) -> Tensor:
    """Returns softmax(q kᵀ / √K) v under a mask by blocks, for q [B, T, H, K] and k, v [B, N, Hk, K]."""
    kind = v.dtype  # under autocast that of a product; SDPA would cast rotated queries and keys to it by itself
    q, k, v = (x.to(kind).transpose(1, 2) for x in (q, k, v))
    y = _attend(q, k, v, block_mask=mask, enable_gqa=q.shape[1] != k.shape[1])
    assert isinstance(y, Tensor)
    return y.transpose(1, 2)
