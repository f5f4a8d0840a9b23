"""What the tests of the loop's gradients share: a batch with padding, a loss that reads every state it is given, its gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import loopwright as lw
from loopwright.data.batch import Batch
from loopwright.training.rollout import Plan, Rollout, rollout


def padded_batch(model: lw.LoopedForCausalLM, *, length: int = 6) -> Batch:
    ids = torch.randint(0, model.config.vocab_size, (2, length), generator=torch.Generator().manual_seed(3))
    mask = torch.ones_like(ids)
    mask[1, :2] = 0
    return Batch(ids, ids.masked_fill(mask == 0, -100), mask)


def loss_of(model: lw.LoopedForCausalLM, path: Rollout) -> Tensor:
    """Every state counts, each with another weight; padding does not."""
    weight = path.batch.valid[..., None]
    return sum((t + 1) * (model.read_out(s, path.p).double().square() * weight).mean() for t, s in enumerate(path.states))


def gradients(
    model: lw.LoopedForCausalLM, plan: Plan, *, autocast: bool = False, batch: Batch | None = None, **options: Any
) -> dict[str, Tensor]:
    """Returns the gradients of one rollout, on dropout masks that are the same each time."""
    model.zero_grad(set_to_none=True)
    loss(model, plan, autocast=autocast, batch=batch, **options).backward()
    return {name: x.grad.clone() for name, x in model.named_parameters() if x.grad is not None}


def loss(model: lw.LoopedForCausalLM, plan: Plan, *, autocast: bool = False, batch: Batch | None = None, **options: Any) -> Tensor:
    torch.manual_seed(11)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        return loss_of(model, rollout(model, padded_batch(model) if batch is None else batch, plan, **options))


def differing(a: dict[str, Tensor], b: dict[str, Tensor], same: Callable[[Tensor, Tensor], bool] = torch.equal) -> list[str]:
    """Returns the names whose gradients are not the same, or that only one side has."""
    return sorted(name for name in a.keys() | b.keys() if name not in a or name not in b or not same(a[name], b[name]))
