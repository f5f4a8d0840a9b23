"""The model compiled for training: the step as one function, prelude and coda as one each, documents by blocks of attention.

A compiler can get gradients wrong and raise nothing, so the first compiled passes are compared with passes as written. Torch's did,
in two ways: small ASURA models were trained on wrong gradients here for want of barriers, which are put in here, and from 2.10 to
2.13 gradients of norms whose weights are rows of one table may hold whatever the memory held before
(github.com/pytorch/pytorch/issues/193061).

The barriers: a kernel that sums over rows in loops may store numbers in one loop and load them in the next. Triton may give the two
loops different threads (github.com/triton-lang/triton/issues/10924), so a thread can load what another has not stored yet. Kernels
of ASURA's norms with a row of weights per step were of this kind from the second step on, before compiled steps were handed their
rows: on an H200 the gradients of the small ASURA were wrong in every test without the barrier, and right with it
(experiments/LOG.md). With 64 tokens or more per multiprocessor, rows wider than 64 whose weights do not begin where their table
begins are summed in loops, others when they are wider than 1,024. Torch up to 2.13 puts no barrier between the loops
(github.com/pytorch/pytorch/pull/190519 does).
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cache, wraps
from inspect import getsource, unwrap
from types import TracebackType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from loopwright.kernels.gate import can_compile
from loopwright.metrics.dual import product
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.parts.part import FIRST, StepIndex
from loopwright.model.passes import Adaptation, Pass
from loopwright.untrusted import first_line

Made = TypeVar("Made")

PASSES = 2  # of each kind: the first runs kernel by kernel, the second may be a graph, replayed
# a gradient may differ by so much of its own norm, and by so much of that of all: sums are rounded otherwise, and of a small one
# bf16 leaves little (0.76 of its own norm was seen, 0.001 of that of all). Wrong ones were thousands of times too large
OWN, ALL = 0.5, 0.01
ROUNDED = 4.0  # and by so many times what rounding less changes
BARRIER = "tl.debug_barrier()"
TAG = "loopwright-barriers"  # kernels without barriers may lie in the compiler's cache on disk: those with them have other keys
READ = ("stores", "inside_reduction", "range_trees", "is_loop", "body")  # of a kernel: private to torch, as codegen_body is
# one shape of batch each: with a hook, without, without a gradient; parts that read their step's number multiply that by the steps
GRAPHS = 256
NARROWEST_HEAD = 16


def should_compile(asked: bool | str, device: torch.device, *, alike: bool) -> tuple[bool, str | None]:
    """Returns whether to compile, and an optional message. `alike`: all batches have one shape, as those of text have;
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


# barriers


def put_barriers() -> None:
    """Makes torch's compiler end each loop that stores with a barrier, in this process and from now on."""
    if (reason := why_not()) is not None:
        raise ValueError(f"compile: {reason}; compile: false trains without it")
    _put_once()
    tag = torch.compiler.config.cache_key_tag  # from torch 2.13 on each thread has its own
    if TAG not in tag.split():
        torch.compiler.config.cache_key_tag = f"{tag} {TAG}".strip()


@cache
def why_not() -> str | None:
    """Returns why no barriers can be put into what this torch compiles, or None."""
    try:
        from torch._inductor.codegen.triton import TritonKernel  # seconds of imports, which compiling needs anyway

        source = getsource(unwrap(TritonKernel.codegen_body))
        missing = [name for name in READ if f".{name}" not in source]
    except (ImportError, AttributeError, OSError):
        missing = ["TritonKernel.codegen_body"]
    if not missing:
        return None
    return f"its kernels may lack barriers, which cannot be put into those of torch {torch.__version__} (no {', '.join(missing)})"


@cache
def _put_once() -> None:
    from torch._inductor.codegen.triton import TritonKernel

    TritonKernel.codegen_body = with_barriers(TritonKernel.codegen_body)  # type: ignore[method-assign]


def with_barriers(codegen_body: Callable[[Any], None]) -> Callable[[Any], None]:
    """Returns the method that writes what a kernel has gathered, as one loop where it sums in loops; with a barrier after a loop
    that stores."""

    @wraps(codegen_body)
    def write(kernel: Any) -> None:
        stores = bool(kernel.stores) and kernel.inside_reduction and any(tree.is_loop for tree in kernel.range_trees)
        codegen_body(kernel)
        if stores:
            kernel.body.writeline(BARRIER)

    return write


