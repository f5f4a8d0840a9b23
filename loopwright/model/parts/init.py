"""How the weights of a fresh model start: a named initialisation per system, a pure function of a tensor's role and sizes.

Norms start as the identity whatever the name, and a part starts what it alone has (`Part.start`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

from torch import Tensor, nn

from loopwright.model.parts.part import Sizes
from loopwright.model.parts.state import huginn_std
from loopwright.schema import build_kind


class Law(NamedTuple):
    """How each number of a tensor is drawn, around 0: "normal", "truncated" (a normal, cut at three times its std), "uniform"."""

    shape: str
    std: float

    def fill(self, tensor: Tensor) -> None:
        """Draws the tensor; one that was loaded stays as it is (transformers marks it, and its nn.init obeys)."""
        _DRAWS[self.shape](tensor, self.std)


_DRAWS: dict[str, Callable[[Tensor, float], Any]] = {
    "zero": lambda x, std: nn.init.zeros_(x),
    "normal": lambda x, std: nn.init.normal_(x, std=std),
    "truncated": lambda x, std: nn.init.trunc_normal_(x, std=std, a=-3 * std, b=3 * std),
    "uniform": lambda x, std: nn.init.uniform_(x, -math.sqrt(3) * std, math.sqrt(3) * std),
}
ZERO = Law("zero", 0.0)


class Init:
    """How each tensor starts. Abstract: a kind is built from the config and draws nothing itself."""

    reads_range: ClassVar[bool] = False  # whether it takes a std from the config's initializer_range

    def __init__(self, config: Sizes) -> None:
        self.config = config

    def matrix(self, inputs: int, outputs: int) -> Law:
        """Returns how a linear map starts."""
        raise NotImplementedError

    def residual(self, inputs: int, outputs: int) -> Law:
        """Returns how a map starts whose output joins the residual stream: that of attention, the last one of the MLP."""
        return self.matrix(inputs, outputs)

    def injection(self, inputs: int, outputs: int) -> Law:
        """Returns how the one projection of an injection starts."""
        return self.matrix(inputs, outputs)

    def table(self, width: int) -> Law:
        """Returns how embeddings start, of tokens and of learned positions."""
        raise NotImplementedError

    def bias(self, inputs: int) -> Law:
        """Returns how the bias of a map of so many inputs starts."""
        return ZERO

    def own(self, law: Law, inputs: int, outputs: int) -> Law:
        """Returns how a map of a part starts whose own start would be `law`."""
        return law


class OneStd(Init):
    """Maps and embeddings N(0, initializer_range). Abstract."""

    reads_range = True

    def matrix(self, inputs: int, outputs: int) -> Law:
        return Law("normal", self.config.initializer_range)

    def table(self, width: int) -> Law:
        return Law("normal", self.config.initializer_range)


class Normal(OneStd):
    """Maps and embeddings N(0, initializer_range), biases 0: Ouro, the STARS study, most dense models."""


class Takase(Init):
    """Huginn's: a normal of std √(2 / 5D), cut at three std, maps into the residual stream smaller by √(2 · layers run).

    "takase" in its training code (after arXiv 2312.16903), which takes the layers run at the mean depth: 132, so √264. The file
    that its release is loaded by divides the up map of the MLP too; nothing was trained from that.
    """

    def matrix(self, inputs: int, outputs: int) -> Law:
        return Law("truncated", huginn_std(self.config.hidden_size))

    def residual(self, inputs: int, outputs: int) -> Law:
        return Law("truncated", huginn_std(self.config.hidden_size) / math.sqrt(2 * self.config.num_hidden_layers))

    def table(self, width: int) -> Law:
        return Law("truncated", huginn_std(width))


class RetrofitInit(OneStd):
    """The projection of the injection within ±1/√inputs, as PyTorch starts a linear map, and all else as "normal".

    A retrofit's own layers come from the dense model: the projection alone is new (arXiv 2511.07384).
    """

    def injection(self, inputs: int, outputs: int) -> Law:
        return Law("uniform", 1 / math.sqrt(3 * inputs))


class TensorToTensor(Init):
    """The Universal Transformer's in tensor2tensor: maps within ±√(6 / (inputs + outputs)), embeddings N(0, 1/√D), biases 0.

    There embeddings are multiplied by √D before the signals are added (`embedding_scale`), and the head, tied to them, is not.
    """

    def matrix(self, inputs: int, outputs: int) -> Law:
        return Law("uniform", math.sqrt(2 / (inputs + outputs)))

    def table(self, width: int) -> Law:
        return Law("normal", width**-0.5)

    def own(self, law: Law, inputs: int, outputs: int) -> Law:
        return self.matrix(inputs, outputs)


class React(Init):
    """ASURA's public code (ReAct_Jax): maps within ±√(0.33 / (inputs · outputs)), embeddings N(0, √(2 / 5D)), biases within
    ±1/√inputs. Its maps are so small that a fresh layer adds little but its biases."""

    def matrix(self, inputs: int, outputs: int) -> Law:
        return Law("uniform", math.sqrt(0.33 / (3 * inputs * outputs)))

    def table(self, width: int) -> Law:
        return Law("normal", huginn_std(width))

    def bias(self, inputs: int) -> Law:
        return Law("uniform", 1 / math.sqrt(3 * inputs))

    def own(self, law: Law, inputs: int, outputs: int) -> Law:
        return self.matrix(inputs, outputs)


def init_of(config: Sizes) -> Init:
    """Returns how a model of this config starts."""
    made: Init = build_kind(config.init, INITS, config)
    return made


INITS: Mapping[str, type[Init]] = {
    "normal": Normal, "takase": Takase, "retrofit": RetrofitInit, "tensor2tensor": TensorToTensor, "react": React,
}  # fmt: skip
