"""How long a deep pass takes, told before it starts."""

from __future__ import annotations

import time

import torch

from loopwright.model.looped import LoopedForCausalLM
from loopwright.terminal import say

DEEP = 1000  # steps of a pass that nobody runs by chance
MEASURED = 8  # steps that are timed


def tell_wait(model: LoopedForCausalLM, depth: int | None, *, rows: int = 1, length: int = 1) -> None:
    """Prints on stderr how long one pass of rows × length tokens at an absurd depth will take; nothing at others.

    The time of a step is measured on this model and this shape: a pass of nine steps less one of one step.
    """
    steps = model.config.check_depth(depth)
    if steps < DEEP or not model.config.is_looped:
        return
    ids = torch.zeros(rows, length, dtype=torch.long, device=model.device)
    shallow = min(_seconds(model, ids, 1) for _ in range(2))
    step = max(_seconds(model, ids, 1 + MEASURED) - shallow, 0.0) / MEASURED
    shape = f"{rows} × {length} tokens"
    say(f"loopwright: depth {steps:,}: about {spelled(steps * step)} for each pass of {shape} "
          f"({step * 1e3:.3g} ms a step, measured); Ctrl-C stops")  # fmt: skip


def _seconds(model: LoopedForCausalLM, ids: torch.Tensor, depth: int) -> float:
    begin = time.perf_counter()
    with torch.no_grad():
        model(ids, depth=depth, use_cache=False).logits.sum().item()  # the item waits for a GPU
    return time.perf_counter() - begin


def spelled(seconds: float) -> str:
    """Returns a time in the unit a person would use."""
    for unit, size in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds" if seconds >= 2 else "a second or two"
