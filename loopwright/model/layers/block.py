"""A transformer block with norms at any of {input, output, residual}: x ← R(x + O(f(I(x)))), for attention and MLP.

pre-norm = {input}; post-norm = {residual}; pre-sandwich = {input, output} (Ouro); post-sandwich = {input, residual}
(Huginn); OLMo-2 = {output}.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from loopwright.model.config import LoopedConfig
from loopwright.model.forward.context import Pass, Place
from loopwright.model.layers.attention import Attention
from loopwright.model.layers.norm import build_norm
from loopwright.model.parts.adapter.effects import Adaptation, project


class MLP(nn.Module):
    """down(act(gate(x)) · up(x)) where gated (SwiGLU), else down(act(up(x)))."""

    def __init__(self, config: LoopedConfig) -> None:
        super().__init__()
        self.gated, self.activation = ACTIVATIONS[config.mlp]
        width, inner = config.hidden_size, config.intermediate_size
        if self.gated:
            self.gate_proj = nn.Linear(width, inner, bias=config.mlp_bias)
        self.up_proj = nn.Linear(width, inner, bias=config.mlp_bias)
        self.down_proj = nn.Linear(inner, width, bias=config.mlp_bias)

    def forward(self, x: Tensor, layer: int, adapt: Adaptation | None) -> Tensor:
        if self.gated:
            gate_and_up = project({"gate_proj": self.gate_proj, "up_proj": self.up_proj}, x, layer, adapt)
            inner = self.activation(gate_and_up.pop(0)) * gate_and_up.pop()  # what is used up is not held
        else:
            inner = self.activation(project({"up_proj": self.up_proj}, x, layer, adapt)[0])
        return project({"down_proj": self.down_proj}, inner, layer, adapt)[0]


class Residual(nn.Module):
    """The norms around one branch: x ← R(x + O(f(I(x)))); an absent norm is the identity."""

    def __init__(self, config: LoopedConfig) -> None:
        super().__init__()
        for place in ("input", "output", "residual"):
            present = place in config.norm_placement
            self.add_module(place, build_norm(config.norm, config.hidden_size) if present else nn.Identity())

    def forward(self, x: Tensor, branch: Callable[[Tensor], Tensor]) -> Tensor:
        return self.residual(x + self.output(branch(self.input(x))))


class Block(nn.Module):
    """Attention, then MLP, each inside its norms. [B, T, D] → [B, T, D].

    Where gradient checkpointing is on, only what goes in is kept for the backward pass: a layer at a time, as transformers does. A
    whole step would hold the activations of every core layer while it is made again, which for a core of many layers saves little.
    Our own trainer can keep whole steps, or fewer (`remat`).
    """

    gradient_checkpointing = False  # transformers sets it, and the function beside it
    _gradient_checkpointing_func: Callable[..., Tensor]

    def __init__(self, config: LoopedConfig) -> None:
        super().__init__()
        self.self_attn = Attention(config)
        self.mlp = MLP(config)
        self.attention_norms = Residual(config)
        self.mlp_norms = Residual(config)
        self.dropout = config.dropout

    def __call__(self, *args: Any) -> Tensor:
        if self.gradient_checkpointing and self.training:
            return self._gradient_checkpointing_func(super().__call__, *args)
        return super().__call__(*args)

    def forward(self, x: Tensor, p: Pass, place: Place, adapt: Adaptation | None = None) -> Tensor:
        def attention(a: Tensor) -> Tensor:
            y = self.self_attn(a, p, place, adapt)
            if adapt is not None:
                y = adapt.add(place.layer, "attention", a, y)
            return p.see("attention", y, place)

        def mlp(a: Tensor) -> Tensor:
            y = self.mlp(a, place.layer, adapt)
            if adapt is not None:
                y = adapt.add(place.layer, "mlp", a, y)
            return F.dropout(p.see("mlp", y, place), self.dropout, self.training)

        x = self.attention_norms(x, attention)
        x = self.mlp_norms(x, mlp)
        return p.see("residual", x, place)


ACTIVATIONS: dict[str, tuple[bool, Callable[[Tensor], Tensor]]] = {
    "swiglu": (True, F.silu),
    "gelu": (False, F.gelu),
    "gelu_tanh": (False, partial(F.gelu, approximate="tanh")),
    "relu": (False, F.relu),
}
