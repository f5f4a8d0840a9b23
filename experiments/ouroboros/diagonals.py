"""What a controller says: its diagonals by step and by kind of text, and what they vary with.

The variance of the diagonals over (step, kind, passage), summed over all entries, is parted in three: between steps, between
kinds at the same step, and between passages of a kind at a step. A controller that only knows the step has nothing in the last two.
There the mean over the tokens of a passage speaks for it. Over (step, kind, passage, token) a fourth part comes in, between tokens
of a passage at a step; each passage weighs the same, however long it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from loopwright.evaluation.text import Passages
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.parts.adapters.diagonal import Controller


@dataclass(frozen=True)
class Spoken:
    """The mean and the variance of the diagonals over the tokens of each passage [passages, steps, targets, rank]."""

    mean: Tensor
    variance: Tensor


@torch.no_grad()
def spoken(model: LoopedForCausalLM, passages: Passages, depth: int, rows: int = 8) -> Spoken:
    """Returns what the model's controller says of each passage at each step."""
    controller = next(adapter for adapter in model.adapters if isinstance(adapter, Controller))
    means, variances = [], []
    for start in range(0, len(passages), rows):
        batch = passages.batch(range(start, min(start + rows, len(passages)))).to(model.device)
        e, p = model.embed(batch.input_ids, attention_mask=batch.attention_mask)
        s, mean, variance = model.start_state(e, p), [], []
        for t, after in enumerate(model.unroll(e, depth, p, state=s)):
            d = controller.diagonals(model.step_index(t), s, p)[:, :, 0]  # the core is one layer here
            real = batch.valid[:, -d.shape[1] :, None, None] if d.shape[1] > 1 else torch.ones_like(d[..., :1, :1])
            mean.append((d * real).sum(1) / real.sum(1))
            variance.append(((d - mean[-1][:, None]).square() * real).sum(1) / real.sum(1))
            s = after
        means.append(torch.stack(mean, 1).float().cpu())
        variances.append(torch.stack(variance, 1).float().cpu())
    return Spoken(torch.cat(means), torch.cat(variances))


def parted(kinds: Mapping[str, Spoken]) -> dict[str, Any]:
    """Returns the shares of the variance, and the size (RMS over the rank) by target and step: of each kind's mean, and of the
    difference of the first two."""
    fewest = min(len(said.mean) for said in kinds.values())
    x = torch.stack([said.mean[:fewest] for said in kinds.values()])  # [kinds, passages, steps, targets, rank]
    whole, by_step, by_kind = x.mean((0, 1, 2)), x.mean((0, 1)), x.mean(1)
    total = (x - whole).pow(2).mean((0, 1, 2)).sum()
    between = {
        "steps": (by_step - whole).pow(2).mean(0).sum(),
        "kinds": (by_kind - by_step).pow(2).mean((0, 1)).sum(),
        "passages": (x - by_kind[:, None]).pow(2).mean((0, 1, 2)).sum(),
    }
    tokens = torch.stack([said.variance[:fewest] for said in kinds.values()]).mean((0, 1, 2)).sum()
    by_token = {**between, "tokens": tokens}
    return {
        "passages_of_a_kind": fewest,
        "shares": {name: float(value / total) for name, value in between.items()},
        "shares_by_token": {name: float(value / (total + tokens)) for name, value in by_token.items()},
        "size": float(x.pow(2).mean().sqrt()),
        "sizes": sizes(dict(zip(kinds, by_kind, strict=True))),
    }


def sizes(means: Mapping[str, Tensor]) -> dict[str, list[list[float]]]:
    """Returns the root mean square over the rank, by target and step, of means [steps, targets, rank] by kind."""
    names = list(means)
    apart = {f"{names[0]} less {names[1]}": means[names[0]] - means[names[1]]} if len(names) > 1 else {}
    return {name: mean.pow(2).mean(-1).sqrt().T.tolist() for name, mean in {**means, **apart}.items()}
