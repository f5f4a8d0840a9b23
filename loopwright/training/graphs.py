"""Forward and backward passes as CUDA graphs: one per depth, captured when a depth comes back, replayed from then on.

A small core leaves a GPU idle: each kernel runs for less time than its launch takes. A replayed graph has no launches. What
changes between replays lies in tensors that are filled before: the rows, the directions of probes, the weights of penalties.
Gradients add up in the parameters' own `.grad`, which are therefore zeroed, never removed.

What a graph needs stays its own: memory that no pass outside can use. So `graph: auto` captures where there is one kind of pass
and room for it, and gives the memory back where something else comes. It says each of them once, and why where it does neither.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from loopwright.data.batch import Batch
from loopwright.kernels.gate import free_launches
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.config import LoopedConfig
from loopwright.training.depth import DepthRule
from loopwright.training.gradient import draws
from loopwright.training.rollout import Called, Objective
from loopwright.untrusted import first_line

Work = Callable[..., tuple[Tensor, dict[str, Tensor]]]

# the share of a card's memory up to which a run is captured unasked: graphs keep it, and what is left must do for all else.
# A pass that takes more is no small one: there launches cost nothing (the log: 381 and 380 ms without and with a graph)
CAPTURED = 0.5
OWN = ("loopwright", "torch")
REPLAYS = "graph: auto replays passes as a CUDA graph from here on (graph: false: kernel by kernel)"
LEAVES = "graph: auto runs passes kernel by kernel"


def unsuited(
    model: LoopedForCausalLM, objective: Objective, penalties: Iterable[object], rule: DepthRule, remat: str, *, alike: bool
) -> str | None:
    """Returns why the passes of a run on one GPU, compiled, are not replayed unasked; None where they are: all of one shape and
    depth, and all parts our own. What somebody else's part or hook does on the host (counting, drawing, waiting for a number) a
    replay would leave out."""
    why = foreign(model, objective, penalties)
    if why is not None:
        return f"{why}, and a replay would leave out what it does on the host"
    if remat == "implicit":
        return "remat: implicit looks at numbers in the middle of a pass"
    if remat != "none" and draws(model):
        return f"remat: {remat} asks for the random state in the middle of a pass (dropout, noise)"
    if not objective.capturable:
        return "the work of the objective changes from update to update"
    if not alike:
        return "batches are not all of one shape"
    return None if rule.constant else "they are not all of one depth"


def foreign(model: LoopedForCausalLM, objective: Objective, penalties: Iterable[object]) -> str | None:
    """Returns what of a pass is somebody else's, so that nobody knows what it does on the host; None where nothing is."""
    parts = [type(part) for part in (*model.modules(), objective, *penalties)]
    theirs = [part.__name__ for part in parts if part.__module__.split(".")[0] not in OWN]
    if theirs or isinstance(objective, Called):
        return f"{theirs[0] if theirs else 'the objective'} is not the package's own"
    return "the model has a hook, or all modules have one" if _hooked(model) else None


def _hooked(model: LoopedForCausalLM) -> bool:
    kinds = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
    of_modules = any(getattr(module, kind) for module in model.modules() for kind in kinds)
    of_all = torch.nn.modules.module._has_any_global_hook()  # torch.nn.modules.module.register_module_forward_hook
    return bool(of_modules or of_all) or any(x._backward_hooks or x._post_accumulate_grad_hooks for x in model.parameters())


def obstacle(batch: Batch, config: LoopedConfig) -> str | None:
    """Returns what keeps passes of such rows from being captured, and what is allowed instead; None where nothing does.
    A capture must not wait for what a tensor holds."""
    if batch.attention_mask is not None:
        return "batches come with a mask, whose values decide what is run; allowed: rows without one (tasks: data.padding=plain)"
    length, limit = batch.input_ids.shape[1], config.max_position_embeddings
    if config.positions == "learned" and batch.segment_ids is not None and length > limit:
        return (
            f"rows have {length} tokens and learned positions end at {limit}, so that the lengths of documents decide whether "
            f"they fit; allowed: data.length={limit} or less"
        )
    return None


@dataclass
class Captured:
    """One graph with the tensors it reads and writes."""

    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    loss: Tensor
    metrics: dict[str, Tensor]


