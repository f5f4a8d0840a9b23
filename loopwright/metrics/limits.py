"""What a token settles into over many steps: a fixed point, an orbit, a slide, or nothing known (Appendix C of "A Mechanistic
Analysis of Looped Language Models").

A series […, n] holds one number per step: how near the state of a token is to that of the last step, which itself is left out
(128 steps give n = 127). It is a similarity (1 is near) or a norm (0 is near): `SERIES`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

LIMITS = ("fixed point", "orbit", "slider", "unknown")  # what the labels 0, 1, 2, 3 stand for
FIXED_POINT, ORBIT, SLIDER, UNKNOWN = range(4)
SHORTEST = 4  # steps below which a window holds no two cycles


@dataclass(frozen=True)
class Series:
    """How a series is read: which values are `near` for a threshold, and the sign of a slope that approaches."""

    near: Callable[[Tensor, float], Tensor]
    sign: int


SERIES = {"similarity": Series(lambda s, tau: s >= 1 - tau, 1), "norm": Series(lambda s, tau: s <= tau, -1)}


@dataclass(frozen=True)
class LimitCurves:
    """The parts of the classification: the trend a t + b, what it leaves, that windowed, and its spectrum without bin 0.

    `slope` and `intercept` are […]; `trend`, `rest` and `windowed` […, n]; `spectrum` […, n // 2], |rfft| at 1, 2, … cycles in
    the window.
    """

    slope: Tensor
    intercept: Tensor
    trend: Tensor
    rest: Tensor
    windowed: Tensor
    spectrum: Tensor


@dataclass(frozen=True)
class Limits:
    """What series settle into, each […].

    `label` (long) is an index into LIMITS. `slope` and `intercept` are of the linear fit. `amplitude` is 4 M / n at the peak M of
    the spectrum, `cycles` (long) the place of the peak, and `frequency` = cycles / n, in cycles per step. `near` (long) counts
    the steps near the end. They are given for every series: frequency and amplitude describe an orbit, the slope a slider.
    """

    label: Tensor
    slope: Tensor
    intercept: Tensor
    amplitude: Tensor
    frequency: Tensor
    cycles: Tensor
    near: Tensor


def limit_curves(series: Tensor) -> LimitCurves:
    """Returns the intermediate curves of series […, n], in float64: detrended by least squares, windowed by a symmetric Hann."""
    n = series.shape[-1]
    if n < SHORTEST:
        raise ValueError(f"limits: a series of {n} steps; allowed: at least {SHORTEST}")
    s = series.double()
    t = torch.arange(n, dtype=s.dtype, device=s.device)
    centred = t - t.mean()
    slope = (s * centred).sum(-1) / centred.square().sum()
    intercept = s.mean(-1) - slope * t.mean()
    trend = slope[..., None] * t + intercept[..., None]
    windowed = (s - trend) * torch.hann_window(n, periodic=False, dtype=s.dtype, device=s.device)
    return LimitCurves(slope, intercept, trend, s - trend, windowed, torch.fft.rfft(windowed).abs()[..., 1:])


def check_thresholds(tau: float, p: float) -> None:
    """Raises a ValueError where τ or p is no threshold of the classification."""
    if not (0 < tau < 1 and 0 < p <= 1):
        raise ValueError(f"limits: tau {tau}, p {p}; allowed: tau between 0 and 1, p above 0 and at most 1")


def classify_limit(series: Tensor, tau: float = 0.05, p: float = 0.9, *, kind: str = "similarity") -> Limits:
    """Returns what series […, n] settle into; the first that holds of

    fixed point: at least p n steps are near the end, s ≥ 1 − τ (a norm: s ≤ τ);
    orbit: the amplitude A = 4 M / n at the peak of the spectrum is above τ / 2, with at least 2 cycles in the window;
    slider: the slope is above τ / n (a norm: below −τ / n);
    unknown. A series that is not finite throughout is unknown.
    """
    if kind not in SERIES:
        raise ValueError(f"limits: series of kind {kind!r}; allowed: {', '.join(SERIES)}")
    check_thresholds(tau, p)
    read, n = SERIES[kind], series.shape[-1]
    curves = limit_curves(series)
    near = read.near(series.double(), tau).sum(-1)
    peak = curves.spectrum.max(-1)
    amplitude, cycles = 4 * peak.values / n, peak.indices + 1
    finite = series.isfinite().all(-1)
    label = torch.full_like(cycles, UNKNOWN)
    label = torch.where(read.sign * curves.slope > tau / n, SLIDER, label)
    label = torch.where((amplitude > tau / 2) & (cycles >= 2), ORBIT, label)
    label = torch.where(near >= p * n, FIXED_POINT, label)
    label = torch.where(finite, label, UNKNOWN)
    return Limits(label, curves.slope, curves.intercept, amplitude, cycles / n, cycles, near)


# how often


@dataclass(frozen=True)
class LimitCounts:
    """Counts by label over tokens and examples, which add up over batches.

    `tokens` [4] of `all_tokens`; `examples` [4] of `all_examples`: those with at least one such token; `moving_examples`: those
    with a token that is no fixed point. `pairs` [4, 4]: tokens on which some layer does x (row) and some layer does y (column).
    """

    tokens: Tensor
    all_tokens: int
    examples: Tensor
    all_examples: int
    moving_examples: int
    pairs: Tensor

    def __add__(self, other: LimitCounts) -> LimitCounts:
        return LimitCounts(
            self.tokens + other.tokens,
            self.all_tokens + other.all_tokens,
            self.examples + other.examples,
            self.all_examples + other.all_examples,
            self.moving_examples + other.moving_examples,
            self.pairs + other.pairs,
        )

    def token_rates(self) -> Tensor:
        """Returns the share of tokens of each label [4], at the last layer (Table 3); they sum to 1."""
        return self.tokens.double() / self.all_tokens

    def example_rates(self) -> Tensor:
        """Returns the share of examples in which a token of each label occurs [4], at the last layer (Table 4)."""
        return self.examples.double() / self.all_examples

    def co_occurrence(self) -> Tensor:
        """Returns P(y | x) [x, y]: of the tokens on which some layer does x, the share on which some layer does y (Figure 14).

        A row is NaN where x never occurs; the diagonal is 1.
        """
        return self.pairs.double() / self.pairs.diagonal()[:, None]


def limit_counts(labels: Tensor, valid: Tensor | None = None) -> LimitCounts:
    """Returns the counts of labels [L, B, T] (layers in order) over the tokens that count, `valid` [B, T] (None: all).

    An example without such a token is not counted.
    """
    if labels.dim() != 3:
        raise ValueError(f"limit_counts: labels of shape {tuple(labels.shape)}; allowed: [layers, rows, tokens]")
    valid = torch.ones_like(labels[0], dtype=torch.bool) if valid is None else valid.bool()
    is_label = (labels[..., None] == torch.arange(len(LIMITS), device=labels.device)) & valid[..., None]  # [L, B, T, 4]
    last, some = is_label[-1], is_label.any(0).flatten(0, 1).double()
    return LimitCounts(
        last.sum((0, 1)).cpu(),
        int(valid.sum()),
        last.any(1).sum(0).cpu(),
        int(valid.any(1).sum()),
        int(last[..., ORBIT:].any(-1).any(1).sum()),
        (some.T @ some).long().cpu(),
    )
