"""The steps of a gradient, and how one of them runs again exactly as it ran: from the same state, with the same random numbers
and the same autocast."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from loopwright.model.backbone import StepRunner
from loopwright.model.forward.context import Pass
from loopwright.model.looped import LoopedForCausalLM

# what runs before or after the loop; all else may belong to a step, and a new part of the model does until it is named here
OUTSIDE = ("embed_tokens", "embed_positions", "embed_norm", "prelude", "state", "coda", "norm", "halting", "lm_head")


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
class Cost:
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
        """What runs inside finds the random and the autocast state that the step at `start` found; what runs after, its own."""
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
