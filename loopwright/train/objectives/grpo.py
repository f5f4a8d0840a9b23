"""GRPO: the model samples completions of its prompts, a reward judges them, and what was better than its group becomes likelier.

TRL runs it (`train/trl/`); what stands here is what the recipe says, and the likelihood that a looped model gives a completion.
"""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from loopwright.data.batch import IGNORED, Source, Splits
from loopwright.data.order import Order
from loopwright.model.looped import LoopedForCausalLM
from loopwright.settings import build_kind, check_kind
from loopwright.train.objectives.readout import Targets, find_targets, over_chunks, target_features, target_logits
from loopwright.train.objectives.rewards import REWARDS, Reward
from loopwright.train.objectives.step_weights import StepWeights, exit_log_probabilities, need_all_steps, need_halting
from loopwright.train.rollout import Objective, Rollout
from loopwright.values import check_number, check_whole

WHERE = "objective (grpo)"
PACKAGES = ("trl", "datasets")
EXIT_PDF = "exit-pdf"


class Grpo(Objective):
    """Group-relative policy optimisation: L = −mean_i A_i · mean_j log p(y_ij) + beta · KL(p_T ‖ p_T of the start).

    i counts completions, `group` of each prompt, j the tokens of one; A_i = (R_i − mean of the group) / deviation of the group
    (Shao et al., arXiv 2402.03300; one update per sample, so that no ratio is ever clipped). `reward` is the name of a reward, or
    {kind, options}. `credit` says which steps earn it: the "last" (log p is the read-out that was sampled from), a weighting of
    all steps with a gradient as `every-step` has it, log p = Σ_t w_t log p_t, or "exit-pdf": w_t is the exit gate's distribution of
    each token, which gets a gradient too (RLTT, arXiv 2602.10520). The divergence is that of the last step's read-outs, whatever
    earns credit. `tokens` is the longest completion; left out, the longest answer of the data.
    """

    reads = "last"
    read_out = "last"
    capturable = False
    sampled = True

    def __init__(
        self,
        reward: str | dict[str, Any],
        group: int = 8,
        temperature: float = 1.0,
        tokens: int | None = None,
        beta: float = 0.0,
        credit: str | list[float] = "last",
    ) -> None:
        spec = {"kind": reward} if isinstance(reward, str) else dict(reward)
        check_kind(f"{WHERE}: reward", spec, REWARDS)
        self.reward: Reward = build_kind(spec, REWARDS)
        self.reward_name = str(spec["kind"])
        self.group = check_whole(f"{WHERE}: group", group, 2)
        check_number(f"{WHERE}: temperature", temperature, above=0)
        check_number(f"{WHERE}: beta", beta, least=0)
        if tokens is not None:
            check_whole(f"{WHERE}: tokens", tokens, 1)
        self.temperature, self.tokens, self.beta = temperature, tokens, beta
        self.reads = "last" if credit == "last" else "every"
        self.by_gate = credit == EXIT_PDF
        # the last one alone is a list of one
        self.weights = StepWeights(f"{WHERE}: credit", [1.0] if credit in ("last", EXIT_PDF) else credit, also=("last", EXIT_PDF))
        self.reference: LoopedForCausalLM | None = None

    def prepare(self, model: LoopedForCausalLM, device: torch.device | str) -> None:
        """Keeps the model as it starts, frozen, where the loss holds on to it: a resumed run builds the same one again."""
        if self.by_gate:
            need_halting(model, "grpo", "logits")
        if self.beta:
            self.reference = copy.deepcopy(model).eval().requires_grad_(False)

    def fixed_models(self) -> dict[str, LoopedForCausalLM]:
        """Returns the model of the start, where the loss holds on to it."""
        return {} if self.reference is None else {"model of the start": self.reference}

    def check(self, recipe: Mapping[str, Any], splits: Splits, world: int) -> None:
        """Raises a ValueError where a run cannot be one of GRPO, before anything is written."""
        missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
        if missing:
            raise ValueError(f"{WHERE}: {missing[0]} is not installed; pip install 'loopwright[rl,data]'")
        if world > 1:
            raise ValueError(f"{WHERE}: runs in one process (got {world})")
        if not splits.exact or splits.in_place or splits.tokenizer is None or splits.eos_id is None:
            raise ValueError(f"{WHERE}: data {recipe['data']['kind']!r} has no prompts with answers; give a task or kind: chat")
        rows = recipe["batch"] // recipe["accumulate"]
        if rows % self.group:
            raise ValueError(f"{WHERE}: batch / accumulate ({rows} completions) must be a multiple of group ({self.group})")
        refused = [name for name in ("penalties", "graph") if recipe[name] and recipe[name] != "auto"]
        if refused:
            raise ValueError(f"{WHERE}: {refused[0]} is not offered with completions that are sampled; leave it out")
        longest_answer(splits.train, self.rows(recipe, len(splits.train)))

    def rows(self, recipe: Mapping[str, Any], samples: int) -> Tensor:
        """Returns which of the training samples each prompt of the whole run is, update by update."""
        order, batch = recipe["order"], recipe["batch"] // recipe["accumulate"] // self.group
        places = Order(samples, recipe["seed"], order["shuffled"], repeat=order["repeat"], batch=batch)
        return places.indices(0, recipe["updates"] * recipe["accumulate"] * batch)

    def __call__(self, model: LoopedForCausalLM, rollout: Rollout) -> tuple[Tensor, dict[str, Tensor]]:
        """Returns (−mean log p of the targets, {loss_last}): the loss of completions that are all worth 1."""
        targets = find_targets(rollout.batch)
        loss = -targets.mean(self.log_likelihoods(model, rollout, targets).credited)
        return loss, {"loss_last": loss.detach()}

    def log_likelihoods(self, model: LoopedForCausalLM, rollout: Rollout, targets: Targets) -> Likelihoods:
        """Returns log p of each target at the temperature of sampling, by the steps that earn credit and by the last one."""
        states = rollout.states
        if self.by_gate:
            need_all_steps(rollout, "grpo")
            gate = torch.stack([targets.pick(model.halting.logit(s))[:, 0] for s in states])
            share = exit_log_probabilities(gate).exp()
        else:
            weights = self.weights(len(states))
            states, share = states[-len(weights) :], torch.tensor(weights, device=targets.ids.device)[:, None]
        features = target_features(model, states, rollout.p, targets)

        def read(x: Tensor, ids: Tensor) -> Tensor:
            log_p = (target_logits(model, x, rollout.p) / self.temperature).log_softmax(-1)
            return torch.stack([log_p.gather(1, ids[:, None])[:, 0], -(log_p.exp() * log_p).sum(1)])

        likelihoods = over_chunks(read, model.config.vocab_size, features.flatten(0, 1), targets.ids.repeat(len(states)))
        log_p, entropy = likelihoods.view(2, len(states), -1)
        return Likelihoods((share.to(log_p.dtype) * log_p).sum(0), log_p[-1], entropy[-1].detach())