class GraphedWork:
    """Runs `work(tensors, *fixed)`, which ends in a backward pass, and replays it where the same `fixed` and shapes come again.

    The first time runs as written, which also compiles and warms up; the second is captured. Both are on one stream, since the
    nodes that add to `.grad` remember theirs. One that was not `asked` for must never be what a run fails of: it
    captures where there is room, gives up where a capture fails or other work comes, and tells `note` which.
    """

    def __init__(
        self, work: Work, device: torch.device, *, asked: bool = True, note: Callable[[str], object] = lambda text: None
    ) -> None:
        self.work, self.device, self.asked, self.note = work, device, asked, note
        self.stream = torch.cuda.Stream(device)
        self.pool = torch.cuda.graph_pool_handle()
        self.seen: set[Any] = set()
        self.graphs: dict[Any, Captured] = {}
        self.capturing = True
        self.replaying = False  # whether the last pass was a replay
        torch.cuda.reset_peak_memory_stats(device)  # what ran before in this process says nothing of the room that passes need

    def __call__(self, tensors: Any, *fixed: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns loss and metrics of the work on a tree of tensors; `fixed` must be all that else decides what it does."""
        leaves, form = pytree.tree_flatten(tensors)
        key = (fixed, form, tuple((leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else leaf for leaf in leaves))
        if not self.asked and self.seen and key not in self.seen:  # as written it needs its memory beside that of the graphs
            self.give_up("they are not all of one shape, depth and set of penalties")
        if self.capturing and key in self.seen and key not in self.graphs:
            with self.aside():
                self._add(key, leaves, form, fixed)
        self.replaying = self.capturing and key in self.graphs
        if not self.capturing:  # where all else runs: memory of one stream is of no use to another
            return self.work(tensors, *fixed)
        self.seen.add(key)
        with self.aside():
            result = self._replay(self.graphs[key], leaves) if self.replaying else self.work(tensors, *fixed)
        if not self.asked and not self.graphs:  # now, so that gradients need not be kept until the next pass
            why = self._lack_of_room()
            if why is not None:
                self.give_up(why)
        return result

    @contextmanager
    def aside(self) -> Iterator[None]:
        """What runs inside is on the stream of captures, after what was queued before, and before what is queued after."""
        here = torch.cuda.current_stream()
        self.stream.wait_stream(here)
        try:
            with torch.cuda.stream(self.stream), free_launches():
                yield
        finally:
            here.wait_stream(self.stream)

    def give_up(self, why: str) -> None:
        """Runs everything as written from now on, gives back what the graphs hold, and says so once."""
        if not self.capturing:
            return
        self.capturing = False
        self.graphs.clear()
        gc.collect()  # an error of a capture and the frames that it passed hold each other, and with them the tensors of the pass
        torch.cuda.empty_cache()
        self.note(f"{LEAVES}: {why}")

    def _add(self, key: Any, leaves: list[Any], form: Any, fixed: tuple[Any, ...]) -> None:
        if self.asked:
            self.graphs[key] = self._capture(leaves, form, fixed)
            return
        why = self._lack_of_room()
        if why is None:
            try:
                self.graphs[key] = self._capture(leaves, form, fixed)
            except Exception as error:  # whatever it is: as written the pass has just run
                why = f"the capture failed ({first_line(error)})"
        if why is None:
            self.note(REPLAYS)
        else:  # here, where the error is gone and holds no tensors
            self.give_up(why)

    def _lack_of_room(self) -> str | None:
        """Says so where the most that was held so far is too large a share of what this process can have."""
        free, _ = torch.cuda.mem_get_info(self.device)
        most, offered = torch.cuda.max_memory_allocated(self.device), free + torch.cuda.memory_reserved(self.device)
        if most <= CAPTURED * offered:
            return None
        return f"they hold {most / 2**30:.1f} of {offered / 2**30:.1f} GiB, and a graph would keep that (at most {CAPTURED:.0%})"

    def _capture(self, leaves: list[Any], form: Any, fixed: tuple[Any, ...]) -> Captured:
        static = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        graph, draws = torch.cuda.CUDAGraph(), self._generator().clone_state()
        failed: Exception | None = None
        try:
            with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
                try:
                    loss, metrics = self.work(pytree.tree_unflatten(static, form), *fixed)
                except Exception as error:
                    failed = error
                    raise
        except Exception as error:
            try:
                if error is not failed:  # ending the capture failed too, and says no more than that it did
                    self._end(draws)
            finally:
                raise (failed or error) from None
        return Captured(graph, static, loss, metrics)

    def _generator(self) -> torch.Generator:
        return torch.cuda.default_generators[torch.cuda.current_device() if self.device.index is None else self.device.index]

    def _end(self, draws: torch.Generator) -> None:
        """Ends for torch a capture that CUDA broke off. Torch (2.11) does that only where CUDA ends it well: else its generator
        refuses to draw, and its allocator keeps the memory of the pool."""
        self._generator().graphsafe_set_state(draws)
        index = self._generator().device.index
        torch._C._cuda_endAllocateToPool(index, self.pool)
        torch._C._cuda_releasePool(index, self.pool)

    def _replay(self, captured: Captured, leaves: list[Any]) -> tuple[Tensor, dict[str, Tensor]]:
        for mine, given in zip(captured.inputs, leaves, strict=True):
            if isinstance(given, Tensor):
                mine.copy_(given)
        captured.graph.replay()
        # copies: all graphs share one pool, so that the next replay may write where these lie
        return captured.loss.clone(), {name: value.clone() for name, value in captured.metrics.items()}
