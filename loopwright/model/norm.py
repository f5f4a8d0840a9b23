"""Norms: rms, layer and simple (layer without scale and shift), shared or with one row of weights per step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from loopwright.model.parts.part import Part, StepIndex, take_width
from loopwright.schema import Kinds


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
