"""The gradient at a fixed point, as if the loop had run forever: one step is differentiated, however many were run.

At s = Φ(s, e; θ) the gradient is (∂Φ/∂θ)ᵀ (1 − Jᵀ)⁻¹ g with J = ∂Φ/∂s and g = ∂L/∂s. The inverse is the Neumann series
Σ_k (Jᵀ)^k g, cut after `terms` terms; what is left out shrinks like ρ(J)^terms. Away from a fixed point the formula means
nothing, so it is refused there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from loopwright.metrics.residual import relative_step
from loopwright.model.forward.context import Pass
from loopwright.train.gradients.recompute import Cost, GradSteps, Recompute, Start, pull_back, step_parameters
from loopwright.values import check_whole

LIMIT = 1e-3  # of ‖Φ(s) − s‖ / ‖s‖, in the worst row


class Implicit:
    """Runs the steps without a graph, then differentiates one. Term 0 of the series is the plain last step of the rollout.

    `residual` is ‖Φ(s) − s‖ / ‖s‖ of the worst row at the last call, padding excluded.
    """

    where_all_are_kept = None  # it is refused there

    def __init__(self, terms: int = 16) -> None:
        check_whole("implicit: terms", terms, 1)
        self.terms = terms
        self.residual: float | None = None

    def __call__(self, steps: GradSteps) -> list[Tensor]:
        """Returns the last state."""
        self.check(steps.depth, steps.keeps)
        before = steps.state

        def watched(now: Tensor, e: Tensor, t: int, p: Pass) -> Tensor:
            nonlocal before
            before = now
            return steps.step(now, e, t, p)

        with torch.no_grad():
            (s,) = steps.run(watched)
        self.residual = float(relative_step(before, s, steps.p.batch_span.valid).max())  # waits for the device, to refuse in time
        if not torch.is_grad_enabled():
            return [s]
        if not self.residual <= LIMIT:
            raise ValueError(
                f"implicit: not at a fixed point: the relative step is {self.residual:.3g}; allowed: at most {LIMIT:g}"
            )
        recompute = Recompute(steps)
        start = recompute.start(steps.first_step + steps.depth, s)
        return [_FixedPoint.apply(recompute, start, self.terms, steps.e, *step_parameters(steps.model))]

    def cost(self, depth: int, keeps: str) -> Cost:
        """Returns what the series costs: one step rebuilt and differentiated, and a product with its Jacobian for each term."""
        self.check(depth, keeps)
        rebuilt = self.terms > 1
        return Cost(whole=int(rebuilt), states=1, reruns=(self.terms + 1) * rebuilt - 2 * depth)

    def check(self, depth: int, keeps: str) -> None:
        """Refuses what has no gradient of this kind: `depth` steps before the last one, of which the loss reads as `keeps` says."""
        if keeps != "last":
            raise ValueError("implicit: the loss reads every step, and one alone has a gradient; allowed: a loss of the last")
        if not depth:
            raise ValueError("implicit: one step with a gradient, which says nothing of a fixed point; allowed: at least 2")


class _FixedPoint(torch.autograd.Function):
    """A state that all earlier steps would have led to. The gradient v that comes in is Jᵀ g, from the last step."""

    @staticmethod
    def forward(ctx: Any, recompute: Recompute, start: Start, terms: int, e: Tensor, *parameters: Tensor) -> Tensor:
        ctx.recompute, ctx.start, ctx.terms = recompute, start, terms
        ctx.save_for_backward(e, *parameters)
        return start.s.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, v: Tensor) -> tuple[Tensor | None, ...]:
        e, *parameters = ctx.saved_tensors
        nothing = (None,) * (4 + len(parameters))
        if ctx.terms == 1:
            return nothing
        s, e, after = ctx.recompute.rebuild(ctx.start, e, (True, ctx.needs_input_grad[3]))
        total = v
        for _ in range(ctx.terms - 2):
            (v,) = torch.autograd.grad(after, s, v, retain_graph=True, materialize_grads=True)
            total = total + v
        return (None, None, None, *pull_back(after, [e, *parameters], total))
