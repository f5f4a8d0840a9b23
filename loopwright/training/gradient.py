"""How the loop's gradient is computed: with every step kept, the state before each step, a few states out of many, or, at a fixed
point, from one step as if the loop had run forever.

A rematerialised step runs again in the backward pass exactly as it ran, from the same state, with the same random numbers and the
same autocast: the same sums in the same order, so the gradients are bitwise those of the plain loop on a CPU, and equal to rounding
on a GPU. One step at a time that is torch's checkpoint. The tree, which holds fewer states, has its own autograd function: there a
parameter that one step reads more than once, the same values at every step (the step size of the diagonal injection), has its
shares summed within the step first, and agrees to rounding. Autocast's copies of the weights are made anew for each step (see
`forget_casts`), in the plain loop too. The last step of a rollout is differentiated first, so it is kept whole.

At a fixed point s = Φ(s, e; θ) the gradient is (∂Φ/∂θ)ᵀ (1 − Jᵀ)⁻¹ g with J = ∂Φ/∂s and g = ∂L/∂s. The inverse is the Neumann
series Σ_k (Jᵀ)^k g, cut after `terms` terms; what is left out shrinks like ρ(J)^terms. Away from a fixed point the formula means
nothing, so it is refused there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from math import comb
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from loopwright.metrics.states import relative_step
from loopwright.model.backbone import StepRunner
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.passes import Pass
from loopwright.schema import check_whole

# what runs before or after the loop; all else may belong to a step, and a new part of the model does until it is named here
OUTSIDE = ("embed_tokens", "embed_positions", "embed_norm", "prelude", "state", "coda", "norm", "halting", "lm_head")

LIMIT = 1e-3  # of ‖Φ(s) − s‖ / ‖s‖ in the worst row: beyond it a state is no fixed point


def step_parameters(model: LoopedForCausalLM) -> list[nn.Parameter]:
    """Returns the trainable parameters that a step may use, each once."""
    parts = [part for name, part in model.named_children() if name not in OUTSIDE]
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel

        # such modules put their gathered weights into the graph, where gradients of the shards cannot be asked for
        if any(isinstance(module, FSDPModule | FullyShardedDataParallel) for part in parts for module in part.modules()):
            raise ValueError(
                "remat: parts of a step are sharded on their own (FSDP); shard the whole model, or use remat none or step"
            )
    return list({id(x): x for part in parts for x in part.parameters() if x.requires_grad}.values())


def draws(model: LoopedForCausalLM) -> bool:
    """Returns whether a step of the model draws random numbers."""
    return model.training and model.config.draws


def forget_casts() -> None:
    """Drops autocast's copies of the weights.

    Autocast keeps one low-precision copy of a weight for a whole pass, and sums the gradients of all steps in that precision.
    With a copy per step they are summed in the weight's own.
    """
    if torch.is_autocast_cache_enabled():
        torch.clear_autocast_cache()


@dataclass(frozen=True)
class GradSteps:
    """The steps of a rollout that carry a gradient, but for the last one: `depth` of them from `state` at `first_step`.

    `keeps` says whose states are wanted: those of "every" step or of the "last".
    """

    model: LoopedForCausalLM
    e: Tensor
    p: Pass
    state: Tensor
    first_step: int
    depth: int
    step: StepRunner
    keeps: str

    def run(self, step: StepRunner) -> list[Tensor]:
        """Returns the wanted states, of steps that are run by `step`; the others are held by nobody."""
        states: list[Tensor] = []
        for s in self.model.unroll(self.e, self.depth, self.p, state=self.state, first_step=self.first_step, step=step):
            states = [*states, s] if self.keeps == "every" else [s]
        return states


@dataclass(frozen=True)
class GradientCost:
    """What a way to run some steps costs: how many it keeps whole for the backward pass, how many states it holds beside them, and
    how many steps forward it runs beyond one pass forward and one backward (which counts as two)."""

    whole: int
    states: int
    reruns: int


@dataclass(frozen=True)
class Start:
    """Where a step can be run from: its index, the state it takes in, the random state it draws from (None: it draws nothing)."""

    t: int
    s: Tensor
    random: Tensor | None


class Recompute:
    """The steps of one pass, with what must be as it was when one of them runs again."""

    def __init__(self, steps: GradSteps) -> None:
        if steps.p.cache is not None:
            raise ValueError("remat: the pass has a cache, which a recomputed step would write twice; run it without a cache")
        self.model, self.p, self.step = steps.model, steps.p, steps.step
        self.device = steps.e.device
        self.draws = draws(steps.model)
        kind = self.device.type
        self.autocast = (kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind), torch.is_autocast_cache_enabled())

    def start(self, t: int, s: Tensor) -> Start:
        """Returns where step `t` starts, if it is run now on state s."""
        return Start(t, s.detach(), random_state(self.device) if self.draws else None)

    @contextmanager
    def again(self, start: Start) -> Iterator[None]:
        """Restores the random and the autocast state of the original step while it is recomputed, then puts the caller's back."""
        kind, dtype, enabled, cached = self.autocast
        now = None if start.random is None else random_state(self.device)
        try:
            if start.random is not None:
                set_random_state(self.device, start.random)
            forget_casts()
            with torch.autocast(kind, dtype=dtype, enabled=enabled, cache_enabled=cached):
                yield
            forget_casts()
        finally:
            if now is not None:
                set_random_state(self.device, now)

    @torch.no_grad()
    def onward(self, start: Start, e: Tensor, stops: list[int]) -> list[Start]:
        """Returns where the steps of the indices `stops`, in rising order, start: runs from `start` up to the last of them."""
        starts = []
        with self.again(start):
            steps = self.model.unroll(e, stops[-1] - start.t, self.p, state=start.s, first_step=start.t, step=self.step)
            for t, s in enumerate(steps, start=start.t + 1):
                if t in stops:
                    starts.append(self.start(t, s))
        return starts

    def rebuild(self, start: Start, e: Tensor, needed: Sequence[bool]) -> tuple[Tensor, Tensor, Tensor]:
        """Runs the step at `start` again, with a graph of its own; returns its s and e, which need gradients as said, and the
        state after it."""
        s, e = start.s.detach().requires_grad_(needed[0]), e.detach().requires_grad_(needed[1])
        with self.again(start), torch.enable_grad():
            return s, e, self.step(s, e, start.t, self.p)


