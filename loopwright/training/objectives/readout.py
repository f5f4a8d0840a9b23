"""Reading out where a token is to be predicted: states → features → logits → one number per target, and nothing elsewhere; and
what each step counts for where an objective reads all of them: named weightings, a list, or the model's own exit gate.

Labels are often mostly ignored (four-digit addition asks for 7 of 17 positions), so the targets are picked before the head,
and before the final norm too where no coda looks at the other positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from loopwright.data.batch import Batch
from loopwright.kernels.gate import has_kernels
from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.parts.halting import HALTINGS
from loopwright.model.passes import Pass
from loopwright.schema import suggest
from loopwright.training.rollout import Rollout

# logits made at once (256 MB in float32); beyond it they are made again in the backward pass instead of being kept
CHUNK = 2**26
# the share of a GPU's memory that logits and their gradient may take where a kernel keeps them in their own dtype
KEPT = 1 / 8


@dataclass(frozen=True)
class Targets:
    """The N tokens a batch asks for: `ids` [N], `places` [N], the positions of [B·T] that are to predict them, and what each
    counts for in a mean, `share` [N]: 1/N, or 0 where a place only fills up the shape."""

    places: Tensor
    ids: Tensor
    share: Tensor

    def pick(self, x: Tensor) -> Tensor:
        """Returns what x [B, T, …] holds at the targets, [N, …]."""
        return x.flatten(0, 1).index_select(0, self.places)

    def mean(self, x: Tensor) -> Tensor:
        """Returns the mean of x [N] over the targets; where there are none, 0 with a zero gradient."""
        return (x * self.share.to(x.dtype)).sum()


def find_targets(batch: Batch, ahead: int = 1) -> Targets:
    """Returns the targets of a batch: each token of the labels that is not ignored, asked of the position before it, or `ahead`
    positions before it where its document reaches so far back."""
    after = batch.target_places() if batch.asked is None else batch.asked
    real = after > 0  # the first token of a batch is never asked for
    if ahead > 1:
        real = real & (after % batch.input_ids.shape[1] >= ahead)
        if batch.attention_mask is not None:
            real = real & batch.attention_mask.flatten()[(after - ahead).clamp(min=0)].bool()
        if batch.segment_ids is not None:
            documents = batch.segment_ids.flatten()
            real = real & (documents[after] == documents[(after - ahead).clamp(min=0)])
    ids = batch.labels.flatten().index_select(0, after).clamp(min=0)
    share = real.double()
    return Targets((after - ahead).clamp(min=0), ids, share / share.sum().clamp(min=1))


def target_features(model: LoopedForCausalLM, states: Sequence[Tensor], p: Pass, targets: Targets) -> Tensor:
    """Returns what the head reads of each state at the targets, [S, N, D]; all states go through the coda as one batch."""
    if not len(model.coda):
        return model.features(torch.stack([targets.pick(s) for s in states]), p)
    if len(states) == 1:
        return targets.pick(model.features(states[0], p))[None]
    rows = torch.arange(states[0].shape[0], device=states[0].device).repeat(len(states))
    x = model.features(torch.cat(list(states)), p.rows(rows))
    return x.view(len(states), -1, x.shape[-1]).index_select(1, targets.places)


def target_logits(model: LoopedForCausalLM, features: Tensor, p: Pass) -> Tensor:
    """Returns the logits of features, in at least float32."""
    return wide(model.head(features, p))


def cross_entropies(model: LoopedForCausalLM, features: Tensor, p: Pass, targets: Targets) -> tuple[Tensor, Tensor]:
    """Returns −log p(target) and log Z, the log of the softmax's normaliser, [S, N] each, of features [S, N, D]."""

    def read(x: Tensor, ids: Tensor) -> Tensor:
        logits = target_logits(model, x, p)
        loss = F.cross_entropy(logits, ids, reduction="none")
        return torch.stack([loss, loss + logits.gather(1, ids[:, None])[:, 0]])

    def read_by_kernel(x: Tensor, ids: Tensor) -> Tensor:
        from loopwright.kernels.entropy import CrossEntropy  # Triton comes with torch, where there is a GPU

        return torch.stack(CrossEntropy.apply(model.head(x, p), ids))

    steps, rows = features.shape[0], features.flatten(0, 1)
    kernel = has_kernels(rows)
    losses = over_chunks(
        read_by_kernel if kernel else read, model.config.vocab_size, rows, targets.ids.repeat(steps),
        most=kept_logits(rows) if kernel else CHUNK,
    )  # fmt: skip
    return losses[0].view(steps, -1), losses[1].view(steps, -1)


