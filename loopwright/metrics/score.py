"""Scores of answers: loss and exactness per row, and what becomes of a row as depth grows.

Tables over depths are [depths, rows] booleans, true where a row is right, with the depths in ascending order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from loopwright.schema import Kinds

IGNORED = -100


def wide(x: Tensor) -> Tensor:
    """Returns a tensor in float32, or as it is where that is wider: what metrics are computed in."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


# rows


def row_losses(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the summed cross-entropy of each row [B], in float64, and its number of targets [B]; see `token_losses`."""
    each, asked = token_losses(logits, labels)
    return each.sum(1, dtype=torch.float64), asked.sum(1)


def token_losses(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the cross-entropy of each token but the first [B, T − 1], 0 where none is asked for, and where one is.

    Labels [B, T] are the input ids, unshifted, −100 where nothing is predicted: logits [B, T, V] at i answer for label i + 1.
    """
    _check_labels(logits, labels)
    targets = labels[:, 1:].to(logits.device)
    asked = targets != IGNORED
    scores = wide(logits[:, :-1])
    # −log p = log Σ exp(x − x_target): exact to the last digit where the loss is near zero, and cheaper than cross_entropy
    each = (scores - scores.gather(-1, targets.clamp(min=0)[..., None])).logsumexp(-1)
    return torch.where(asked, each, 0), asked


def chosen(logits: Tensor) -> Tensor:
    """Returns the token that greedy decoding chooses from logits [..., V]; −1 where it chooses none, as in `generate`.

    That is where one is not finite, and where all are the same: a norm that overflowed leaves zeros, and the first is no answer.
    """
    low, high = logits.aminmax(dim=-1)
    return torch.where(low.isfinite() & (low < high) & high.isfinite(), logits.argmax(-1), -1)


def exact_rows(logits: Tensor, labels: Tensor) -> Tensor:
    """Returns whether the likeliest token is the right one at every target of a row [B].

    Labels are unshifted, as in `row_losses`. A row without a target is not right.
    """
    _check_labels(logits, labels)
    targets = labels[:, 1:].to(logits.device)
    asked = targets != IGNORED
    right = chosen(logits[:, :-1]) == targets
    return (right | ~asked).all(1) & asked.any(1)


def _check_labels(logits: Tensor, labels: Tensor) -> None:
    if labels.shape != logits.shape[:2]:
        raise ValueError(f"labels: shape {tuple(labels.shape)}; allowed: {tuple(logits.shape[:2])}, the shape of the input ids")


class Metric:
    """A number per row that validation means over rows. Abstract: a kind is (logits, labels) → [B]."""

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Returns a number per row [B] of logits [B, T, V] and labels [B, T], unshifted, −100 where nothing is predicted."""
        raise NotImplementedError


class TokenAccuracy(Metric):
    """The share of a row's targets whose likeliest token is the right one; 0 for a row without a target."""

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Returns the share of each row [B]."""
        _check_labels(logits, labels)
        targets = labels[:, 1:].to(logits.device)
        asked = targets != IGNORED
        right = (chosen(logits[:, :-1]) == targets) & asked
        return right.sum(1) / asked.sum(1).clamp(min=1)


METRICS = Kinds("metric", {"token-accuracy": TokenAccuracy}, inherits=Metric, offers=["__call__"], reserved=["kind"])


# what becomes of a row as depth grows


@dataclass(frozen=True)
class DepthRates:
    """Shares of rows by what becomes of them over the depths looked at, `first` to `last`; each row counts once.

    `overthinking`: right at some depth and wrong at a later one. `overthinking_at_end`: right at some depth and wrong at the
    last. `self_correction`: wrong at some depth and right at a later one. `self_correction_at_end`: wrong at some depth and
    right at the last. `always_right` and `never_right` change nothing at all. A row can both overthink and correct itself.
    """

    first: int
    last: int
    overthinking: float
    overthinking_at_end: float
    self_correction: float
    self_correction_at_end: float
    always_right: float
    never_right: float


def depth_rates(right: Tensor, depths: list[int], *, since: int | None = None) -> DepthRates:
    """Returns the rates of a table [depths, rows]; depths before `since` are not looked at."""
    _check_table(right, depths)
    first = 0 if since is None else next((i for i, depth in enumerate(depths) if depth >= since), None)
    if first is None:
        raise ValueError(f"depth_rates: since {since}; allowed: up to {depths[-1]}, the largest depth of the table")
    table = right[first:].cpu()
    lost, found = _changes(table), _changes(~table)
    shares = {
        "overthinking": lost.any(0), "overthinking_at_end": lost[-1],
        "self_correction": found.any(0), "self_correction_at_end": found[-1],
        "always_right": table.all(0), "never_right": ~table.any(0),
    }  # fmt: skip
    return DepthRates(depths[first], depths[-1], **{name: x.double().mean().item() for name, x in shares.items()})


def _changes(table: Tensor) -> Tensor:
    """Returns where a row is false that was true at a smaller depth [depths, rows]."""
    return ~table & (table.long().cumsum(0) > 0)


def settled_depths(right: Tensor, depths: list[int]) -> Tensor:
    """Returns the first depth from which each row stays right to the last depth [rows], and 0 where it is wrong there."""
    _check_table(right, depths)
    run = right.flip(0).long().cumprod(0).sum(0)  # how many depths at the end are right without a gap
    values = torch.tensor([*depths[::-1]], device=right.device)
    return torch.where(run > 0, values[(run - 1).clamp(min=0)], 0)


def _check_table(right: Tensor, depths: list[int]) -> None:
    if right.dtype != torch.bool or right.dim() != 2 or right.shape[0] != len(depths) or not right.numel():
        raise ValueError(
            f"table: {right.dtype} of shape {tuple(right.shape)} for {len(depths)} depths; allowed: booleans [depths, rows]"
        )
    if sorted(set(depths)) != list(depths):
        raise ValueError(f"depths: {depths}; allowed: ascending, each once")


def holds_from_to(accuracy: Mapping[int, float], start: int, bar: float) -> int | None:
    """Returns the last depth of the unbroken run of measured depths at or above `bar` that begins at `start`, else None."""
    if start not in accuracy:
        raise ValueError(f"holds_from_to: depth {start} was not measured; allowed: {', '.join(map(str, sorted(accuracy)))}")
    reached = None
    for depth in sorted(depth for depth in accuracy if depth >= start):
        if not accuracy[depth] >= bar:
            break
        reached = depth
    return reached
