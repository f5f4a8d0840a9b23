"""The transformer block and what it is made of: norms, rotary positions, attention, MLP.

Norms are RMS, layer and simple (layer without scale and shift), shared or with one row of weights per step. Attention is
grouped-query: rotary (half-split or interleaved pairs), q/k norm, biases, one call to SDPA. A block has norms at any of
{input, output, residual}: x ← R(x + O(f(I(x)))), for attention and MLP;
pre-norm = {input}; post-norm = {residual}; pre-sandwich = {input, output} (Ouro); post-sandwich = {input, residual}
(Huginn); OLMo-2 = {output}.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from loopwright.model.parts.part import Part, StepIndex, take_width
from loopwright.model.passes import Adaptation, Pass, Place, project
from loopwright.model.traced import may_be_kept
from loopwright.schema import Kinds

if TYPE_CHECKING:
    from loopwright.model.config import LoopedConfig


class Norm(Part):
    """A norm of a width. Abstract: a kind is built from (width, *, eps, steps); where `steps` is given, with weights per step."""

    def forward(self, x: Tensor, step: StepIndex | None = None) -> Tensor:
        """Returns x [B, T, D] normed, by the weights of `step` where there is one row per step."""
        raise NotImplementedError

    @property
    def gain(self) -> Tensor | None:
        """The factor of each channel, where that is all the norm does after it has scaled a token: a map may then hold it."""
        return None


class RMSNorm(Norm):
    """y = w · x / sqrt(mean(x²) + eps); the scaled value is rounded to the input dtype before the weight, as in Llama."""

    def __init__(self, width: int, *, eps: float, steps: int | None = None) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(width if steps is None else (steps, width)))

    def start(self) -> None:
        nn.init.ones_(self.weight)

    @property
    def gain(self) -> Tensor | None:
        return self.weight

    def forward(self, x: Tensor, step: StepIndex | None = None) -> Tensor:
        weight = self.weight if step is None else take_width(self.weight, step)
        if x.dtype == torch.float32 and weight.dim() == 1:  # nothing is rounded in between: one kernel
            return F.rms_norm(x, (x.shape[-1],), weight, self.eps)
        return F.rms_norm(x, (x.shape[-1],), None, self.eps) * weight


class LayerNorm(Norm):
    """y = w · (x − mean) / sqrt(var + eps) + b."""

    def __init__(self, width: int, *, eps: float, steps: int | None = None) -> None:
        super().__init__()
        self.eps = eps
        shape = (width,) if steps is None else (steps, width)
        self.weight = nn.Parameter(torch.empty(shape))
        self.bias = nn.Parameter(torch.empty(shape))

    def start(self) -> None:
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor, step: StepIndex | None = None) -> Tensor:
        if step is None:
            return F.layer_norm(x, (x.shape[-1],), self.weight, self.bias, self.eps)
        scaled = F.layer_norm(x, (x.shape[-1],), None, None, self.eps)
        return scaled * take_width(self.weight, step) + take_width(self.bias, step)


class SimpleNorm(Norm):
    """A layer norm without scale and shift (the STARS study's third operator)."""

    def __init__(self, width: int, *, eps: float, steps: int | None = None) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor, step: StepIndex | None = None) -> Tensor:
        return F.layer_norm(x, (x.shape[-1],), None, None, self.eps)


def build_norm(spec: Mapping[str, Any], width: int, *, steps: int | None = None) -> nn.Module:
    """Returns the norm that `{"kind", "eps", options}` describes."""
    return NORMS[spec["kind"]](width, steps=steps, **{name: value for name, value in spec.items() if name != "kind"})


def build_norms(shared: str, spec: Mapping[str, Any], width: int, steps: int | None, layers: int) -> nn.Module:
    """Returns the norms behind the layers of a core: one for all ("shared"), one with a row of weights for each step ("per-step"),
    or as many of these as there are layers ("per-layer-and-step")."""
    if shared == "per-layer-and-step":
        return nn.ModuleList(build_norm(spec, width, steps=steps) for _ in range(layers))
    return build_norm(spec, width, steps=steps if shared == "per-step" else None)


NORMS = Kinds(
    "norm",
    {"rms": RMSNorm, "layer": LayerNorm, "simple": SimpleNorm},
    inherits=Norm, offers=["forward"], given=["width", "eps", "steps"],
)  # fmt: skip


