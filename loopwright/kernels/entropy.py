"""Triton kernels of the cross-entropy: logits are read once forward, and read and written once backward, in their own dtype.

Sums are float32 whatever the logits are. What is kept for the backward pass beside the logits is log Z, one number a row.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096


@triton.jit
def _forward(logits, ids, loss, log_z, width, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    start = logits + row * width
    most, total = -float("inf"), 0.0
    for begin in range(0, width, block):
        k = begin + tl.arange(0, block)
        x = tl.load(start + k, mask=k < width, other=-float("inf")).to(tl.float32)
        higher = tl.maximum(most, tl.max(x, 0))
        total = total * tl.exp(most - higher) + tl.sum(tl.exp(x - higher), 0)
        most = higher
    z = most + tl.log(total)
    wanted = tl.load(start + tl.load(ids + row)).to(tl.float32)
    tl.store(log_z + row, z)
    tl.store(loss + row, z - wanted)


@triton.jit
def _backward(logits, ids, log_z, of_loss, of_z, found, width, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    k = tl.program_id(1) * block + tl.arange(0, block)
    x = tl.load(logits + row * width + k, mask=k < width, other=-float("inf")).to(tl.float32)
    loss, z = tl.load(of_loss + row), tl.load(of_z + row)
    p = tl.exp(x - tl.load(log_z + row))
    gradient = (loss + z) * p - tl.where(k == tl.load(ids + row), loss, 0.0)
    tl.store(found + row * width + k, gradient.to(found.dtype.element_ty), mask=k < width)


class CrossEntropy(torch.autograd.Function):
    """(logits [N, V], ids [N]) → −log p(ids) and log Z, [N] each, in float32."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Returns losses and log Z; keeps the logits."""
        logits = logits.contiguous()
        loss, log_z = (torch.empty(len(ids), dtype=torch.float32, device=logits.device) for _ in range(2))
        if len(ids):
            with torch.cuda.device_of(logits):  # Triton launches on the current card, not on the one that holds the numbers
                _forward[(len(ids),)](logits, ids, loss, log_z, logits.shape[1], BLOCK)
        ctx.save_for_backward(logits, ids, log_z)
        return loss, log_z

    @staticmethod
    def backward(ctx: Any, of_loss: Tensor, of_z: Tensor) -> tuple[Tensor, None]:
        """Returns the gradient of the logits: (of_loss + of_z) · softmax, less of_loss at the target."""
        logits, ids, log_z = ctx.saved_tensors
        gradient = torch.empty_like(logits)
        if len(ids):
            grid = (len(ids), triton.cdiv(logits.shape[1], BLOCK))
            of_loss, of_z = of_loss.float().contiguous(), of_z.float().contiguous()
            with torch.cuda.device_of(logits):
                _backward[grid](logits, ids, log_z, of_loss, of_z, gradient, logits.shape[1], BLOCK)
        return gradient, None