def pull_back(after: Tensor, inputs: Sequence[Tensor], grad: Tensor) -> list[Tensor | None]:
    """Returns the gradients of a step's inputs, from the gradient of the state after it; None where none is needed or flows."""
    gradients: list[Tensor | None] = [None] * len(inputs)
    wanted = [place for place, x in enumerate(inputs) if x.requires_grad]
    if after.requires_grad:
        grads = torch.autograd.grad(after, [inputs[place] for place in wanted], grad, allow_unused=True)
        for place, value in zip(wanted, grads, strict=True):
            gradients[place] = value
    return gradients


def random_state(device: torch.device) -> Tensor:
    """Returns the state of the generator that dropout on a device draws from; nothing waits for the device."""
    return torch.get_rng_state() if device.type == "cpu" else torch.get_device_module(device).get_rng_state(device)


def set_random_state(device: torch.device, state: Tensor) -> None:
    """Puts that generator back into a state."""
    if device.type == "cpu":
        torch.set_rng_state(state)
    else:
        torch.get_device_module(device).set_rng_state(state, device)


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

    def cost(self, depth: int, keeps: str) -> GradientCost:
        """Returns what the series costs: one step rebuilt and differentiated, and a product with its Jacobian for each term."""
        self.check(depth, keeps)
        rebuilt = self.terms > 1
        return GradientCost(whole=int(rebuilt), states=1, reruns=(self.terms + 1) * rebuilt - 2 * depth)

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


class Remat(Protocol):
    """A way to run the steps of a gradient before the last one.

    `where_all_are_kept` names the kind that runs in its place where the loss reads every state, None where it runs itself.
    """

    where_all_are_kept: str | None

    def __call__(self, steps: GradSteps) -> list[Tensor]:
        """Returns the states after the steps, those that are wanted."""
        ...

    def cost(self, depth: int, keeps: str) -> GradientCost:
        """Returns what it keeps of `depth` steps, and what it runs beyond one pass forward and one backward."""
        ...


class KeepAll:
    """The plain loop: everything is kept."""

    where_all_are_kept = None

    def __call__(self, steps: GradSteps) -> list[Tensor]:
        return steps.run(apart(steps.step))

    def cost(self, depth: int, keeps: str) -> GradientCost:
        """Returns the cost of keeping all: bytes alone."""
        return GradientCost(whole=depth, states=0, reruns=0)


class EachStep:
    """Keeps the state before each step, by torch's checkpoint; each step runs once more in the backward pass."""

    where_all_are_kept = None

    def __call__(self, steps: GradSteps) -> list[Tensor]:
        saved = partial(checkpoint, steps.step, use_reentrant=False, preserve_rng_state=draws(steps.model))
        return steps.run(apart(saved))

    def cost(self, depth: int, keeps: str) -> GradientCost:
        """Returns the cost of a state and a step again for each step."""
        return GradientCost(whole=0, states=depth, reruns=depth)


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

    def cost(self, depth: int, keeps: str) -> GradientCost:
        """Returns what the tree costs: a step whose state is not held runs once more than one whose state is."""
        if keeps == "every" or not depth:
            return EachStep().cost(depth, keeps)
        held = len(_held(0, depth))
        return GradientCost(whole=0, states=held, reruns=2 * depth - held)


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
