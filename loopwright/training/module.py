"""The module whose forward pass is the objective: what distributed wrappers hook, since they only see `forward`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from loopwright.data.batch import Batch
from loopwright.model.backbone import StepRunner
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.training.compile import CompiledStacks, CompiledStep, has_block_attention
from loopwright.training.gradient import Remat
from loopwright.training.objectives.penalties import Weighted
from loopwright.training.rollout import Plan, rollout

Weights = Sequence[float | Tensor | None]  # what each penalty counts for at an update; None: not at all, not computed


@dataclass(frozen=True)
class Share:
    """Which share of an update a batch is: of its targets, which objectives average over, and of its rows, for penalties."""

    targets: float | Tensor = 1.0
    rows: float | Tensor = 1.0


class TrainingModule(nn.Module):
    """A model with what it is trained for. (batch, plan, share, weights) → (loss, metrics).

    All of them count as the share of the update that the batch is: summed over the batches and processes of an update they are
    the means of the whole, however unevenly the targets fell to the batches.
    """

    def __init__(
        self,
        model: LoopedForCausalLM,
        objective: Any,
        penalties: Sequence[Weighted] = (),
        *,
        remat: str | Remat = "none",
        compiled: bool = False,
    ) -> None:
        super().__init__()
        names = [penalty.name for penalty in penalties]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:  # they would share a name in the log, and a ride in the last step
            raise ValueError(f"penalties: {twice[0]} stands there twice; allowed: each kind once")
        self.model = model
        self.objective = objective
        self.penalties = list(penalties)
        self.remat = remat
        self.step: StepRunner = model.step
        self.stacks: CompiledStacks | None = None
        if compiled:
            # penalties take the step apart in ways that attention by blocks has no derivative for
            blocks = not self.penalties and has_block_attention(model)
            self.step, self.stacks = CompiledStep(model), CompiledStacks(model, block_masks=blocks)

    def leave_compiled(self) -> None:
        """Runs as written from now on."""
        self.step, self.stacks = self.model.step, None

    def forward(
        self, batch: Batch, plan: Plan, share: Share | None = None, weights: Weights = ()
    ) -> tuple[Tensor, dict[str, Tensor]]:
        share = share or Share()
        active = [(penalty, weight) for penalty, weight in zip(self.penalties, weights, strict=False) if weight is not None]
        hooks = [penalty.hook for penalty, _ in active if penalty.hook is not None]
        path = rollout(
            self.model, batch, plan,
            step=self.step, stacks=self.stacks, remat=self.remat, keeps=self.objective.reads, hook=hooks[0] if hooks else None,
        )  # fmt: skip
        loss, metrics = self.objective(self.model, path)
        loss, metrics = loss * share.targets, {name: value * share.targets for name, value in metrics.items()}
        metrics["objective"] = loss.detach()
        for penalty, weight in active:
            value = penalty.penalty(self.model, path) * share.rows
            loss = penalty.combine(loss, value, weight)
            metrics[penalty.name] = value.detach()
        return loss, metrics
