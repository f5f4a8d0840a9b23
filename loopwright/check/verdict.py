"""What one check finds: comparisons of logits, collected into pass or fail with the numbers behind it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

# the difference allowed between two ways to the same logits, relative to the largest logit, in a pass of USUAL_RUNS layers or
# fewer; over more layers rounding adds up like a random walk, so the square root of their number is allowed
RELATIVE_TOLERANCES: dict[torch.dtype, float] = {
    torch.float64: 1e-10,
    torch.float32: 3e-5,
    torch.float16: 4e-3,
    torch.bfloat16: 3e-2,
}
USUAL_RUNS = 24
SHOWN_FAILURES = 2


@dataclass(frozen=True)
class Verdict:
    """The outcome of a check; `passed` is None where it does not apply, and `detail` says why.

    `by_rounding` says that it failed by differences above a tolerance alone, which rounding could have made.
    """

    passed: bool | None
    detail: str
    by_rounding: bool = False


class NotOfferedError(Exception):
    """A check does not apply to this model; the message says what is absent."""


class Tally:
    """The comparisons of one check. `close` allows rounding, `same` does not, `differ` and `hold` state facts."""

    def __init__(self, dtype: torch.dtype, runs: int = USUAL_RUNS) -> None:
        self.dtype = dtype
        once = RELATIVE_TOLERANCES.get(dtype, RELATIVE_TOLERANCES[torch.bfloat16])
        self.relative = once * math.sqrt(max(runs, USUAL_RUNS) / USUAL_RUNS)
        self.failures: list[str] = []
        self.distant = 0  # failures by a finite difference above the tolerance
        self.notes: list[str] = []
        self.worst: tuple[float, float, float] | None = None  # share of the tolerance used, difference, tolerance
        self.exact = 0

    def close(self, where: str, got: Tensor, want: Tensor, *, times: float = 1.0) -> None:
        """Compares two logits [B, T, V] up to rounding; `times` widens or narrows what is allowed."""
        tolerance = self.allowed(want) * times
        difference, place = largest_difference(got, want)
        if not difference <= tolerance < math.inf:  # what is not finite is a failure too
            self.failures.append(f"{where}: difference {difference:.1e} above tolerance {tolerance:.1e}{place}")
            self.distant += math.isfinite(difference) and math.isfinite(tolerance)
        share = difference / tolerance if tolerance else float(difference > 0)
        if self.worst is None or share > self.worst[0]:
            self.worst = (share, difference, tolerance)

    def same(self, where: str, got: Tensor, want: Tensor) -> None:
        """Compares two tensors bit for bit."""
        self.exact += 1
        if not same_bits(got, want):
            difference, place = largest_difference(got, want)
            self.failures.append(f"{where}: not the same bits, difference {difference:.1e}{place}")

    def differ(self, where: str, got: Tensor, want: Tensor) -> None:
        """States that two tensors are not the same."""
        self.hold(f"{where}: the same bits, where they must differ", not same_bits(got, want))

    def hold(self, failure: str, truth: bool) -> None:
        """States a fact; `failure` is what to say where it is not one."""
        if not truth:
            self.failures.append(failure)

    def allowed(self, want: Tensor) -> float:
        """Returns the difference allowed from these logits."""
        return self.relative * float(want.detach().abs().max())

    def verdict(self) -> Verdict:
        """Returns pass or fail, with the largest difference or the first failures."""
        parts = self.failures[:SHOWN_FAILURES]
        if len(self.failures) > SHOWN_FAILURES:
            parts.append(f"and {len(self.failures) - SHOWN_FAILURES} more")
        if not self.failures and self.worst is not None:
            _, difference, tolerance = self.worst
            parts.append(f"max difference {difference:.1e}, tolerance {tolerance:.1e} ({str(self.dtype).removeprefix('torch.')})")
        if not self.failures and self.exact:
            parts.append(f"same bits in {self.exact} comparison{'s' if self.exact > 1 else ''}")
        return Verdict(not self.failures, "; ".join(parts + self.notes), 0 < len(self.failures) == self.distant)


def largest_difference(got: Tensor, want: Tensor) -> tuple[float, str]:
    """Returns the largest absolute difference (infinite where shapes differ) and where it stands, in words."""
    if got.shape != want.shape:
        return math.inf, f" (shape {tuple(got.shape)} against {tuple(want.shape)})"
    if not got.numel():
        return 0.0, ""
    gap = (got.detach().double() - want.detach().to(got.device).double()).abs()
    gap = torch.where(gap.isnan(), torch.inf, gap)
    index = torch.unravel_index(gap.argmax(), gap.shape)
    place = f" (row {int(index[0])}, position {int(index[1])})" if gap.dim() == 3 else ""
    return float(gap.max()), place


def same_bits(got: Tensor, want: Tensor) -> bool:
    """Returns whether two tensors have the same shape and values; a NaN equals nothing."""
    return got.shape == want.shape and torch.equal(got, want.to(got.device))
