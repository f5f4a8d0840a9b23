"""Forward and backward passes as CUDA graphs: one per depth, captured when a depth comes back, replayed from then on.

A small core leaves a GPU idle: each kernel runs for less time than its launch takes. A replayed graph has no launches. What
changes between replays lies in tensors that are filled before: the rows, the directions of probes, the weights of penalties.
Gradients add up in the parameters' own `.grad`, which are therefore zeroed, never removed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from loopwright.model.forward.launches import free_launches

Work = Callable[..., tuple[Tensor, dict[str, Tensor]]]


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
    since the nodes that add to `.grad` remember theirs.
    """

    def __init__(self, work: Work, device: torch.device) -> None:
        self.work = work
        self.stream = torch.cuda.Stream(device)
        self.pool = torch.cuda.graph_pool_handle()
        self.seen: set[Any] = set()
        self.graphs: dict[Any, Captured] = {}

    def __call__(self, tensors: Any, *fixed: Any) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns loss and metrics of the work on a tree of tensors; `fixed` must be all that else decides what it does."""
        leaves, form = pytree.tree_flatten(tensors)
        key = (fixed, form, tuple((leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else leaf for leaf in leaves))
        here = torch.cuda.current_stream()
        self.stream.wait_stream(here)
        with torch.cuda.stream(self.stream), free_launches():
            if key in self.graphs:
                result = self._replay(self.graphs[key], leaves)
            elif key in self.seen:
                self.graphs[key] = captured = self._capture(leaves, form, fixed)
                result = self._replay(captured, leaves)
            else:
                self.seen.add(key)
                result = self.work(tensors, *fixed)
        here.wait_stream(self.stream)
        return result

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
