"""Huginn's Adam (ELLISAdam of Geiping et al., arXiv 2502.05171), as it is set there."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor


class EllisAdam(torch.optim.Optimizer):
    """Adam whose step is an angle: p ← p − rate / max(1, rms) / (1 − β₁ᵗ) · atan2(m, √(v / (1 − β₂ᵗ))).

    m and v begin as the first gradient and its square, and are then corrected as if they had begun at 0, as in the public code:
    the first step is 2.2 times the rate with betas 0.9 and 0.95. rms is that of g / √v over a tensor: where a gradient is larger
    than those before it, the tensor moves less. At the full rate an update takes `weight_decay` of a weight away, whatever the
    rate is, and less as the schedule lowers it. `eps` only keeps √v off 0.
    """

    def __init__(
        self, params: Iterable[Any], lr: float, betas: tuple[float, float], eps: float = 1e-8, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        for group in self.param_groups:
            group["base_lr"] = group["lr"]  # the full rate, which a schedule leaves alone

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Moves the parameters that have a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._move(parameter, parameter.grad, group)
        return loss

    def _move(self, parameter: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        state, (first, second) = self.state[parameter], group["betas"]
        if not state:
            state.update(step=torch.tensor(0.0), exp_avg=grad.clone(), exp_avg_sq=grad.square())
        state["step"] += 1
        steps = state["step"].item()  # it stays on the CPU: nobody waits for a device
        mean, square = state["exp_avg"], state["exp_avg_sq"]
        mean.lerp_(grad, 1 - first)
        square.mul_(second).addcmul_(grad, grad, value=1 - second).clamp_(min=group["eps"] ** 2)
        rms = grad.square().div_(square).mean().sqrt()
        angle = torch.atan2(mean, square.sqrt().div_(math.sqrt(1 - second**steps)))
        share = group["lr"] / group["base_lr"] if group["base_lr"] else 0.0
        parameter.mul_(1 - share * group["weight_decay"])
        parameter.sub_(angle.div_(rms.clamp(min=1.0)), alpha=group["lr"] / (1 - first**steps))
