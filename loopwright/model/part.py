"""Parts: the small final modules that make one looped model differ from another, chosen by `{"kind": …, options}`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Part(nn.Module):
    """A module with its own start values. Abstract: every kind is a final subclass."""

    def start(self) -> None:
        """Sets the start values of the parameters this module itself holds (sub-modules start themselves)."""


class StepIndex:
    """The step a pass is at: `t` as it is counted, `row` as per-step tables are read (an int, or one per batch row)."""

    __slots__ = ("row", "t")

    def __init__(self, t: int | Tensor, row: int | Tensor) -> None:
        self.t = t
        self.row = row


class RowSteps:
    """One step index per batch row, known on the host as well, so that nobody has to ask the device for it."""

    __slots__ = ("tensor", "values")

    def __init__(self, values: Sequence[int], device: torch.device) -> None:
        self.values = tuple(values)
        self.tensor = torch.tensor(self.values, device=device)


def take(table: Tensor, step: StepIndex) -> Tensor:
    """Returns the rows of a per-step table [S, …]: […] for one step, [B, …] for one step per batch row."""
    return table[step.row]


def take_width(table: Tensor, step: StepIndex) -> Tensor:
    """Returns rows of a [S, D] table so that they multiply [B, T, D]: [D] for one step, [B, 1, D] for one per row."""
    rows = table[step.row]
    return rows if rows.dim() == 1 else rows.unsqueeze(1)
