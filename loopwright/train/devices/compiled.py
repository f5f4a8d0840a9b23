"""The model compiled for training: the step as one function, prelude and coda as one each, documents by blocks of attention."""

from __future__ import annotations

import warnings
from dataclasses import replace
from types import TracebackType

import torch
from torch import Tensor, nn

from loopwright.metrics.dual import product
from loopwright.model.forward.context import Pass
from loopwright.model.fused.offer import can_compile
from loopwright.model.looped import LoopedForCausalLM
from loopwright.model.parts.adapter.effects import Adaptation
from loopwright.model.parts.part import FIRST, StepIndex
from loopwright.train.devices.barriers import put_barriers, why_not
from loopwright.untrusted import first_line

# one shape of batch each: with a hook, without, without a gradient; parts that read their step's number multiply that by the steps
GRAPHS = 256
NARROWEST_HEAD = 16


def choose(asked: bool | str, device: torch.device, *, alike: bool) -> tuple[bool, str | None]:
    """Returns whether a run compiles, and what there is to say of it. `alike`: all batches have one shape, as those of text have;
    where lengths vary, each would be compiled anew."""
    if isinstance(asked, bool):
        return asked, None
    if device.type != "cuda" or not alike:
        return False, None
    if not can_compile():
        return False, "compile: auto leaves the model as it is written: Triton and a C compiler (gcc, clang) must be installed"
    if (reason := why_not()) is not None:
        return False, f"compile: auto leaves the model as it is written: {reason}"
    return True, "compile: auto compiles the model on cuda, so the first update takes a minute (compile: false: as it is written)"


class Failed:
    """What runs inside may fail to compile: `how` then says so, and nothing is raised."""

    how: str | None = None

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> bool:
        if error is None:
            return False
        from torch._dynamo.exc import TorchDynamoException  # seconds of imports, which what is not compiled need not wait for

        self.how = f"the compiler failed: {first_line(error)}" if isinstance(error, TorchDynamoException) else None
        return self.how is not None


class CompiledStacks:
    """Prelude and coda compiled, for the passes of training; the core is part of its step."""

    def __init__(self, model: LoopedForCausalLM, *, block_masks: bool) -> None:
        _prepare(model.device)
        self.block_masks = block_masks
        self.layers = torch.compile(model.run_layers, dynamic=False)
        # of a stack without layers nothing is left to compile, and the compiler would leave the whole function alone from then on:
        # the next pass would compile the prelude layer by layer, perhaps while a graph is captured
        self.stacks = [stack for stack in ("prelude", "coda") if len(getattr(model, stack))]

    def takes(self, stack: str, adapt: Adaptation | None) -> bool:
        """Says whether a stack runs here, with what its adapters do at the step."""
        return stack in self.stacks and adapt is None

    def run(self, stack: str, x: Tensor, p: Pass, step: StepIndex) -> Tensor:
        """Returns what the layers of a stack make of x."""
        return self.layers(stack, x, replace(p, fused=None), FIRST)


def has_block_attention(model: LoopedForCausalLM) -> bool:
    """Returns whether attention by blocks serves a model: torch's has no dropout, no backward pass on a CPU, no narrower heads."""
    return model.device.type == "cuda" and not model.config.dropout and model.config.head_dim >= NARROWEST_HEAD


class CompiledStep:
    """The model's step, compiled, and its product with the Jacobian by dual numbers, compiled too where the compiler can follow.

    The rows of per-step tables are taken here and handed over as tensors of their own, so that one program serves all steps. The
    compiler makes one per step only where a part reads the step's number. With rows that it takes out of a table itself, from the
    second on, it sums norms in loops on a GPU, which is slower.
    """

    def __init__(self, model: LoopedForCausalLM) -> None:
        _prepare(model.device)
        self.model = model
        self.tables = _step_tables(model)
        self.step = torch.compile(model.step_at, dynamic=False)

        def dual(s: Tensor, v: Tensor, e: Tensor, index: StepIndex, p: Pass) -> tuple[Tensor, Tensor]:
            return product(lambda x: model.step_at(x, e, index, p), s, v)

        self.plain_dual, self.dual = dual, torch.compile(dual, dynamic=False, fullgraph=True)

    def __call__(self, s: Tensor, e: Tensor, t: int, p: Pass) -> Tensor:
        """Returns the state after step t."""
        return self.step(s, e, self.index(t), p)

    def index(self, t: int) -> StepIndex:
        """Returns step t with its rows of the tables."""
        step = self.model.step_index(t)
        tables = [getattr(module, name) for module, name in self.tables]
        return StepIndex(step.t, step.row, {table: table[step.row] for table in tables})

    def product(self, s: Tensor, v: Tensor, e: Tensor, t: int, p: Pass) -> tuple[Tensor, Tensor]:
        """Returns the state after step t and J v, the derivative of the step along v."""
        # seconds of imports, which what is not compiled need not wait for
        from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException

        index = self.index(t)
        try:
            return self.dual(s, v, e, index, p)
        except (TorchDynamoException, FailOnRecompileLimitHit) as error:
            if self.dual is self.plain_dual:
                raise
            warnings.warn(f"the Jacobian's product is not compiled: {first_line(error)}", stacklevel=2)
            self.dual = self.plain_dual
        return self.dual(s, v, e, index, p)


def _step_tables(model: LoopedForCausalLM) -> list[tuple[nn.Module, str]]:
    """Returns where the parameters lie that have as many rows as there are steps. Every per-step table is among them; nobody reads
    the rows of the others. They are looked up at each step, since sharding exchanges them."""
    steps = model.config.max_steps
    if steps is None:
        return []
    return [
        (module, name)
        for module in model.modules()
        for name, x in module.named_parameters(recurse=False)
        if x.dim() and x.shape[0] == steps
    ]


def _prepare(device: torch.device) -> None:
    if device.type == "cuda":
        put_barriers()
    torch._dynamo.config.cache_size_limit = max(torch._dynamo.config.cache_size_limit, GRAPHS)
