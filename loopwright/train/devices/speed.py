"""How fast a run is, beside what the device could do: model FLOPs a second, their share of the peak (MFU), peak memory."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch

from loopwright.data.batch import Batch
from loopwright.model.config import LoopedConfig
from loopwright.model.cost.cost import pass_flops
from loopwright.train.rollout import Objective, Plan

# dense products a second in bf16 with float32 sums, by a card's name (the makers' data sheets, without sparsity)
PEAKS = {
    "B200": 2250e12, "GH200": 989e12, "H200": 989e12, "H100 PCIe": 756e12, "H100": 989e12, "A100": 312e12, "L40S": 362e12,
    "RTX 4090": 165e12, "RTX 3090": 71e12, "A10G": 70e12, "L4": 121e12,
}  # fmt: skip
SHARES = {"bf16": 1.0, "tf32": 0.5}  # of that, by precision; float32 products run on other units


class Speedometer:
    """Counts the model FLOPs of updates. Matrix products count, attention in full; what is computed twice counts once, and
    penalties not at all; where parts are frozen the count is that of training them all."""

    def __init__(self, config: LoopedConfig, objective: Objective, precision: str, device: torch.device) -> None:
        self.config, self.device = config, device
        self.every = objective.reads == "every"
        self.peak = peak_of(torch.cuda.get_device_name(device), precision) if device.type == "cuda" else None
        self.held = 0  # the most memory before what was not counted
        self._counted = lru_cache(maxsize=64)(self._count)

    def _count(self, depth: int, rows: int, length: int) -> dict[str, int]:
        return pass_flops(self.config, depth=depth if self.config.is_looped else None, batch=rows, length=length)

    def _parts(self, depth: int, rows: int, length: int) -> tuple[int, int]:
        """The FLOPs of a pass and of its read-out. Every step costs the same, so that two depths tell those of all."""
        first = self._counted(1, rows, length)
        if depth == 1 or not self.config.is_looped:
            return first["total"], first["head"]
        return first["total"] + (depth - 1) * self.step_flops(rows, length), first["head"]

    def step_flops(self, rows: int, length: int) -> int:
        """Returns the FLOPs of one step forward; those of a batch's steps are alike."""
        if not self.config.is_looped or self.config.max_steps == 1:
            return 0
        return self._counted(2, rows, length)["total"] - self._counted(1, rows, length)["total"]

    def outside_flops(self, rows: int, length: int) -> int:
        """Returns the FLOPs forward of what runs once, without the read-out: prelude and coda."""
        first = self._counted(1, rows, length)
        return first["total"] - first["head"] - self.step_flops(rows, length)

    def flops(self, pairs: Iterable[tuple[Batch, Plan]]) -> int:
        """Returns the FLOPs of an update's batches: forward through every step, backward through those with a gradient."""
        total = 0
        for batch, plan in pairs:
            rows, length = batch.input_ids.shape
            kept = min(plan.grad_steps, plan.depth)
            (forward, head), (again, _) = self._parts(plan.depth, rows, length), self._parts(kept, rows, length)
            heads = kept if self.every and self.config.is_looped else 1
            total += forward + 2 * again + 3 * (heads - 1) * head
        return total

    def row(self, pairs: Iterable[tuple[Batch, Plan]], seconds: float, processes: int) -> dict[str, Any]:
        """Returns what the log tells of an update's speed on a GPU; FLOPs are those of this process, of as many as there are."""
        if self.device.type != "cuda":
            return {}
        rate = self.flops(pairs) / seconds
        held = max(self.held, torch.cuda.max_memory_allocated(self.device))
        numbers = {"tflops_per_second": rate * processes / 1e12, "peak_memory": held}
        return numbers if self.peak is None else {**numbers, "mfu": rate / self.peak}

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """Leaves what runs inside out of the peak of memory."""
        if self.device.type != "cuda":
            yield
            return
        self.held = max(self.held, torch.cuda.max_memory_allocated(self.device))
        try:
            yield
        finally:
            torch.cuda.reset_peak_memory_stats(self.device)


def peak_of(name: str, precision: str) -> float | None:
    """Returns the products a second that a card of this name can do in a precision; None where that is not known."""
    words = name.removeprefix("NVIDIA ")
    known = {part for part in PEAKS if re.fullmatch(rf"(GeForce )?{re.escape(part)}( SXM\d?| PCIe| \d+GB| HBM\d\w?|-.*)*", words)}
    peaks = PEAKS[max(known, key=len)] if known else None
    return None if peaks is None or precision not in SHARES else peaks * SHARES[precision]
