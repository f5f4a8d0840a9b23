"""Parts: the small final modules that make one looped model differ from another, chosen by `{"kind": …, options}`."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from loopwright.settings import refuse_unknown, suggest

if TYPE_CHECKING:
    from loopwright.model.config import LoopedConfig


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


def take(table: Tensor, step: StepIndex) -> Tensor:
    """Returns the rows of a per-step table [S, …]: […] for one step, [B, …] for one step per batch row."""
    return table[step.row]


def take_width(table: Tensor, step: StepIndex) -> Tensor:
    """Returns rows of a [S, D] table so that they multiply [B, T, D]: [D] for one step, [B, 1, D] for one per row."""
    rows = table[step.row]
    return rows if rows.dim() == 1 else rows.unsqueeze(1)


def options_of(kind: type) -> dict[str, inspect.Parameter]:
    """Returns the options of a kind: the keyword arguments of its `__init__` after the config."""
    return {n: p for n, p in inspect.signature(kind.__init__).parameters.items() if n not in ("self", "config")}


def check_part(where: str, spec: Any, table: Mapping[str, type]) -> None:
    """Raises a ValueError where `spec` is not a kind of `table` with options that kind takes."""
    if not isinstance(spec, Mapping) or "kind" not in spec:
        raise ValueError(f"{where}: {spec!r} is not a mapping with a 'kind'; {suggest('', table)}")
    if not isinstance(spec["kind"], str) or spec["kind"] not in table:
        raise ValueError(f"{where}: unknown kind {spec['kind']!r}; {suggest(str(spec['kind']), table)}")
    options = options_of(table[spec["kind"]])
    refuse_unknown(f"{where} ({spec['kind']})", [key for key in spec if key != "kind"], options)
    missing = [n for n, p in options.items() if p.default is inspect.Parameter.empty and n not in spec]
    if missing:
        raise ValueError(f"{where} ({spec['kind']}): missing {', '.join(missing)}")


def build_part(spec: Mapping[str, Any], table: Mapping[str, type], config: LoopedConfig) -> Any:
    """Returns the part that `spec` describes."""
    return table[spec["kind"]](config, **{key: value for key, value in spec.items() if key != "kind"})
