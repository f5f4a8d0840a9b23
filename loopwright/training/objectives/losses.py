"""What is trained for. An objective takes a model and a rollout, and returns (loss, metrics): the loss is a mean over the batch's
targets (0 where it has none), metrics are detached numbers, under the same names for every batch.

Below, i counts the N targets and t the steps that have a gradient; L_i(t) = −log p_t(target i) is the cross-entropy of the
read-out after step t, T the last step. `reads` says which states an objective looks at: those of "every" step, or the "last".
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from loopwright.model.causal_lm import LoopedForCausalLM
from loopwright.model.passes import weighted_sum
from loopwright.model.traced import cached_constant
from loopwright.schema import Given, Kinds, check_number, check_whole
from loopwright.training.grpo import Grpo
from loopwright.training.objectives.distil import Distil, Shortcut
from loopwright.training.objectives.readout import (
    StepWeights,
    cross_entropies,
    exit_log_probabilities,
    find_targets,
    need_all_steps,
    need_halting,
    target_features,
    wide,
)
from loopwright.training.rollout import Objective, Rollout

Metrics = dict[str, Tensor]


class Final(Objective):
    """The last step's cross-entropy: L = mean_i L_i(T) + z_loss · mean_i (log Z_i)².

    Z is the normaliser of the softmax; the z-loss keeps logits from drifting (PaLM, arXiv 2204.02311, with 1e-4). `ahead` 2
    asks each position for the token after the next one: what the public Ouroboros code trains by shifting its labels twice.
    """

    reads = "last"
    read_out = "last"

    def __init__(self, z_loss: float = 0.0, ahead: int = 1) -> None:
        check_number("objective (final): z_loss", z_loss, least=0)
        check_whole("objective (final): ahead", ahead, 1)
        self.z_loss, self.ahead = z_loss, ahead

    def __call__(self, model: LoopedForCausalLM, rollout: Rollout) -> tuple[Tensor, Metrics]:
        """Returns (loss, {loss_last, z})."""
        targets = find_targets(rollout.batch, self.ahead)
        losses, log_z = cross_entropies(model, target_features(model, [rollout.last], rollout.p, targets), rollout.p, targets)
        last, z = targets.mean(losses[0]), targets.mean(log_z[0] ** 2)
        loss = last + self.z_loss * z if self.z_loss else last
        return loss, {"loss_last": last.detach(), "z": z.detach()}


class EveryStep(Objective):
    """A weighted mean over steps: L = Σ_t w_t · mean_i L_i(t), Σ_t w_t = 1.

    `weights`, before they are scaled to sum to 1, are "uniform" (1), "linear" (1, 2, 3 …: later steps count more),
    "geometric" (`ratio` to the power of the steps still to come) or a list that ends at the last step: a longer rollout gives
    its earlier steps no weight and a shorter one uses the end of the list. Deep supervision (Lee et al., arXiv 1409.5185).
    """

    reads = "every"
    read_out = "last"

    def __init__(self, weights: str | list[float] = "uniform", ratio: float = 0.5) -> None:
        check_number("objective (every-step): ratio", ratio, above=0)
        self.step_weights = StepWeights("objective (every-step): weights", weights, ratio)

    def __call__(self, model: LoopedForCausalLM, rollout: Rollout) -> tuple[Tensor, Metrics]:
        """Returns (loss, {loss_last, loss_first})."""
        targets, weights = find_targets(rollout.batch), self.step_weights(len(rollout.states))
        features = target_features(model, rollout.states[-len(weights) :], rollout.p, targets)
        losses, _ = cross_entropies(model, features, rollout.p, targets)
        # a product and a sum: autocast would make a matrix product bfloat16
        loss = targets.mean((_on(losses.device, tuple(weights))[:, None].to(losses.dtype) * losses).sum(0))
        return loss, {"loss_last": targets.mean(losses[-1]).detach(), "loss_first": targets.mean(losses[0]).detach()}


@cached_constant(1024)
def _on(device: torch.device, numbers: tuple[float, ...]) -> Tensor:
    """Numbers on a device, brought there once: a copy from the host cannot be part of a captured pass."""
    return torch.tensor(numbers, dtype=torch.float64, device=device)


class ExpectedExit(Objective):
    """Ouro's first stage: L = mean_i [ Σ_t p_i(t) L_i(t) − beta · H(p_i) ], H(p) = −Σ_t p(t) log p(t).

    p is the exit gate's distribution over steps. The entropy term, a uniform prior over exits, keeps the gate from
    settling on one step (Zhu et al., arXiv 2510.25741).
    """

    reads = "every"

    def __init__(self, beta: float = 0.05) -> None:
        check_number("objective (expected-exit): beta", beta, least=0)
        self.beta = beta

    def __call__(self, model: LoopedForCausalLM, rollout: Rollout) -> tuple[Tensor, Metrics]:
        """Returns (loss, {loss_last, loss_first, entropy, exit_step}); exit_step is the mean step of leaving, from 0."""
        need_halting(model, "expected-exit", "logits")
        need_all_steps(rollout, "expected-exit")
        targets = find_targets(rollout.batch)
        losses, _ = cross_entropies(model, target_features(model, rollout.states, rollout.p, targets), rollout.p, targets)
        log_p = exit_log_probabilities(torch.stack([targets.pick(model.halting.logit(s))[:, 0] for s in rollout.states]))
        p = log_p.exp()
        expected, entropy = (p * losses).sum(0), -(p * log_p).sum(0)
        loss = targets.mean(expected - self.beta * entropy)
        steps = torch.arange(len(p), device=p.device)[:, None]
        return loss, {
            "loss_last": targets.mean(losses[-1]).detach(),
            "loss_first": targets.mean(losses[0]).detach(),
            "entropy": targets.mean(entropy).detach(),
            "exit_step": targets.mean((steps * p).sum(0)).detach(),
        }


class ExitGateStage(Objective):
    """Ouro's second stage, for the gate alone: L = mean_i 1/T Σ_{t>0} BCE(1 − λ_i(t); w_i(t)), with the continuation target
    w_i(t) = σ(slope · (I_i(t) − threshold)) of the improvement I_i(t) = max(0, L_i(t−1) − L_i(t)).

    Where the last step still helped, the gate should go on; where it did not, leave. Losses and states are constants here,
    so only the gate has a gradient; freeze the rest all the same (no optimiser state, no weight decay). A rollout of one step
    compares nothing: its loss is 0 (Zhu et al., arXiv 2510.25741, section 3.4: slope 50, threshold 0.005; eq. 6 divides by all T
    steps, though T − 1 are judged).
    """

    reads = "every"
    validates = True  # the model is mostly frozen: its own loss would be the same at every update

    def __init__(self, slope: float = 50.0, threshold: float = 0.005) -> None:
        check_number("objective (exit-gate): slope", slope, above=0)
        self.slope, self.threshold = slope, threshold

    def __call__(self, model: LoopedForCausalLM, rollout: Rollout) -> tuple[Tensor, Metrics]:
        """Returns (loss, {loss_last, improvement, continue}): of the last two, means over targets and judged steps."""
        need_halting(model, "exit-gate", "logits")
        targets = find_targets(rollout.batch)
        with torch.no_grad():
            losses, _ = cross_entropies(model, target_features(model, rollout.states, rollout.p, targets), rollout.p, targets)
            improvement = (losses[:-1] - losses[1:]).clamp(min=0)
            go_on = torch.sigmoid(self.slope * (improvement - self.threshold))
        gate = torch.stack([targets.pick(model.halting.logit(s.detach()))[:, 0] for s in rollout.states])
        misses = F.binary_cross_entropy_with_logits(-wide(gate[1:]), go_on, reduction="none")
        judged = max(len(misses), 1)
        return targets.mean(misses.sum(0) / len(gate)), {
            "loss_last": targets.mean(losses[-1]),
            "improvement": targets.mean(improvement.sum(0) / judged),
            "continue": targets.mean(go_on.sum(0) / judged),
        }


class Ponder(Objective):
    """Adaptive computation time: L = mean_i [ −log p(target i | Σ_t w_i(t) s_i(t)) + weight · (N_i + R_i) ].

    The read-out is that of the states' mean by halting weight; N + R, steps taken plus the remainder, is the ponder cost
    (Graves, arXiv 1603.08983; Universal Transformer, arXiv 1807.03819). It is charged at the targets, like every loss here.
    """

    reads = "every"
    read_out = "expected"

    def __init__(self, weight: float = 0.01) -> None:
        check_number("objective (ponder): weight", weight, least=0)
        self.weight = weight

    def __call__(self, model: LoopedForCausalLM, rollout: Rollout) -> tuple[Tensor, Metrics]:
        """Returns (loss, {loss_last, ponder}); loss_last is the cross-entropy of the mixed state."""
        need_halting(model, "ponder", "states")
        need_all_steps(rollout, "ponder")
        targets, halt = find_targets(rollout.batch), model.halting_values(rollout.start, rollout.states, rollout.e, rollout.p)
        mixed = weighted_sum(model.halting(halt), rollout.states)
        losses, _ = cross_entropies(model, target_features(model, [mixed], rollout.p, targets), rollout.p, targets)
        cost = targets.mean(wide(targets.pick(model.halting.ponder_cost(halt))))
        loss = targets.mean(losses[0])
        return loss + self.weight * cost, {"loss_last": loss.detach(), "ponder": cost.detach()}


OBJECTIVES = Kinds(
    "objective",
    {
        "final": Final, "every-step": EveryStep, "expected-exit": ExpectedExit, "exit-gate": ExitGateStage, "ponder": Ponder,
        "distil": Distil, "shortcut": Shortcut, "grpo": Grpo, "given": Given,
    },
    inherits=Objective, offers=["__call__"],
)  # fmt: skip
