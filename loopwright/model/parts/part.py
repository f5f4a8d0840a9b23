"""Parts: the small final modules that make one looped model differ from another, chosen by `{"kind": …, options}`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from loopwright.schema import MOST_NUMBER

ANY_NUMBER = (-MOST_NUMBER, MOST_NUMBER, True)
FROM_ZERO = (0, MOST_NUMBER, True)
ABOVE_ZERO = (0, MOST_NUMBER, False)


class Sizes(Protocol):
    """What a part reads of a model's config, so that no part has to know the config itself, which knows all parts."""

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    mlp: str
    max_steps: int | None
    adapters: list[Any]
    init: dict[str, Any]
    initializer_range: float

    @property
    def num_hidden_layers(self) -> int:
        """The layers that run at the default depth."""


class Part(nn.Module):
    """A module with its own start values. Abstract: every kind is a final subclass.

    What the rest of the package must know of a kind the kind says itself, in these attributes; nobody asks for its name.
    """

    per_step: ClassVar[bool] = False  # whether it holds one row of parameters per step: the config then needs max_steps
    draws: ClassVar[bool] = False  # whether it draws random numbers while it trains, beside what an option `dropout` says
    frozen: ClassVar[bool] = False  # whether its parameters are never trained
    undecayed: ClassVar[
        tuple[str, ...]
    ] = ()  # parameters that weight decay leaves alone, as it does norms, where it reaches matrices
    leaks_future: bool = False  # whether a token's output depends on later tokens: generation is then refused
    # option → the least, the most, and whether the least itself is allowed
    ranges: ClassVar[Mapping[str, tuple[float, float, bool]]] = {}

    def start(self) -> None:
        """Sets the start values of the parameters this module itself holds (sub-modules start themselves)."""

    @classmethod
    def least_parameters(cls, config: Sizes) -> int:
        """Returns how many parameters there are at least, from the sizes alone: a model that cannot fit is not built."""
        return 0

    @classmethod
    def spelled_out(cls, config: Sizes, options: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the options with what the config decides where they say nothing; two parts that compute the same are equal."""
        return dict(options)


class StepIndex:
    """The step a pass is at: `t` as it is counted, `row` as per-step tables are read (an int, or one per batch row).

    `taken` maps tables to their rows at the step, where they were taken beforehand. A step that finds its rows there and reads
    neither number does the same work as every other step.
    """

    __slots__ = ("row", "t", "taken")

    def __init__(self, t: int | Tensor, row: int | Tensor, taken: Mapping[Tensor, Tensor] | None = None) -> None:
        self.t = t
        self.row = row
        self.taken = taken

    def __repr__(self) -> str:
        t, row = (x.tolist() if type(x) is Tensor else x for x in (self.t, self.row))
        return f"StepIndex({t})" if row == t else f"StepIndex({t}, row={row})"


FIRST = StepIndex(0, 0)

LINEAR_INITS = ("normal", "linear")


def start_linears(part: nn.Module, init: str) -> None:
    """Starts the linear maps of a part as `init` says, once they have started themselves: "normal" leaves them as they are, normal
    with the model's initializer_range and without biases; "linear" is PyTorch's own start, weights and biases within ±1/√inputs."""
    if init == "linear":
        for module in part.modules():
            if isinstance(module, nn.Linear):
                module.reset_parameters()


class RowSteps:
    """One step index per batch row, known on the host as well, so that nobody has to ask the device for it."""

    __slots__ = ("tensor", "values")

    def __init__(self, values: Sequence[int], device: torch.device, tensor: Tensor | None = None) -> None:
        self.values = tuple(values)
        self.tensor = torch.tensor(self.values, device=device) if tensor is None else tensor


def row_steps(values: Sequence[int], device: torch.device) -> int | RowSteps:
    """Returns the step of all batch rows where they agree, else one per row."""
    return values[0] if len(set(values)) == 1 else RowSteps(values, device)


def take(table: Tensor, step: StepIndex) -> Tensor:
    """Returns the rows of a per-step table [S, …]: […] for one step, [B, …] for one step per batch row."""
    return table[step.row] if step.taken is None or table not in step.taken else step.taken[table]


def take_width(table: Tensor, step: StepIndex) -> Tensor:
    """Returns rows of a [S, D] table so that they multiply [B, T, D]: [D] for one step, [B, 1, D] for one per row."""
    rows = take(table, step)
    return rows if rows.dim() == 1 else rows.unsqueeze(1)