# compared with passes as written


class CompileComparison:
    """The first passes of each kind, each beside the pass as written. Gradients may hold those of earlier batches."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self.parameters = parameters
        self.seen: Counter[Hashable] = Counter()
        self.before: dict[str, Tensor | None] = {}
        self.written: dict[str, Tensor | None] = {}

    def is_due(self, *kinds: Hashable) -> bool:
        """Says whether a pass is among the first of one of its kinds, and counts it."""
        self.seen.update(kinds)
        return any(self.seen[kind] <= PASSES for kind in kinds)

    def run_written(self, run: Callable[[], Made]) -> Made:
        """Returns what the pass as written returns; keeps its gradients aside, and leaves those of before. It draws what the next
        pass draws."""
        self.before = self._gradients()
        try:
            with self._drawing_alike():
                result = run()
            self.written = self._gradients()
        finally:
            self._put(self.before)
        return result

    def difference(self, precise: Callable[[], object] | None = None) -> str | None:
        """Returns how the gradients that have come since differ from those of the pass as written, None where they are the same but
        for rounding. Of a pass as written that is not finite nothing can be said. `precise` runs it with less rounding: where that
        alone changes gradients as much, as in a loop that is chaotic in bf16, a difference says nothing either."""
        names = [name for name, p in self.parameters.items() if p.grad is not None or self.written[name] is not None]
        if not names:
            return None
        zero = {name: torch.zeros_like(self.parameters[name]) for name in names}
        written = [_or(self.written[name], zero[name]) for name in names]
        before = [_or(self.before[name], zero[name]) for name in names]
        gradients = [_or(self.parameters[name].grad, zero[name]) for name in names]
        own, apart = _apart(written, before), _apart(gradients, written)
        whole = own.norm()
        if not bool(whole.isfinite()):
            return None
        excess = (apart - (OWN * own + ALL * whole)).nan_to_num(nan=torch.inf)
        if precise is not None and bool(excess.max() > 0):
            excess = excess - ROUNDED * self._rounding(precise, names, written)
        worst = int(excess.argmax())
        if bool(excess[worst] <= 0):
            return None
        share = float(apart[worst] / own[worst].clamp(min=1e-30))
        return f"the gradient of {names[worst]} is {share:.3g} times its norm away from that of the pass as written"

    def _rounding(self, precise: Callable[[], object], names: Sequence[str], written: list[Tensor]) -> Tensor | float:
        """Returns how far from the pass as written each gradient is where less is rounded; 0 where there is no memory to tell."""
        gradients = self._gradients()
        self._put(self.before)
        try:
            with self._drawing_alike():
                precise()
            exact = [_or(self.parameters[name].grad, torch.zeros_like(x)) for name, x in zip(names, written, strict=True)]
            return _apart(exact, written).nan_to_num(nan=0.0, posinf=0.0)
        except torch.OutOfMemoryError:
            return 0.0
        finally:
            self._put(gradients)

    def _drawing_alike(self) -> AbstractContextManager[None]:
        """What runs inside leaves the random generators as they were."""
        devices = {p.device.index or 0 for p in self.parameters.values() if p.device.type == "cuda"}
        return torch.random.fork_rng(devices=sorted(devices))

    def take_written(self) -> None:
        """Puts the gradients of the pass as written in the place of those that have come since."""
        self._put(self.written)

    def forget(self, *, put_back: bool = False) -> None:
        """Lets go of the gradients that were kept; `put_back`: those of before the pass take the place of what came since."""
        if put_back and self.before:
            self._put(self.before)
        self.before, self.written = {}, {}

    def _gradients(self) -> dict[str, Tensor | None]:
        return {name: None if p.grad is None else p.grad.detach().clone() for name, p in self.parameters.items()}

    def _put(self, gradients: Mapping[str, Tensor | None]) -> None:
        """In the same tensors where there are some: a graph adds to those for ever."""
        for name, p in self.parameters.items():
            kept = gradients[name]
            if p.grad is None or kept is None:
                p.grad = None if kept is None else kept.clone()
            else:
                p.grad.copy_(kept)


def _or(x: Tensor | None, other: Tensor) -> Tensor:
    return other if x is None else x.detach()


def _apart(some: list[Tensor], others: list[Tensor]) -> Tensor:
    """Returns the norm of each difference."""
    return torch.stack(torch._foreach_norm(torch._foreach_sub(some, others))).double()