class Likelihoods(NamedTuple):
    """Of each target [N]: log p by the steps that earn credit, log p by the last step, and the entropy after the last step."""

    credited: Tensor
    last: Tensor
    entropy: Tensor


def divergence(log_p: Tensor, reference: Tensor) -> Tensor:
    """Returns an estimate of KL(p ‖ p of the start) at tokens that p sampled, r − log r − 1 with r = p of the start / p: it is at
    least 0, and right in the mean (RLTT, eq. 7)."""
    ratio = reference - log_p
    return ratio.exp() - ratio - 1


def longest_answer(source: Source, rows: Tensor) -> int:
    """Returns the tokens of the longest answer of these rows; refuses one that is not a prompt and one answer after it."""
    longest = 0
    for part in rows.unique().split(512):
        batch = source.batch(part)
        if batch.segment_ids is not None:
            raise ValueError(f"{WHERE}: row {int(part[0])} of the training data is packed; set data.packed: false")
        asked = batch.labels[:, 1:] != IGNORED
        answers = asked[:, 0] + (asked[:, 1:] & ~asked[:, :-1]).sum(1)
        for row, count in zip(part.tolist(), answers.tolist(), strict=True):
            if count != 1:
                raise ValueError(f"{WHERE}: row {row} of the training data has {count} answers; allowed: one, after its prompt")
        longest = max(longest, int(asked.sum(1).max()))
    return longest
