"""What is added to an objective: penalties, when each begins to count, and how it is weighed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.schema import Kinds, build_kind, check_form, check_kind, check_number, options_of, refuse_unknown, suggest
from loopwright.training.objectives.jacobian import JacobianPenalty
from loopwright.training.rollout import Penalty, Rollout


class StateChange(Penalty):
    """How far the last step still moves the state: mean over rows, and in each over real tokens, of ‖s(T) − s(T−1)‖₂.

    Not squared, the last step only, with a gradient to both states: the L2 variant of the STARS study, its negative result
    (arXiv 2605.26733, with weight 1, added). Padding does not count.
    """

    def __call__(self, model: LoopedForCausalLM, rollout: Rollout) -> Tensor:
        """Returns the mean over rows of the mean length of the last change, so that the parts of a batch add up to the whole."""
        change = rollout.last - rollout.before
        moved = torch.linalg.vector_norm(change, dim=-1, dtype=torch.promote_types(change.dtype, torch.float32))
        if not rollout.batch.padded:
            return moved.mean()
        real = rollout.batch.valid
        return (torch.where(real, moved, 0.0).sum(1) / real.sum(1).clamp(min=1)).mean()


class Weighted:
    """A penalty J with its weight λ and its schedule.

    `weighting` "convex" trains on (1 − λ)L + λJ, "add" on L + λJ. The penalty counts from update `start` on (counted from
    0) and, with `start_accuracy`, not before validation accuracy at the median training depth first reached that; its weight
    then grows from 0 over `ramp` updates. Until then it is not computed at all, where the released STARS code computes it
    for its first 2,000 updates and throws it away.
    """

    def __init__(
        self,
        penalty: Penalty,
        name: str,
        weight: float = 0.1,
        weighting: str = "convex",
        start: int = 0,
        ramp: int = 0,
        start_accuracy: float | None = None,
    ) -> None:
        where = f"penalty ({name})"
        if weighting not in WEIGHTINGS:
            raise ValueError(f"{where}: weighting is {weighting!r}; {suggest(weighting, WEIGHTINGS)}")
        most = {"convex": 1.0, "add": float("inf")}[weighting]
        check_number(f"{where}: weight", weight, least=0, most=1 if most == 1 else None)
        check_number(f"{where}: start", start, least=0)
        check_number(f"{where}: ramp", ramp, least=0)
        if start_accuracy is not None and not 0 < start_accuracy <= 1:
            raise ValueError(f"{where}: start_accuracy is {start_accuracy}; allowed: above 0 and at most 1")
        self.penalty, self.name, self.weight, self.weighting = penalty, name, weight, weighting
        self.start, self.ramp, self.start_accuracy = start, ramp, start_accuracy

    @classmethod
    def check(cls, where: str, spec: Any, table: Mapping[str, type]) -> None:
        """Raises a ValueError where `spec` is not a kind of `table` with its options and those of the schedule, side by side."""
        if not isinstance(spec, Mapping) or not isinstance(spec.get("kind"), str) or spec["kind"] not in table:
            return check_kind(where, spec, table)  # which says what is wrong
        place = f"{where} ({spec['kind']})"
        schedule = {name: option for name, option in options_of(cls).items() if name not in ("penalty", "name")}
        refuse_unknown(place, spec, {"kind", *schedule, *options_of(table[spec["kind"]])})
        options, timing = _split(spec, schedule)
        check_kind(where, options, table)
        for name, value in timing.items():
            check_form(f"{place}: {name}", value, schedule[name].annotation)
        cls.build(spec, table)
        return None

    @classmethod
    def build(cls, spec: Mapping[str, Any], table: Mapping[str, type]) -> Weighted:
        """Returns the weighted penalty that a checked `spec` describes."""
        options, timing = _split(spec, options_of(cls))
        return cls(build_kind(options, table), spec["kind"], **timing)

    @property
    def hook(self) -> Penalty | None:
        """The penalty where it is computed in the last step, else None."""
        return self.penalty if self.penalty.in_last_step else None

    def factor(self, update: int, solved_at: int | None = None) -> float:
        """Returns the weight at an update; `solved_at` is the update from which the task counts as solved, None before that."""
        if self.start_accuracy is not None and solved_at is None:
            return 0.0
        begin = self.start if self.start_accuracy is None or solved_at is None else max(self.start, solved_at)
        if update < begin:
            return 0.0
        return self.weight * min((update - begin) / self.ramp, 1.0) if self.ramp else self.weight

    def combine(self, loss: Tensor, value: Tensor, factor: float | Tensor) -> Tensor:
        """Returns the loss with the penalty's value weighed in."""
        kept = 1 - factor if self.weighting == "convex" else 1.0
        return kept * loss + factor * value


def _split(spec: Mapping[str, Any], schedule: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the options of the penalty itself, with its kind, and those of its schedule."""
    options = {key: value for key, value in spec.items() if key not in schedule}
    return options, {key: value for key, value in spec.items() if key in schedule}


WEIGHTINGS = ("convex", "add")
PENALTIES = Kinds(
    "penalty",
    {"jacobian": JacobianPenalty, "state-change": StateChange},
    inherits=Penalty, offers=["__call__"], reserved=["kind", "weight", "weighting", "start", "ramp", "start_accuracy"],
)  # fmt: skip