class Rotary:
    """The rotation angles of a config. Not a module: its table is derived, so it is neither saved, cast nor moved."""

    def __init__(self, config: LoopedConfig) -> None:
        self.config = config
        self.interleaved = config.rope_layout == "interleaved"
        self._tables: dict[torch.device, tuple[Tensor, float]] = {}

    def table(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Returns cos and signed sin, [B or 1, T, 1, K], for positions [B or 1, T]; see `rotate`.

        Interleaved pairs (Huginn) are rotated in float32, half-split ones (Llama, Ouro) in the activation dtype, as the
        released models do.
        """
        frequencies, scale = self._kept(positions.device)
        angle = (positions.float()[..., None] * frequencies)[:, :, None]
        keep = torch.float32 if self.interleaved else dtype
        cos, sin = (angle.cos() * scale).to(keep), (angle.sin() * scale).to(keep)
        if self.interleaved:
            return torch.stack([cos, cos], dim=-1).flatten(-2), torch.stack([-sin, sin], dim=-1).flatten(-2)
        return torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)

    def _kept(self, device: torch.device) -> tuple[Tensor, float]:
        """Returns the frequencies on a device and the scale, made once; those that stand for others are made anew."""
        if device in self._tables:
            return self._tables[device]
        made = inverse_frequencies(self.config, device)
        if may_be_kept(made[0]):
            self._tables[device] = made
        return made


def inverse_frequencies(config: LoopedConfig, device: torch.device) -> tuple[Tensor, float]:
    """Returns the K/2 inverse frequencies and the scale of cos and sin (1 but for yarn)."""
    kind = config.rope_parameters["rope_type"]
    if kind != "default":
        frequencies, scale = ROPE_INIT_FUNCTIONS[kind](config, device)
        return frequencies.to(device), scale
    exponent = torch.arange(0, config.head_dim, 2, dtype=torch.int64, device=device).float() / config.head_dim
    return 1.0 / (config.rope_parameters["rope_theta"] ** exponent), 1.0


def rotate(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool) -> Tensor:
    """Returns x [B, T, H, K] with each pair (a, b) of channels turned: a·cos + b·(−sin), b·cos + a·sin.

    A pair is two neighbours (interleaved) or a channel and the one half a head away; `sin` carries the signs, so that the
    whole rotation is x·cos + partner(x)·sin.
    """
    if interleaved:
        partner = x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
        return (x * cos + partner * sin).to(x.dtype)  # cos and sin are float32, and so is what is between
    return x * cos + x.roll(x.shape[-1] // 2, dims=-1) * sin


def attend(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, causal: bool, dropout: float = 0.0) -> Tensor:
    """Returns softmax(q kᵀ / √K) v for q [B, T, H, K] and k, v [B, N, Hk, K]."""
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    return attend_heads(q, k, v, mask=mask, causal=causal, dropout=dropout).transpose(1, 2)


def attend_heads(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, causal: bool, dropout: float = 0.0) -> Tensor:
    """Returns the same where heads stand before tokens: q [B, H, T, K] and k, v [B, Hk, N, K]."""
    grouped = bool(q.shape[1] != k.shape[1])  # torch.jit.trace has tensors for sizes
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, dropout_p=dropout, enable_gqa=grouped)


def attend_with_map(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None, causal: bool, dropout: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Returns what `attend` does, and the map softmax(q kᵀ / √K) [B, H, T, N] before dropout, which SDPA does not give.

    The result is made from the map, so that gradients reach it; it agrees with SDPA's to rounding.
    """
    groups = q.shape[2] // k.shape[2]
    query, key, value = q.transpose(1, 2), *(x.transpose(1, 2).repeat_interleave(groups, dim=1) for x in (k, v))
    kind = torch.promote_types(q.dtype, torch.float32)
    scores = query.to(kind) @ key.to(kind).transpose(-1, -2) * q.shape[-1] ** -0.5
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1), float("-inf"))
    elif mask is not None:
        scores = scores + mask
    weights = scores.softmax(-1).to(q.dtype)
    return (F.dropout(weights, dropout) @ value).transpose(1, 2), weights


def attend_in(p: Pass, place: Place, q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
    """Returns what queries find among keys of the same rows under the mask of a pass, which may want to keep the map."""
    if p.blocks is not None:
        from loopwright.model.block_mask import attend_blocks  # torch's compiler comes with it

        return attend_blocks(q, k, v, p.blocks)
    if p.outputs is None or p.outputs.maps is None:
        return attend(q, k, v, mask=p.mask, causal=p.causal, dropout=dropout)
    y, p.outputs.maps[place] = attend_with_map(q, k, v, mask=p.mask, causal=p.causal, dropout=dropout)
    return y


class Attention(nn.Module):
    """Self-attention over [B, T, D], with Llama's names for its projections."""

    def __init__(self, config: LoopedConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.dropout = config.dropout
        self.interleaved = config.rope_layout == "interleaved"
        width, query = config.hidden_size, config.num_attention_heads * config.head_dim
        key = config.num_key_value_heads * config.head_dim
        bias = config.attention_bias
        self.q_proj = nn.Linear(width, query, bias="q" in bias)
        self.k_proj = nn.Linear(width, key, bias="k" in bias)
        self.v_proj = nn.Linear(width, key, bias="v" in bias)
        self.o_proj = nn.Linear(query, width, bias="o" in bias)
        self.full_width_norm = config.qk_norm == "full"
        if config.qk_norm != "none":
            self.q_norm = build_norm(config.norm, query if self.full_width_norm else config.head_dim)
            self.k_norm = build_norm(config.norm, key if self.full_width_norm else config.head_dim)
        self.has_norm = config.qk_norm != "none"

    def forward(self, x: Tensor, p: Pass, place: Place, adapt: Adaptation | None) -> Tensor:
        linears = {"q_proj": self.q_proj, "k_proj": self.k_proj, "v_proj": self.v_proj}
        q, k, v = project(linears, x, place.layer, adapt)
        v = v.unflatten(-1, (-1, self.head_dim))
        if self.has_norm and self.full_width_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = q.unflatten(-1, (-1, self.head_dim)), k.unflatten(-1, (-1, self.head_dim))
        if self.has_norm and not self.full_width_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        if p.rotary is not None:
            cos, sin = p.rotary
            q = rotate(q, cos, sin, interleaved=self.interleaved)
            k = rotate(k, cos, sin, interleaved=self.interleaved)
        q, k = p.see("query", q, place), p.see("key", k, place)
        dropout = self.dropout if self.training else 0.0
        if p.cache is None:
            y = attend_in(p, place, q, k, v, dropout)
        else:  # who keeps the keys decides who attends to them
            y = p.cache.attend(place, q, k, v, p, dropout)
        return project({"o_proj": self.o_proj}, y.flatten(2), place.layer, adapt)[0]


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
