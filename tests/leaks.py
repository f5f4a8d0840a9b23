"""Ways in which a model sees the future, planted: some say so, some do not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from torch import Tensor

import loopwright as lw
from loopwright.model import layers as attention
from loopwright.model.parts.state import State
from loopwright.registry import register
from tests.cases import noisy
from tests.own_kinds import own_kinds

POOLING = {"kind": "controller", "rank": 4, "style": 8, "pooling": "sequence", "leak_future": True}


class Looking(State):
    """Starts from the mean over the whole row, and does not say so."""

    def __init__(self, config: lw.LoopedConfig) -> None:
        super().__init__()

    def forward(self, e: Tensor, positions: Tensor, seed: Any) -> Tensor:
        return e.mean(1, keepdim=True).expand_as(e)


LEAKS: dict[str, tuple[str, dict[str, Any]]] = {  # a preset and its changes; the core is opened besides
    "controller": ("ouroboros-qwen2.5-3b-tiny", {"adapters": [POOLING]}),
    "core": ("stars-addition-tiny", {"depth": 2}),
    "state": ("stars-addition-tiny", {"depth": 2, "state": {"kind": "looking"}}),
}


@contextmanager
def looking() -> Iterator[None]:
    """Knows the state that looks ahead."""
    with own_kinds():
        register("state", "looking")(Looking)
        yield


def open_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """The attention of every core looks both ways."""
    causal: Callable[..., Tensor] = attention.attend_in

    def attend_in(p: Any, place: Any, q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
        if place.stack != "core":
            return causal(p, place, q, k, v, dropout)
        return attention.attend(q, k, v, mask=None, causal=False)

    monkeypatch.setattr(attention, "attend_in", attend_in)


def leaking(name: str, monkeypatch: pytest.MonkeyPatch) -> lw.LoopedForCausalLM:
    """Returns a model that sees the future in one of the three ways."""
    if name == "core":
        open_core(monkeypatch)
    preset, changes = LEAKS[name]
    with looking():
        return noisy(preset, std=0.3, **changes).eval()