def kept_logits(x: Tensor) -> int:
    """Returns how many logits a GPU keeps for the backward pass, with room for their gradient; a matter of the card alone."""
    size = torch.get_autocast_dtype("cuda").itemsize if torch.is_autocast_enabled("cuda") else x.element_size()
    return int(KEPT * torch.cuda.get_device_properties(x.device).total_memory) // (2 * size)


def over_chunks(read: Callable[..., Tensor], width: int, *rows: Tensor, most: int = CHUNK) -> Tensor:
    """Returns `read(*rows)`, [K, N] of rows [N, …], where a row costs `width` numbers: in chunks where all at once are more than
    `most`."""
    size = max(most // width, 1)
    if rows[0].shape[0] <= size:
        return read(*rows)
    parts = zip(*(x.split(size) for x in rows), strict=True)
    return torch.cat([checkpoint(read, *part, use_reentrant=False, preserve_rng_state=False) for part in parts], dim=1)


NAMED = ("uniform", "linear", "geometric")


class StepWeights:
    """Weights over the steps of a rollout: "uniform" (1), "linear" (1, 2, 3 …), "geometric" (`ratio` to the power of the steps
    still to come), or a list that ends at the last step: a longer rollout gives its earlier steps no weight, a shorter one uses the
    end of the list. `also` are names that the caller knows beside these."""

    def __init__(self, where: str, weights: str | list[float] = "uniform", ratio: float = 0.5, also: tuple[str, ...] = ()) -> None:
        if isinstance(weights, str) and weights not in NAMED:
            raise ValueError(f"{where} is {weights!r}; {suggest(weights, (*NAMED, *also))}, or a list of numbers")
        numbers = not isinstance(weights, str) and all(isinstance(w, int | float) and math.isfinite(w) for w in weights)
        if not isinstance(weights, str) and (not numbers or not weights or min(weights) < 0 or weights[-1] <= 0):
            raise ValueError(f"{where} is {weights}; allowed: numbers of at least 0, the last above 0")
        self.weights, self.ratio = weights, ratio

    def __call__(self, steps: int) -> list[float]:
        """Returns the weights of the last steps of a rollout, at most `steps` of them; they sum to 1."""
        if isinstance(self.weights, str):
            forms = {"uniform": lambda t: 1.0, "linear": lambda t: t + 1.0, "geometric": lambda t: self.ratio ** (steps - 1 - t)}
            raw = [forms[self.weights](t) for t in range(steps)]
        else:
            raw = self.weights[-steps:]
        return [w / sum(raw) for w in raw]


def exit_log_probabilities(gate: Tensor) -> Tensor:
    """Returns log p [S, N] of the exit gate's logits [S, N]: p_t = λ_t ∏_{u<t}(1 − λ_u), what is left at the last step.

    In logarithms throughout: a gate that is sure of itself has a finite entropy, and a finite gradient of it.
    """
    gate = wide(gate)
    stay = F.logsigmoid(-gate[:-1]).cumsum(0)
    reach = torch.cat([torch.zeros_like(gate[:1]), stay])
    return reach + torch.cat([F.logsigmoid(gate[:-1]), torch.zeros_like(gate[:1])])


def wide(x: Tensor) -> Tensor:
    """Returns numbers in float32 or wider."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def need_halting(model: LoopedForCausalLM, objective: str, mixes: str) -> None:
    """Raises a ValueError where the model's halting does not mix what the objective reads."""
    if model.halting.mixes != mixes:
        fitting = " or ".join(repr(name) for name, kind in HALTINGS.items() if kind.mixes == mixes)
        found = model.config.halting["kind"]
        raise ValueError(f"objective ({objective}): the model's halting is {found!r}; allowed: a model with halting {fitting}")


def need_all_steps(rollout: Rollout, objective: str) -> None:
    """Raises a ValueError where not every step has a gradient."""
    kept, depth = len(rollout.states), rollout.plan.depth
    if kept < depth:
        raise ValueError(
            f"objective ({objective}): {kept} of {depth} steps have a gradient, and halting weighs all of them; "
            "allowed: a depth rule with a gradient through every step"
        )
