"""The observation point: a tap reads or replaces named tensors as they pass. Module hooks would not do, since one module runs
many times."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from torch import Tensor

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

POINTS = ("embed", "query", "key", "attention", "mlp", "residual", "diagonal", "gate", "state", "logits")
OF_PARTS = ("diagonal", "gate")  # of these, what a model shows only where one of its parts has it


class Tap(Protocol):
    """Called at each of POINTS; returns the tensor to go on with (the same one, to read only)."""

    def __call__(self, name: str, value: Tensor, *, stack: str, step: int | Tensor, layer: int) -> Tensor: ...


def check_tap(tap: Tap, config: PreTrainedConfig, depth: int, *, head: bool) -> None:
    """Lets a tap that knows its places raise where it has none in a pass at this depth, with the `head` or without it. Such a tap
    has `check_places`."""
    check = getattr(tap, "check_places", None)
    if check is not None:
        check(config, depth, head=head)


class Recorder:
    """A tap that keeps what it sees at the chosen points, by (name, stack, step, layer)."""

    def __init__(self, names: tuple[str, ...] = POINTS) -> None:
        unknown = set(names) - set(POINTS)
        if unknown:
            raise ValueError(f"recorder: unknown point {sorted(unknown)}; allowed: {', '.join(POINTS)}")
        self.names = names
        self.seen: dict[tuple[str, str, int, int], Tensor] = {}

    def __call__(self, name: str, value: Tensor, *, stack: str, step: int | Tensor, layer: int) -> Tensor:
        if name in self.names:
            if isinstance(step, Tensor):
                raise ValueError("recorder: rows at different steps have no common key; trace them one depth at a time")
            self.seen[name, stack, step, layer] = value.detach().clone()
        return value
