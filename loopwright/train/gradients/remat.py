"""How the loop keeps what its gradient needs: everything, the state before each step, or a few states out of many.

A rematerialised step runs again in the backward pass from the state it took in: the same sums in the same order, so the gradients
are bitwise those of the plain loop on a CPU, and equal to rounding on a GPU. One step at a time that is torch's checkpoint. The
tree, which holds fewer states, has its own autograd function: there a parameter that one step reads more than once, the same
values at every step (the step size of the diagonal injection), has its shares summed within the step first, and agrees to
rounding. Autocast's copies of the weights are made anew for each step (see `forget_casts`), in the plain loop too.

The last step of a rollout is not among these: it is differentiated first, so it is kept whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from math import comb
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from loopwright.model.backbone import StepRunner
from loopwright.model.forward.context import Pass
from loopwright.train.gradients.implicit import Implicit
from loopwright.train.gradients.recompute import Cost, GradSteps, Recompute, Start, draws, forget_casts, pull_back, step_parameters


class Remat(Protocol):
    """A way to run the steps of a gradient before the last one.

    `where_all_are_kept` names the kind that runs in its place where the loss reads every state, None where it runs itself.
    """

    where_all_are_kept: str | None

    def __call__(self, steps: GradSteps) -> list[Tensor]:
        """Returns the states after the steps, those that are wanted."""
        ...

    def cost(self, depth: int, keeps: str) -> Cost:
        """Returns what it keeps of `depth` steps, and what it runs beyond one pass forward and one backward."""
        ...


class KeepAll:
    """The plain loop: everything is kept."""

    where_all_are_kept = None

    def __call__(self, steps: GradSteps) -> list[Tensor]:
        return steps.run(apart(steps.step))

    def cost(self, depth: int, keeps: str) -> Cost:
        """Returns the cost of keeping all: bytes alone."""
        return Cost(whole=depth, states=0, reruns=0)


class EachStep:
    """Keeps the state before each step, by torch's checkpoint; each step runs once more in the backward pass."""

    where_all_are_kept = None

    def __call__(self, steps: GradSteps) -> list[Tensor]:
        saved = partial(checkpoint, steps.step, use_reentrant=False, preserve_rng_state=draws(steps.model))
        return steps.run(apart(saved))

    def cost(self, depth: int, keeps: str) -> Cost:
        """Returns the cost of a state and a step again for each step."""
        return Cost(whole=0, states=depth, reruns=depth)


class Tree:
    """Keeps about √(2·depth) states (11 for 64 steps, 23 for 256); a step runs at most twice more in the backward pass.

    Griewank's treeverse for a known number of steps. Where every state is kept for the loss anyway, this is the same as
    keeping the state before each step.
    """

    where_all_are_kept = "step"

    def __call__(self, steps: GradSteps) -> list[Tensor]:
        if steps.keeps == "every" or not steps.depth:
            return EachStep()(steps)
        return steps.run(Rerun(steps, _held(steps.first_step, steps.depth)))

    def cost(self, depth: int, keeps: str) -> Cost:
        """Returns what the tree costs: a step whose state is not held runs once more than one whose state is."""
        if keeps == "every" or not depth:
            return EachStep().cost(depth, keeps)
        held = len(_held(0, depth))
        return Cost(whole=0, states=held, reruns=2 * depth - held)


def _held(first: int, depth: int) -> set[int]:
    """The steps whose states the tree holds before the backward pass begins."""
    last = first + depth - 1
    return {first, *stops(first, last, next(k for k in range(depth) if reversible(k, 2) >= depth)), last}


def apart(step: StepRunner) -> StepRunner:
    """Returns the step with a graph of its own: what flows back into s and e is summed within the step first, s is served
    before e, and autocast's copies of the weights are not shared with other steps. So does `_Again`."""

    def run(s: Tensor, e: Tensor, t: int, p: Pass) -> Tensor:
        forget_casts()
        e = e.view_as(e)
        return step(s.view_as(s), e, t, p)

    return run


class Rerun:
    """Steps that hold no graph and only some of their states: those before the steps `held`, the first of all among them.

    The backward pass asks for the states from the last to the first. One that is not there is run for, from the nearest one
    before it; on the way, states are put into the room that later ones have left.
    """

    def __init__(self, steps: GradSteps, held: Iterable[int]) -> None:
        self.recompute = Recompute(steps)
        self.parameters = step_parameters(steps.model)
        self.held = set(held)
        self.kept: list[Start] = []

    def __call__(self, s: Tensor, e: Tensor, t: int, p: Pass) -> Tensor:
        """Returns the state after step t."""
        if not torch.is_grad_enabled():
            return self.recompute.step(s, e, t, p)
        return _Again.apply(self, t, s, e, *self.parameters)

    def first_time(self, t: int, s: Tensor, e: Tensor) -> Tensor:
        """Returns the state after step t, and holds the one before it if it is to be held."""
        if t in self.held:
            self.kept.append(self.recompute.start(t, s))
        return self.recompute.step(s, e, t, self.recompute.p)

    def start_of(self, t: int, e: Tensor) -> Start:
        """Returns where step t starts; what is held of later steps is let go."""
        while self.kept[-1].t > t:
            self.kept.pop()
        nearest = self.kept[-1]
        if nearest.t < t:
            room = len(self.held) - 1 - len(self.kept)
            *between, nearest = self.recompute.onward(nearest, e, [*stops(nearest.t, t, room), t])
            self.kept += between
        elif len(self.kept) > 1:  # the first one stays: a second backward pass over the same graph begins there
            self.kept.pop()
        return nearest


class _Again(torch.autograd.Function):
    """A step whose backward runs it again. The parameters are inputs, so that their gradients go where gradients go."""

    @staticmethod
    def forward(ctx: Any, loop: Rerun, t: int, s: Tensor, e: Tensor, *parameters: Tensor) -> Tensor:
        ctx.loop, ctx.t = loop, t
        ctx.save_for_backward(e, *parameters)  # torch then refuses if one of them was changed in the meantime
        ctx.set_materialize_grads(False)
        return loop.first_time(t, s, e)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        e, *parameters = ctx.saved_tensors
        if grad is None:
            return (None,) * (4 + len(parameters))
        s, e, after = ctx.loop.recompute.rebuild(ctx.loop.start_of(ctx.t, e), e, ctx.needs_input_grad[2:4])
        return (None, None, *pull_back(after, [s, e, *parameters], grad))


def reversible(held: int, passes: int) -> int:
    """Returns how many steps can be differentiated from the first state and `held` more, none run in more than `passes` passes.

    A state put down on the way leaves `held` − 1 for the steps after it, which this pass still reaches, and later, with one
    pass less, `held` for the steps before it: f(k, r) = f(k − 1, r) + f(k, r − 1) = C(k + 1 + r, r).
    """
    return comb(held + 1 + passes, passes)


def stops(first: int, last: int, held: int) -> list[int]:
    """Returns the steps, between `first` and `last`, before which a pass from one to the other puts down `held` states at most,
    so that the steps are run as few times as can be."""
    places: list[int] = []
    while held and last - first > 1:
        passes = next(r for r in range(last - first + 1) if reversible(held, r) >= last - first + 1)
        first = max(first + 1, last + 1 - reversible(held - 1, passes))
        places.append(first)
        held -= 1
    return places


REMATS: dict[str, type] = {"none": KeepAll, "step": EachStep, "tree": Tree, "implicit": Implicit}
