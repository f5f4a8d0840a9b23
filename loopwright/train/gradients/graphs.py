"""Forward and backward passes as CUDA graphs: one per depth, captured when a depth comes back, replayed from then on.

A small core leaves a GPU idle: each kernel runs for less time than its launch takes. A replayed graph has no launches. What
changes between replays lies in tensors that are filled before: the rows, the directions of probes, the weights of penalties.
Gradients add up in the parameters' own `.grad`, which are therefore zeroed, never removed.

What a graph needs stays its own: memory that no pass outside can use. So `graph: auto` captures where there is one kind of pass,
and gives the memory back where something else asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from loopwright.model.forward.launches import free_launches
from loopwright.model.looped import LoopedForCausalLM
from loopwright.train.depth import DepthRule, Fixed
from loopwright.train.gradients.recompute import draws
from loopwright.train.rollout import Called, Objective

Work = Callable[..., tuple[Tensor, dict[str, Tensor]]]

# the share of a card's memory up to which a run is captured unasked: graphs keep it, and what is left must do for all else.
# A pass that takes more is no small one: there launches cost nothing (the log: 381 and 380 ms without and with a graph)
CAPTURED = 0.5
OWN = ("loopwright", "torch")
SAID = "graph: auto replays passes that take at most half of the card's memory as a CUDA graph (graph: false: kernel by kernel)"


def suits(model: LoopedForCausalLM, objective: Objective, penalties: Iterable[object], rule: DepthRule, remat: str) -> bool:
    """Returns whether the passes of a run on one GPU, compiled, are replayed unasked: all of one depth, and all parts our own.
    What somebody else's part does on the host (counting, drawing, waiting for a number) a replay would leave out."""
    parts = [*model.modules(), objective, *penalties]
    ours = all(type(part).__module__.split(".")[0] in OWN for part in parts) and not isinstance(objective, Called)
    repeatable = remat == "none" or (remat != "implicit" and not draws(model))  # a step that runs again asks for the random state
    return ours and repeatable and objective.capturable and isinstance(rule, Fixed)


@dataclass
class Captured:
    """One graph with the tensors it reads and writes."""

    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    loss: Tensor
    metrics: dict[str, Tensor]


class GraphedWork:
    """Runs `work(tensors, *fixed)`, which ends in a backward pass, and replays it where the same `fixed` and shapes come again.

    The first time runs as written, which also compiles and warms up; the second is captured. All of it is on one stream,
    since the nodes that add to `.grad` remember theirs. One that was not `asked` for must never be what a run fails of: it
    captures where there is room, and where other work comes it gives up.
    """

    def __init__(self, work: Work, device: torch.device, *, asked: bool = True) -> None:
        self.work, self.device, self.asked = work, device, asked
        self.stream = torch.cuda.Stream(device)
        self.pool = torch.cuda.graph_pool_handle()
        self.seen: set[Any] = set()
        self.graphs: dict[Any, Captured] = {}
        self.capturing = True

    def __call__(self, tensors: Any, *fixed: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns loss and metrics of the work on a tree of tensors; `fixed` must be all that else decides what it does."""
        leaves, form = pytree.tree_flatten(tensors)
        key = (fixed, form, tuple((leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else leaf for leaf in leaves))
        if not self.asked and self.seen and key not in self.seen:  # as written it needs its memory beside that of the graphs
            self.give_up()
        here = torch.cuda.current_stream()
        self.stream.wait_stream(here)
        with torch.cuda.stream(self.stream), free_launches() if self.capturing else nullcontext():
            if key not in self.graphs and key in self.seen and self.capturing and (self.asked or self._has_room()):
                self._add(key, leaves, form, fixed)
            self.seen.add(key)
            result = self._replay(self.graphs[key], leaves) if key in self.graphs else self.work(tensors, *fixed)
        here.wait_stream(self.stream)
        return result

    def give_up(self) -> None:
        """Runs everything as written from now on, and gives back what the graphs hold."""
        self.capturing = False
        self.graphs.clear()
        torch.cuda.empty_cache()

    def _has_room(self) -> bool:
        """Whether the most that was held so far is a small enough share of what this process can have."""
        free, _ = torch.cuda.mem_get_info(self.device)
        return torch.cuda.max_memory_allocated(self.device) <= CAPTURED * (free + torch.cuda.memory_reserved(self.device))

    def _add(self, key: Any, leaves: list[Any], form: Any, fixed: tuple[Any, ...]) -> None:
        try:
            self.graphs[key] = self._capture(leaves, form, fixed)
        except torch.OutOfMemoryError:
            if self.asked:
                raise
            self.give_up()

    def _capture(self, leaves: list[Any], form: Any, fixed: tuple[Any, ...]) -> Captured:
        static = [leaf.clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        graph = torch.cuda.CUDAGraph()
        failed: Exception | None = None
        try:
            with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
                try:
                    loss, metrics = self.work(pytree.tree_unflatten(static, form), *fixed)
                except Exception as error:
                    failed = error
                    raise
        except Exception:  # ending the capture fails then too, and says no more than that it does
            if failed is None:
                raise
            raise failed from None
        return Captured(graph, static, loss, metrics)

    def _replay(self, captured: Captured, leaves: list[Any]) -> tuple[Tensor, dict[str, Tensor]]:
        for mine, given in zip(captured.inputs, leaves, strict=True):
            if isinstance(given, Tensor):
                mine.copy_(given)
        captured.graph.replay()
        # copies: all graphs share one pool, so that the next replay may write where these lie
        return captured.loss.clone(), {name: value.clone() for name, value in captured.metrics.items()}
