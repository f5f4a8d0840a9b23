"""One pass of a batch through the loop, with gradients: what objectives and penalties read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from loopwright.data.batch import Batch, Splits
from loopwright.model.backbone import StepRunner
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.passes import Pass, StackRunner
from loopwright.model.span import documents_checked
from loopwright.training.gradient import REMATS, GradSteps, Remat, forget_casts


@dataclass(frozen=True)
class Plan:
    """What the depth rule drew for a batch: `depth` steps, of which the last `grad_steps` keep their gradient."""

    depth: int
    grad_steps: int
    update: int = 0

    def __post_init__(self) -> None:
        if min(self.depth, self.grad_steps) < 1:
            raise ValueError(f"plan: depth {self.depth}, grad_steps {self.grad_steps}; allowed: at least 1")


@dataclass(frozen=True)
class Rollout:
    """Where a batch went. `states` are those after the steps with a gradient, the last one last, or where only the last was
    asked for, that one; `before` is what the last step took in; `probe` is what a penalty that is computed in the last
    step found."""

    batch: Batch
    plan: Plan
    e: Tensor
    p: Pass
    start: Tensor
    states: list[Tensor]
    before: Tensor
    step: StepRunner
    probe: Tensor | None = None

    @property
    def last(self) -> Tensor:
        """The state after the last step."""
        return self.states[-1]

    @property
    def last_step(self) -> int:
        """The index of the last step."""
        return self.plan.depth - 1


class Objective:
    """What is trained for. Abstract: a kind is (model, rollout) → (loss, metrics), and says what it needs for that."""

    reads: str = "every"  # which states it looks at: those of "every" step with a gradient, or the "last" alone
    read_out: str | None = None  # by which read-out the model answers that it trains; None: by the one that it has
    validates: bool = False  # whether validation judges by the objective itself, not by the model's loss
    capturable: bool = True  # whether what it computes is the same work at every update, so that a CUDA graph can replay it
    sampled: bool = False  # whether it trains on what the model itself writes (grpo): TRL then runs the updates

    def check(self, recipe: Mapping[str, Any], splits: Splits, world: int) -> None:
        """Raises a ValueError where the rest of a recipe, the data or the number of processes does not suit it."""

    def prepare(self, model: LoopedForCausalLM, device: torch.device | str) -> None:
        """Brings what it needs onto a device, before the first update: a teacher that does not fit must leave no run behind."""

    def fixed_models(self) -> dict[str, LoopedForCausalLM]:
        """Returns the models beside the trained one that it compares with, by what they are to it, once it is prepared."""
        return {}

    def __call__(self, model: LoopedForCausalLM, rollout: Rollout) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns the loss, a mean over the batch's targets (0 where it has none), and detached numbers for the log."""
        raise NotImplementedError


class Called(Objective):
    """A function of (model, rollout), or an object that is none of ours, as an objective."""

    def __init__(self, function: Callable[[LoopedForCausalLM, Rollout], tuple[Tensor, dict[str, Tensor]]]) -> None:
        self.function = function
        self.reads = getattr(function, "reads", "every")
        self.read_out = getattr(function, "read_out", None)
        self.validates = getattr(function, "validates", False)
        self.capturable = getattr(function, "capturable", True)
        if self.reads not in ("every", "last"):
            raise ValueError(f"objective: reads must be 'every' or 'last' (got {self.reads!r})")

    def __call__(self, model: LoopedForCausalLM, rollout: Rollout) -> tuple[Tensor, dict[str, Tensor]]:
        result = self.function(model, rollout)
        pair = isinstance(result, tuple) and len(result) == 2
        if not pair or not isinstance(result[0], Tensor) or not isinstance(result[1], Mapping):
            raise TypeError(f"objective: must return (loss tensor, dict of metrics) (got {type(result).__name__})")
        loss, metrics = result
        return loss, {name: torch.as_tensor(value, device=loss.device) for name, value in metrics.items()}


class Penalty:
    """A number that training makes small. Abstract: a kind is (model, rollout) → number, a mean over rows."""

    in_last_step: bool = False  # whether it is computed in the last step: such a kind offers `run_last_step`

    def __call__(self, model: LoopedForCausalLM, rollout: Rollout) -> Tensor:
        """Returns the penalty of a rollout."""
        raise NotImplementedError

    def run_last_step(
        self, step: StepRunner, s: Tensor, e: Tensor, t: int, p: Pass, batch: Batch, update: int
    ) -> tuple[Tensor, Tensor]:
        """Returns the state after the last step, and what the penalty measured on the way: `rollout.probe`."""
        raise NotImplementedError

    def first_notes(self, model: LoopedForCausalLM, path: Callable[[], Rollout], processes: int) -> list[str]:
        """Returns what a person should read before the first update; `path` gives a rollout of a few validation rows."""
        return []


def rollout(
    model: LoopedForCausalLM,
    batch: Batch,
    plan: Plan,
    *,
    step: StepRunner | None = None,
    stacks: StackRunner | None = None,
    remat: str | Remat = "none",
    keeps: str = "every",
    hook: Penalty | None = None,
) -> Rollout:
    """Runs a batch to the depth of the plan. `keeps` "last" allows a loop that never holds all states at once.

    `step` and `stacks` run in the place of the model's own. `remat` is the name of a kind of REMATS, or one built with options.
    """
    step = model.step if step is None else step
    run: Remat = REMATS[remat]() if isinstance(remat, str) else remat
    depth = plan.depth if model.config.is_looped else 1
    with documents_checked(batch.asked is not None):  # by `Batch.ready`
        e, p = model.embed(batch.input_ids, attention_mask=batch.attention_mask, segment_ids=batch.segment_ids, fused=stacks)
    start = model.start_state(e, p) if batch.seeds is None else model.start_anew(e, p, batch.seeds)
    grad_steps = min(plan.grad_steps, depth)
    s, first = start, depth - grad_steps
    if first:
        with torch.no_grad():
            for s in model.unroll(e, first, p, state=start, step=step):  # noqa: B007  (the last one is wanted)
                pass
    if not model.config.is_looped:
        return Rollout(batch, plan, e, p, start, [s], s, step)
    # the last step is neither rematerialised nor left to a hook's wrapping
    states = run(GradSteps(model, e, p, s, first, grad_steps - 1, step, keeps))
    before, probe = states[-1] if states else s, None
    forget_casts()
    if hook is None:
        last = step(before, e, depth - 1, p)
    else:
        last, probe = hook.run_last_step(step, before, e, depth - 1, p, batch, plan.update)
    return Rollout(batch, plan, e, p, start, [*states, last] if keeps == "every" else [last], before, step, probe)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model without dropout; afterwards every module is in the mode it was in."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode
